"""`qkv report`: is my model good, and what next?

judges      predictions and scores of each task     leakage         evaluation records in the training data
score       the score beside baselines, by class    learning_curve  what twice the data would bring
baselines   simple predictions to compare with      fit             over- and underfitting from the curves
errors      the worst and the surest errors         facts, rules_…  what advice depends on, and when it is given
data        the records of a run, what was cut      advice, report  all rules; all of it: `make_report`
"""

from qkv.tasks.report.facts import Advice
from qkv.tasks.report.report import ReportOptions, RunReport, make_report

__all__ = ["Advice", "ReportOptions", "RunReport", "make_report"]
