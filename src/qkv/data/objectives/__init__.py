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
