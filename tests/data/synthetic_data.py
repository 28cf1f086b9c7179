"""Synthetic data for tests: a tokenizer, small corpora, one instance of every objective, and a slow way to read it."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from hypothesis import settings

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.encode.encoders import EncodeText
from qkv.data.objectives import Objective
from qkv.data.objectives.base import FlatExamples
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.objectives.classification import ClassificationObjective
from qkv.data.objectives.contrastive import ContrastiveObjective
from qkv.data.objectives.denoising import DenoisingObjective
from qkv.data.objectives.masked_lm import MaskedLMObjective
from qkv.data.objectives.next_sentence import NextSentenceObjective
from qkv.data.objectives.question_answering import EncodeAnswer, QuestionAnsweringObjective
from qkv.data.objectives.seq2seq import Seq2SeqObjective
from qkv.data.objectives.span_corruption import SpanCorruptionObjective
from qkv.data.objectives.tagging import TaggingObjective
from qkv.data.records import FileLocation, Record
from qkv.text import Tokenizer

quick = settings(max_examples=40, deadline=None, derandomize=True)

ROLES = ("pad", "bos", "eos", "mask", "sep", "cls")
LOREM = "the cat sat on a mat. it was warm! did the dog see it? nobody knows. so they slept on, and on; then woke. "


@lru_cache
def tokenizer(template: str = "bert") -> Tokenizer:
    """Bytes as tokens, with every special role and 100 sentinels."""
    return Tokenizer.train("byte", iter([]), vocab_size=400, special_tokens=ROLES, num_sentinels=100, template=template)


def record(**fields) -> Record:
    return Record(fields, FileLocation("made.jsonl", 1))


def records(texts: list[str]) -> list[Record]:
    return [record(text=text) for text in texts]


def token_lists(lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Ordinary ids (no special ones), every list different."""
    random = np.random.default_rng(seed)
    return [random.integers(150, 350, length).tolist() for length in lengths]


def documents(lengths: list[int], seed: int = 0) -> InMemoryExamples:
    return InMemoryExamples([{"ids": ids} for ids in token_lists(lengths, seed)], ["ids"])


def paired(lengths: list[tuple[int, int]], names: tuple[str, str] = ("source", "target")) -> InMemoryExamples:
    sides = [token_lists([pair[side] for pair in lengths], seed=side) for side in (0, 1)]
    return InMemoryExamples([dict(zip(names, pair, strict=True)) for pair in zip(*sides, strict=True)], names)


def texts(count: int = 24) -> list[str]:
    return [LOREM[number % 7 : number % 7 + 9 * number] for number in range(1, count + 1)]


def marked_texts() -> InMemoryExamples:
    return InMemoryExamples.from_records(records(texts()), EncodeText(tokenizer(), words=True, sentences=True))


def questions() -> InMemoryExamples:
    made = []
    for number, context in enumerate(texts(12)):
        begin = min(3 * number, len(context) - 4)
        answers = [context[begin : begin + 4]] if number % 4 else []
        made.append(record(question="who?", context=context, answers=answers, starts=[begin] * len(answers)))
    return InMemoryExamples.from_records(made, EncodeAnswer(tokenizer()))


RAGGED = [0, 1, 2, 3, 17, 40, 64, 65, 128, 7, 300, 5, 5, 31, 33, 32]
PAIRS = [(1 + (7 * i) % 23, 1 + (11 * i) % 29) for i in range(40)]


def labelled() -> InMemoryExamples:
    lists = token_lists([one for one, _ in PAIRS]), token_lists([two for _, two in PAIRS], 1)
    made = [{"first": a, "second": b, "label": [i % 3]} for i, (a, b) in enumerate(zip(*lists, strict=True))]
    return InMemoryExamples(made)


def tagged() -> InMemoryExamples:
    return InMemoryExamples([{"ids": ids, "tags": [i % 5 for i in ids]} for ids in token_lists([9, 1, 30, 64, 100, 2])])


OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "next token": lambda: CausalLMObjective(documents(RAGGED), tokenizer(), max_length=32),
    "next token, shifted": lambda: CausalLMObjective(documents(RAGGED), tokenizer(), max_length=32, random_offset=True),
    "masked": lambda: MaskedLMObjective(documents(RAGGED), tokenizer(), max_length=32),
    "masked, whole words": lambda: MaskedLMObjective(
        marked_texts(), tokenizer(), max_length=32, whole_word_masking=True
    ),
    "next sentence": lambda: NextSentenceObjective(marked_texts(), tokenizer(), max_length=64, whole_word_masking=True),
    "span corruption": lambda: SpanCorruptionObjective(documents(RAGGED), tokenizer(), max_source_length=48),
    "denoise": lambda: DenoisingObjective(marked_texts(), tokenizer(), max_length=48, permute_sentences=True),
    "pairs": lambda: Seq2SeqObjective(paired(PAIRS), tokenizer(), max_length=40, max_source_length=32),
    "pairs, cut": lambda: Seq2SeqObjective(
        paired(PAIRS), tokenizer(), max_length=12, max_source_length=10, too_long="truncate"
    ),
    "classify": lambda: ClassificationObjective(labelled(), tokenizer(), max_length=64),
    "tags": lambda: TaggingObjective(tagged(), tokenizer(), max_length=32, too_long="split"),
    "answers": lambda: QuestionAnsweringObjective(
        questions(), tokenizer(), max_length=40, overlap=8, max_question_length=10
    ),
    "contrast": lambda: ContrastiveObjective(
        paired(PAIRS, ("first", "second")), tokenizer(), max_length=48, max_source_length=40
    ),
}


def parts(pieces: FlatExamples) -> list[dict[str, list]]:
    """Every example by itself, as plain lists: the slow way to look at what an objective built."""
    listed: list[dict[str, list]] = [{} for _ in pieces.lengths]
    for name, lengths in (("lengths", pieces.lengths), ("source_lengths", pieces.source_lengths)):
        fields = ("ids", "token_type_ids") if name == "lengths" else ("source_ids",)
        fields = {field: getattr(pieces, field) for field in fields}
        if name == "lengths" and "tokens" in pieces.labels:
            fields["tokens"] = pieces.labels["tokens"]
        for field, values in fields.items():
            if values is not None:
                ends = np.cumsum(lengths)
                for example, (end, length) in enumerate(zip(ends, lengths, strict=True)):
                    listed[example][field] = values[end - length : end].tolist()
    for field, values in pieces.labels.items():
        if field != "tokens":
            for example in range(len(listed)):
                listed[example][field] = values[example].tolist()
    return listed


def tokens_to_char_span(text: str, offsets: list[tuple[int, int]], first: int, last: int) -> tuple[int, int]:
    """The (start, end) characters of the tokens first … last, without white space at both ends."""
    start, end = offsets[first][0], offsets[last][1]
    found = text[start:end]
    return start + len(found) - len(found.lstrip()), max(end - len(found) + len(found.rstrip()), start)
