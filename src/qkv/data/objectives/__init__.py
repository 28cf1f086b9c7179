"""Objectives turn encoded records into training examples. Each has its own file, and a row in `table.py`.

| class | the model learns to predict | fields |
|---|---|---|
| `CausalLMObjective` | the next token of a document, or of the answers in a chat | `ids` (`answer`) |
| `MaskedLMObjective` | masked tokens | `ids` (`words`) |
| `NextSentenceObjective` | masked tokens, and whether two segments follow each other | `ids`, `sentences` (`words`) |
| `SpanCorruptionObjective` | the spans removed from a text | `ids` |
| `DenoisingObjective` | the original of a corrupted text | `ids` (`sentences`) |
| `Seq2SeqObjective` | a target for a source | `source`, `target` |
| `ClassificationObjective` | the class of one or two texts, or a score | `first` (`second`), `label` or `score` |
| `TaggingObjective` | the tag of each word | `ids`, `tags` |
| `QuestionAnsweringObjective` | the start and end of an answer in a passage | `question`, `context`, `answer` |
| `ContrastiveObjective` | which texts match: their embeddings should be close | `first`, `second` (`score`) |

Fields in parentheses are optional.
"""

from qkv.data.objectives.base import IGNORE_INDEX, ExampleCounts, FlatExamples, Objective
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.objectives.classification import ClassificationObjective
from qkv.data.objectives.contrastive import ContrastiveObjective
from qkv.data.objectives.denoising import DenoisingObjective
from qkv.data.objectives.masked_lm import MaskedLMObjective
from qkv.data.objectives.next_sentence import NextSentenceObjective
from qkv.data.objectives.question_answering import QuestionAnsweringObjective
from qkv.data.objectives.seq2seq import Seq2SeqObjective
from qkv.data.objectives.span_corruption import SpanCorruptionObjective
from qkv.data.objectives.tagging import TaggingObjective
from qkv.data.objectives.template import SpecialTokenTemplate

__all__ = [
    "IGNORE_INDEX",
    "CausalLMObjective",
    "ClassificationObjective",
    "ContrastiveObjective",
    "DenoisingObjective",
    "ExampleCounts",
    "FlatExamples",
    "MaskedLMObjective",
    "NextSentenceObjective",
    "Objective",
    "QuestionAnsweringObjective",
    "Seq2SeqObjective",
    "SpanCorruptionObjective",
    "SpecialTokenTemplate",
    "TaggingObjective",
]
