"""Studies vary one part of a recipe, train several seeds of each variant, and draw the conclusions that the numbers
allow.

plan         what is compared: the recipe, the variants, the seeds; study.json
match        the same budget for all variants: FLOPs, parameters, tokens or seconds
engine       run the missing runs of a study, or seeds of a claim of the lab
run          train the runs of a study, tune variants, and read the results of finished runs
paired       mean and standard deviation over seeds, the paired difference, how many seeds would settle it
result       the result: rows, comparisons, verdicts in words
"""

from qkv.tasks.study.plan import StudyPlan, create, extend, is_study, open_study
from qkv.tasks.study.result import StudyResult, VariantRow
from qkv.tasks.study.run import read_study, run_study

__all__ = [
    "StudyPlan",
    "StudyResult",
    "VariantRow",
    "create",
    "extend",
    "is_study",
    "open_study",
    "read_study",
    "run_study",
]
