"""Subwords are the compromise between characters, whose sequences are long, and words, many of which are unknown."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from qkv import Tokenizer
from qkv.models.tables.summary import summarise_model
from qkv.tasks.prepare.prepare import prepare
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.corpus import BYTE_MODEL, write_corpus
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

BITS = "loss on held-out text (bits per byte)"
VOCABULARY = "vocabulary (tokens)"
LENGTH = "tokens for 1,000 bytes"
UNKNOWN = "unknown words of held-out text (fraction)"
FREE, SPELLED = "unknown words cost nothing", "unknown words are spelled"


@dataclass(frozen=True)
class TokenizersSettings:
    """A language model for each tokenizer, trained with the same number of FLOPs."""

    flops: float = 2.5e11
    width: int = 48
    context_tokens: int = 128
    train_bytes: int = 1_500_000
    valid_bytes: int = 60_000
    # name → kind, vocabulary
    tokenizers: tuple[tuple[str, str, int], ...] = (
        ("characters", "char", 400),
        ("BPE 500", "byte-bpe", 500),
        ("BPE 1,500", "byte-bpe", 1500),
        ("BPE 4,000", "byte-bpe", 4000),
        ("words", "word", 4000),
    )


def run(experiment: Experiment) -> Iterator[Point]:
    """Train a tokenizer of each kind, and a language model on its tokens."""
    settings = experiment.settings
    files = write_corpus(experiment, settings.train_bytes, settings.valid_bytes)
    texts = {split: separate_words(files[f"data.{split}"]) for split in ("train", "valid")}
    for name, kind, vocab_size in settings.tokenizers:
        tokenizer = Tokenizer.train(kind, iter(texts["train"]), vocab_size, special_tokens=("pad", "bos", "eos", "unk"))
        tokenizer.save(experiment.folder / name)
        keys = {
            **BYTE_MODEL,
            **files,
            "tokenizer.from": str(experiment.folder / name),
            "model.width": settings.width,
            "data.max_length": settings.context_tokens,
        }
        steps = count_steps(experiment, name, keys)
        bits = experiment.train(name, {**keys, "train.steps": steps}).run_end.metrics["bits_per_byte"]
        unknown = [word for text in texts["valid"] for word in unknown_words(tokenizer, text)]
        num_bytes = sum(len(text.encode()) for text in texts["valid"])
        yield Point(BITS, FREE, name, bits)
        yield Point(BITS, SPELLED, name, bits + spelling_bits(unknown, texts["train"]) / num_bytes)
        yield Point(VOCABULARY, "tokens", name, len(tokenizer))
        num_tokens = sum(len(tokenizer.encode(text)) for text in texts["valid"])
        yield Point(LENGTH, "tokens", name, 1000 * num_tokens / num_bytes)
        yield Point(UNKNOWN, "words", name, len(unknown) / sum(len(text.split()) for text in texts["valid"]))


def separate_words(path: str) -> list[str]:
    """Put one space between the words and signs of each text of a file, so that words lose no information."""
    texts = [json.loads(line)["text"] for line in Path(path).read_text(encoding="utf-8").splitlines()]
    texts = [" ".join(re.findall(r"\w+|[^\w\s]", text)) for text in texts]
    Path(path).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return texts


def count_steps(experiment: Experiment, name: str, keys: dict[str, Any]) -> int:
    """The number of steps of a run that the budget of FLOPs allows. The matrix of the output counts."""
    config = prepare(experiment.recipe(name, {**keys, "train.steps": 1})).config
    flops_per_token = summarise_model(config, experiment.settings.context_tokens).flops_training
    steps: float = experiment.settings.flops / flops_per_token / keys["train.batch_tokens"]
    return max(round(steps), 1)


def unknown_words(tokenizer: Tokenizer, text: str) -> list[str]:
    """The words of a text that a tokenizer cannot encode."""
    words = Counter(text.split())
    unknown = tokenizer.special_tokens.unk
    return [word for word, count in words.items() if unknown in tokenizer.encode(word) for _ in range(count)]


def spelling_bits(words: list[str], texts: list[str]) -> float:
    """The bits that it takes to spell words letter by letter, with the frequencies of letters in the texts."""
    counts = Counter(letter for text in texts for letter in text)
    total = sum(counts.values())
    return sum(-math.log2(max(counts[letter], 1) / total) for word in words for letter in f"{word} ")


def check(table: Table) -> list[Check]:
    """At equal compute, subwords have the lowest loss per byte."""
    bits, unknown = table.curve(BITS, SPELLED), table.curve(UNKNOWN, "words")
    length, free = table.curve(LENGTH, "tokens"), table.curve(BITS, FREE)
    subwords = [name for name in bits if str(name).startswith("BPE")]
    others = ("characters", "words")
    return [
        Check(
            "at equal compute, subwords have a lower loss per byte than characters and words",
            max(bits[name] for name in subwords) < min(bits[name] for name in others),
            ", ".join(f"{name} {value:.2f}" for name, value in bits.items()) + " bits",
        ),
        Check(
            "words need at most a quarter of the tokens of characters, and subwords at most a half",
            length["words"] <= length["characters"] / 4
            and fmean(length[s] for s in subwords) <= length["characters"] / 2,
            ", ".join(f"{name} {value:.0f}" for name, value in length.items()) + " for 1,000 bytes",
        ),
        Check(
            "of the words of held-out text, at least 5 % are unknown to the vocabulary of words, and none to BPE",
            unknown["words"] >= 0.05 and all(unknown[name] == 0 for name in subwords),
            f"{unknown['words']:.0%}; if they cost nothing, words seem to have {free['words']:.2f} bits per byte",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    from qkv import Tokenizer

    texts = ["the cat sat on the mat", "the cats sat on the mats", "a cat and a mat"] * 10
    for kind, vocab_size in (("char", 50), ("byte-bpe", 275), ("word", 50)):
        tokenizer = Tokenizer.train(kind, iter(texts), vocab_size)
        ids = tokenizer.encode("the dogs sat on the mat")
        print(f"{kind:8} {len(tokenizer):4} tokens in the vocabulary:", [tokenizer.id_to_token(i) for i in ids])


CLAIM = Claim(
    name="tokenizers",
    chapter="uses",
    title="Subwords beat characters and words at equal compute",
    quotes=(
        Quote("Each token (word, subword, etc.) in the input sequence is first converted into a vector", "review"),
        Quote("**Tokenization** → Break input into tokens.", "inside"),
    ),
    question="What does a language model gain or lose with tokens that are characters, subwords or words?",
    method="Tokenizers of each kind are trained on the sources of Python's standard library, with one space between "
    "words and signs. A small model is trained on the tokens of each, for the same number of FLOPs, the output matrix "
    "included. Losses are in bits per byte, because losses per token of different tokenizers cannot be compared. All "
    "unknown words share one token, which does not say how they are spelled; we add the bits of their spelling.",
    lesson="A character is cheap to predict, but a text has many of them, so the budget is spent on a short text and "
    "the context covers few words. A vocabulary of words makes sequences short. But its output matrix is large, most "
    "of its words are rare, and new words are unknown. Subwords make frequent words one token and spell rare ones. No "
    "word is unknown to byte-level BPE.",
    limits="The best size of a vocabulary depends on the model and on the data. Large models use vocabularies of "
    "32,000 to 250,000 subwords. A model of words can get more from its budget with a cheaper output, such as an "
    "adaptive softmax.",
    settings={
        "mini": TokenizersSettings(
            2e8,
            width=32,
            train_bytes=8000,
            valid_bytes=2000,
            tokenizers=(("characters", "char", 400), ("BPE 300", "byte-bpe", 300), ("words", "word", 300)),
        ),
        "small": TokenizersSettings(),
        "full": TokenizersSettings(4e12, width=128, train_bytes=10_000_000, valid_bytes=500_000),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=BITS, x="tokens"),
        Chart(measure=LENGTH, x="tokens"),
        Chart(measure=UNKNOWN, x="tokens"),
    ),
    example=example,
)
