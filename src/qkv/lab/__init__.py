"""The lab: claims of lecture notes on the Transformer, each with an experiment that tests it.

claim        a claim: its quotation, its experiment, what the experiment is expected to show, its picture
experiment   what an experiment runs with: its settings, a seed, and training on the engine that users train with
table        the measurements of all seeds: means, confidence intervals, fitted exponents
run          run a claim; results are kept in a JSON file, seed by seed
chart        the picture of a claim
book         the pages of docs/lab, written from results
loop         a plain training loop, for networks that no recipe describes
claims/      one file for each claim
"""

from qkv.lab.claim import CHAPTERS, NOTES, Chart, Check, Claim, Quote, Size
from qkv.lab.experiment import Experiment
from qkv.lab.registry import all_claims, find_claim
from qkv.lab.run import ClaimResult, run_claim
from qkv.lab.table import Point, Table

__all__ = [
    "CHAPTERS",
    "NOTES",
    "Chart",
    "Check",
    "Claim",
    "ClaimResult",
    "Experiment",
    "Point",
    "Quote",
    "Size",
    "Table",
    "all_claims",
    "find_claim",
    "run_claim",
]
