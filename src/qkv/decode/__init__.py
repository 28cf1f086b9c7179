"""Getting text out of a model. One loop, four roles.

run        run the model: prefill, step          filters    say what may come next
choose     the likeliest, or a draw              beam       rank sequences: beam search
generate   the loop, and scoring a given text    options    what may be asked       result   what is given
"""

from qkv.decode.generate import generate, score
from qkv.decode.options import Options
from qkv.decode.result import Candidate, Result, Step, TokenLogprob
from qkv.decode.writing import OnText

__all__ = ["Candidate", "OnText", "Options", "Result", "Step", "TokenLogprob", "generate", "score"]
