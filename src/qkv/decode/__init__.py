"""Getting text out of a model. One loop, four roles.

run        run the model: prefill, step          filters    say what may come next
choose     the likeliest, or a draw              beam       rank sequences: beam search
generate   the loop, and scoring a given text    choice     filter, choose and tell, between two steps
options    what may be asked                     result     what is given

Around it: answers that must match (constrain), guesses that save time (speculate), many requests at once (engine),
steps without the host (static, engine_step), int8 and leaner steps on a CPU (quantise, fast_cpu, fast_encode, flat,
forks, packed), and whether a CPU computes in bfloat16 (half).
"""

from qkv.decode.constrained.constraints import grammar, json_schema, regex
from qkv.decode.cpu.int8 import quantize
from qkv.decode.engine.engine import Engine
from qkv.decode.engine.request import Request
from qkv.decode.generate import generate, score
from qkv.decode.options import Constraint, GenerationOptions
from qkv.decode.result import GenerationResult, SearchCandidate, SearchStep, TokenLogprob
from qkv.decode.selection import NonFiniteLogits
from qkv.decode.sequence import OnText
from qkv.decode.speculative.draft import DraftModel, PromptLookup
from qkv.decode.speculative.speculate import SpeculativeResult, speculate

__all__ = [
    "Constraint",
    "DraftModel",
    "Engine",
    "GenerationOptions",
    "GenerationResult",
    "NonFiniteLogits",
    "OnText",
    "PromptLookup",
    "Request",
    "SearchCandidate",
    "SearchStep",
    "SpeculativeResult",
    "TokenLogprob",
    "generate",
    "grammar",
    "json_schema",
    "quantize",
    "regex",
    "score",
    "speculate",
]
