"""What the tests of rows share: a tokenizer, small made-up corpora, one of every objective, and slow readers."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from hypothesis import settings

from qkv.data.encode import EncodeAnswer, EncodeText
from qkv.data.examples import MemoryExamples
from qkv.data.objectives import (
    Answers,
    Classify,
    Contrast,
    Denoise,
    MaskedLM,
    NextSentence,
    NextToken,
    Objective,
    Pairs,
    SpanCorruption,
    Tags,
)
from qkv.data.objectives.base import Pieces
from qkv.data.records import Record, Where
from qkv.text import Tokenizer

quick = settings(max_examples=40, deadline=None, derandomize=True)

ROLES = ("pad", "start", "end", "mask", "separator", "classify")
LOREM = "the cat sat on a mat. it was warm! did the dog see it? nobody knows. so they slept on, and on; then woke. "


@lru_cache
def tokenizer(template: str = "bert") -> Tokenizer:
    """Bytes as tokens, with every special role and 100 sentinels."""
    return Tokenizer.train("byte", iter([]), size=400, roles=ROLES, sentinels=100, template=template)


def record(**fields) -> Record:
    return Record(fields, Where("made.jsonl", 1))


def records(texts: list[str]) -> list[Record]:
    return [record(text=text) for text in texts]


def token_lists(lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Ordinary ids (no special ones), every list different."""
    random = np.random.default_rng(seed)
    return [random.integers(150, 350, length).tolist() for length in lengths]


def documents(lengths: list[int], seed: int = 0) -> MemoryExamples:
    return MemoryExamples([{"ids": ids} for ids in token_lists(lengths, seed)], ["ids"])


def paired(lengths: list[tuple[int, int]], names: tuple[str, str] = ("source", "target")) -> MemoryExamples:
    sides = [token_lists([pair[side] for pair in lengths], seed=side) for side in (0, 1)]
    return MemoryExamples([dict(zip(names, pair, strict=True)) for pair in zip(*sides, strict=True)], names)


def texts(count: int = 24) -> list[str]:
    return [LOREM[number % 7 : number % 7 + 9 * number] for number in range(1, count + 1)]


def marked_texts() -> MemoryExamples:
    return MemoryExamples.encoded(records(texts()), EncodeText(tokenizer(), words=True, sentences=True))


def questions() -> MemoryExamples:
    made = []
    for number, context in enumerate(texts(12)):
        begin = min(3 * number, len(context) - 4)
        answers = [context[begin : begin + 4]] if number % 4 else []
        made.append(record(question="who?", context=context, answers=answers, starts=[begin] * len(answers)))
    return MemoryExamples.encoded(made, EncodeAnswer(tokenizer()))


RAGGED = [0, 1, 2, 3, 17, 40, 64, 65, 128, 7, 300, 5, 5, 31, 33, 32]
PAIRS = [(1 + (7 * i) % 23, 1 + (11 * i) % 29) for i in range(40)]


def labelled() -> MemoryExamples:
    lists = token_lists([one for one, _ in PAIRS]), token_lists([two for _, two in PAIRS], 1)
    made = [{"first": a, "second": b, "label": [i % 3]} for i, (a, b) in enumerate(zip(*lists, strict=True))]
    return MemoryExamples(made)


def tagged() -> MemoryExamples:
    return MemoryExamples([{"ids": ids, "tags": [i % 5 for i in ids]} for ids in token_lists([9, 1, 30, 64, 100, 2])])


OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "next token": lambda: NextToken(documents(RAGGED), tokenizer(), length=32),
    "next token, shifted": lambda: NextToken(documents(RAGGED), tokenizer(), length=32, shift=True),
    "masked": lambda: MaskedLM(documents(RAGGED), tokenizer(), length=32),
    "masked, whole words": lambda: MaskedLM(marked_texts(), tokenizer(), length=32, whole_words=True),
    "next sentence": lambda: NextSentence(marked_texts(), tokenizer(), length=64, whole_words=True),
    "span corruption": lambda: SpanCorruption(documents(RAGGED), tokenizer(), source_length=48),
    "denoise": lambda: Denoise(marked_texts(), tokenizer(), length=48, permute=True),
    "pairs": lambda: Pairs(paired(PAIRS), tokenizer(), length=40, source_length=32),
    "pairs, cut": lambda: Pairs(paired(PAIRS), tokenizer(), length=12, source_length=10, too_long="cut"),
    "classify": lambda: Classify(labelled(), tokenizer(), length=64),
    "tags": lambda: Tags(tagged(), tokenizer(), length=32, too_long="split"),
    "answers": lambda: Answers(questions(), tokenizer(), length=40, overlap=8, question_length=10),
    "contrast": lambda: Contrast(paired(PAIRS, ("first", "second")), tokenizer(), length=48, source_length=40),
}


def parts(pieces: Pieces) -> list[dict[str, list]]:
    """Every example by itself, as plain lists: the slow way to look at what an objective built."""
    listed: list[dict[str, list]] = [{} for _ in pieces.lengths]
    for name, lengths in (("lengths", pieces.lengths), ("source_lengths", pieces.source_lengths)):
        fields = ("ids", "labels", "types") if name == "lengths" else ("source_ids",)
        for field in fields:
            values = getattr(pieces, field)
            if values is not None:
                ends = np.cumsum(lengths)
                for example, (end, length) in enumerate(zip(ends, lengths, strict=True)):
                    listed[example][field] = values[end - length : end].tolist()
    for field in ("classes", "scores", "spans"):
        values = getattr(pieces, field)
        if values is not None:
            for example in range(len(listed)):
                listed[example][field] = values[example].tolist()
    return listed
