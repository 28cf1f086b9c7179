"""Text generation: one decoding loop, and faster backends that give the same results.

The loop has four roles: run the model, filter the logits, choose tokens, rank sequences.

runner      runs the model: prefill and steps        filters     change the logits of the next token
sampling    chooses tokens: argmax or sampling       beam        ranks sequences: beam search
loop        combines the four roles                  selection   filters the logits and chooses tokens in one call
options     the options of a call                    result      the return values of a call
backend     chooses the code that runs a call        support     the config choices that a fast path implements
drawings    codes become images or sounds
generate    `generate` and `score`                   sequence    the tokens and the text of one sequence
cache_edits reorder and crop caches between steps

cpu/           a faster step, packed, int8, int4 weights      gpu/           steps as CUDA graphs, fused kernels
engine/        continuous batching over paged caches        speculative/   drafts and their verification
constrained/   regular expressions, JSON schemas, grammars
"""

from typing import TYPE_CHECKING

from qkv.decode.generate import generate, score
from qkv.lazy import lazy_names

if TYPE_CHECKING:
    from qkv.decode.constrained.constraints import grammar, json_schema, regex
    from qkv.decode.cpu.quantize import WeightPrecision, quantize
    from qkv.decode.drawings import Drawing, draw
    from qkv.decode.engine.engine import Engine
    from qkv.decode.engine.request import Request
    from qkv.decode.options import Constraint, GenerationOptions
    from qkv.decode.result import GenerationResult, SearchCandidate, SearchStep, TokenLogprob
    from qkv.decode.selection import NonFiniteLogits
    from qkv.decode.sequence import OnText
    from qkv.decode.speculative.draft import Draft, DraftModel, PromptLookup
    from qkv.decode.speculative.speculate import SpeculativeResult
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "constrained.constraints": "grammar json_schema regex",
            "cpu.quantize": "WeightPrecision quantize",
            "drawings": "Drawing draw",
            "engine.engine": "Engine",
            "engine.request": "Request",
            "options": "Constraint GenerationOptions",
            "result": "GenerationResult SearchCandidate SearchStep TokenLogprob",
            "selection": "NonFiniteLogits",
            "sequence": "OnText",
            "speculative.draft": "Draft DraftModel PromptLookup",
            "speculative.speculate": "SpeculativeResult",
        },
    )


__all__ = [
    "Constraint",
    "Draft",
    "DraftModel",
    "Drawing",
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
    "WeightPrecision",
    "draw",
    "generate",
    "grammar",
    "json_schema",
    "quantize",
    "regex",
    "score",
]
