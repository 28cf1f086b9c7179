"""Text generation: one loop with four roles, and faster backends that give the same results.

runner      runs the model: prefill, step        filters     change the logits: what may come next
sampling    chooses tokens: argmax or sampling   beam        ranks sequences: beam search
loop        the loop over the four roles         selection   filter and choose, between two steps of the model
options     the options of a call                result      what a call returns
backend     chooses what runs a call             support     the config choices that a fast path implements
generate    `generate` and `score`               cache_edits reorder and crop caches between steps

cpu/           a faster step, packed and int8 weights       gpu/           steps as CUDA graphs, fused kernels
engine/        continuous batching over paged caches        speculative/   drafts and their verification
constrained/   regular expressions, JSON schemas, grammars
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
from qkv.decode.speculative.draft import Draft, DraftModel, PromptLookup
from qkv.decode.speculative.speculate import SpeculativeResult

__all__ = [
    "Constraint",
    "Draft",
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
]
