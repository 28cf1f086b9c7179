"""`qkv report`: is my model good, and what next?

make        all of it: `make_report`                leakage         evaluation records in the training data
score       the score beside baselines, by class    learning_curve  what twice the data would bring
baselines   simple predictions to compare with      fit             over- and underfitting from the curves
errors      the worst and the surest errors         facts, rules_…  what advice depends on, and when it is given
data        the records of a run, what was cut      advice          all rules in the order of importance
report      the result, as JSON and as a page
"""

from qkv.tasks.report.facts import Advice
from qkv.tasks.report.make import ReportOptions, make_report
from qkv.tasks.report.report import RunReport

__all__ = ["Advice", "ReportOptions", "RunReport", "make_report"]
