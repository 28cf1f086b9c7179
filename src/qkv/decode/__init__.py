"""Getting text out of a model. One loop, four roles.

run        run the model: prefill, step          filters    say what may come next
choose     the likeliest, or a draw              beam       rank sequences: beam search
generate   the loop, and scoring a given text    choice     filter, choose and tell, between two steps
options    what may be asked                     result     what is given

Around it: answers that must match (constrain), guesses that save time (speculate), many requests at once (engine),
steps without the host (static, engine_step), int8 and leaner steps on a CPU (quantise, fast_cpu, fast_encode, flat,
forks, packed), and whether a CPU computes in bfloat16 (half).
"""

from qkv.decode.choice import NotNumbers
from qkv.decode.constrain import grammar, json_schema, regex
from qkv.decode.draft import DraftModel, Lookup
from qkv.decode.engine import Engine
from qkv.decode.generate import generate, score
from qkv.decode.options import Constraint, Options
from qkv.decode.quantise import quantise
from qkv.decode.request import Request
from qkv.decode.result import Candidate, Result, Step, TokenLogprob
from qkv.decode.speculate import SpeculativeResult, speculate
from qkv.decode.writing import OnText

__all__ = [
    "Candidate",
    "Constraint",
    "DraftModel",
    "Engine",
    "Lookup",
    "NotNumbers",
    "OnText",
    "Options",
    "Request",
    "Result",
    "SpeculativeResult",
    "Step",
    "TokenLogprob",
    "generate",
    "grammar",
    "json_schema",
    "quantise",
    "regex",
    "score",
    "speculate",
]
