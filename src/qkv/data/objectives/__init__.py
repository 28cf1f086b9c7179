"""Objectives: what a model is asked to learn from encoded examples, one file each.

| class | learns to | reads the fields |
|---|---|---|
| `NextToken` | say the next token of documents; of chats, the answers only | `ids` (`answer`) |
| `MaskedLM` | say hidden tokens | `ids` (`words`) |
| `NextSentence` | say hidden tokens, and whether two parts follow each other | `ids`, `sentences` (`words`) |
| `SpanCorruption` | write the spans cut out of a text | `ids` |
| `Denoise` | write a spoiled text back whole | `ids` (`sentences`) |
| `Pairs` | write a target for a source | `source`, `target` |
| `Classify` | say the class of one or two texts, or a score | `first` (`second`), `label` or `score` |
| `Tags` | say the tag of each word | `ids`, `tags` |
| `Answers` | point at an answer in a passage | `question`, `context`, `answer` |
| `Contrast` | bring the vectors of matching texts together | `first`, `second` (`score`) |
"""

from qkv.data.objectives.answers import Answers
from qkv.data.objectives.base import IGNORE, Objective, Pieces, Tally
from qkv.data.objectives.classify import Classify
from qkv.data.objectives.contrast import Contrast
from qkv.data.objectives.denoise import Denoise
from qkv.data.objectives.frame import Frame
from qkv.data.objectives.masked import MaskedLM
from qkv.data.objectives.next_sentence import NextSentence
from qkv.data.objectives.next_token import NextToken
from qkv.data.objectives.pairs import Pairs
from qkv.data.objectives.spans import SpanCorruption
from qkv.data.objectives.tags import Tags

__all__ = [
    "IGNORE",
    "Answers",
    "Classify",
    "Contrast",
    "Denoise",
    "Frame",
    "MaskedLM",
    "NextSentence",
    "NextToken",
    "Objective",
    "Pairs",
    "Pieces",
    "SpanCorruption",
    "Tags",
    "Tally",
]
