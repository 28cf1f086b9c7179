"""`qkv report`: is my model good, and what next?

make        the whole report: `make_report`         leakage         evaluation records in the training data
score       the score, baselines, classes           learning_curve  the gain to expect from twice the data
baselines   simple predictions to compare with      curve_verdict   over- and underfitting from the curves
errors      the errors to read first                diagnostics     what the rules of advice read
data        the records of a run, truncated ones    rules_…, advice the rules, in the order of importance
report      the result, as JSON and as a page
"""

from qkv.tasks.report.diagnostics import Advice
from qkv.tasks.report.make import ReportOptions, make_report
from qkv.tasks.report.report import RunReport

__all__ = ["Advice", "ReportOptions", "RunReport", "make_report"]
