"""Objectives turn encoded records into training examples. Each has its own file, and a row in `table.py`.

| class | the model learns to predict | fields |
|---|---|---|
| `CausalLM` | the next token of a document, or of the answers in a chat | `ids` (`answer`) |
| `MaskedLM` | masked tokens | `ids` (`words`) |
| `NextSentence` | masked tokens, and whether two segments follow each other | `ids`, `sentences` (`words`) |
| `SpanCorruption` | the spans removed from a text | `ids` |
| `Denoising` | the original of a corrupted text | `ids` (`sentences`) |
| `Seq2SeqLM` | a target for a source | `source`, `target` |
| `Classification` | the class of one or two texts, or a score | `first` (`second`), `label` or `score` |
| `Tagging` | the tag of each word | `ids`, `tags` |
| `QuestionAnswering` | the start and end of an answer in a passage | `question`, `context`, `answer` |
| `Contrastive` | which texts match: their embeddings should be close | `first`, `second` (`score`) |

Fields in parentheses are optional.
"""

from qkv.data.objectives.base import IGNORE_INDEX, FlatExamples, Objective, Tally
from qkv.data.objectives.causal_lm import CausalLM
from qkv.data.objectives.classification import Classification
from qkv.data.objectives.contrastive import Contrastive
from qkv.data.objectives.denoising import Denoising
from qkv.data.objectives.masked_lm import MaskedLM
from qkv.data.objectives.next_sentence import NextSentence
from qkv.data.objectives.question_answering import QuestionAnswering
from qkv.data.objectives.seq2seq import Seq2SeqLM
from qkv.data.objectives.span_corruption import SpanCorruption
from qkv.data.objectives.tagging import Tagging
from qkv.data.objectives.template import SpecialTokenTemplate

__all__ = [
    "IGNORE_INDEX",
    "CausalLM",
    "Classification",
    "Contrastive",
    "Denoising",
    "FlatExamples",
    "MaskedLM",
    "NextSentence",
    "Objective",
    "QuestionAnswering",
    "Seq2SeqLM",
    "SpanCorruption",
    "SpecialTokenTemplate",
    "Tagging",
    "Tally",
]
