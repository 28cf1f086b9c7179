"""The checks of `qkv doctor`: does a model compute what it should, and can it learn?

    findings = examine(Subject(network, tokenizer, random_batch(network.config)))

finding     the result of a check                 leaks       future, padding, neighbours
subject     what is examined: network and batch   structure   tokenizer, tied weights, source, cache
table       all checks, and `examine`             learning    gradients, overfitting, learning rate
                                                  activity    dead heads and neurons, scales by depth
"""

from qkv.inside.doctor.finding import Finding, Status
from qkv.inside.doctor.subject import Subject, random_batch, take_sequences
from qkv.inside.doctor.table import CHECKS, examine, run_check

__all__ = ["CHECKS", "Finding", "Status", "Subject", "examine", "random_batch", "run_check", "take_sequences"]
