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
FREE = "unknown words cost nothing"
ORDERS = (0, 1, 4)
"""The numbers of letters that a model of the spelling of unknown words looks back."""


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
        for order in ORDERS:
            spelled = spelling_bits(unknown, texts["train"], order) if unknown else 0.0
            yield Point(BITS, spelled_by(order), name, bits + spelled / num_bytes)
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


def spelled_by(order: int) -> str:
    """The name of the losses with unknown words that are spelled."""
    return f"unknown words are spelled, letters by {order} before" if order else "unknown words are spelled by letters"


def spelling_bits(words: list[str], texts: list[str], order: int) -> float:
    """The bits that it takes to spell words letter by letter, each predicted from the letters before it.

    The model of letters is learned from the words of the texts. Contexts of all lengths up to `order` are interpolated,
    with the weights of Witten and Bell: p(c | h) = (count(hc) + kinds(h) · p(c | shorter h)) / (count(h) + kinds(h)).
    """
    letters: dict[str, Counter[str]] = {}
    for word, count in Counter(word for text in texts for word in text.split()).items():
        for length in range(order + 1):
            spelled = " " * length + f"{word} "
            for at in range(length, len(spelled)):
                letters.setdefault(spelled[at - length : at], Counter())[spelled[at]] += count

    def probability(letter: str, context: str) -> float:
        shorter = probability(letter, context[1:]) if context else 1 / 0x110000  # of all characters
        known = letters.get(context)
        if known is None:
            return shorter
        return (known[letter] + len(known) * shorter) / (known.total() + len(known))

    padded = [" " * order + f"{word} " for word in words]
    return sum(
        -math.log2(probability(word[at], word[at - order : at])) for word in padded for at in range(order, len(word))
    )


def check(table: Table) -> list[Check]:
    """At equal compute, subwords have a lower loss per byte than characters. Words depend on how unknown ones count."""
    bits, unknown = table.curve(BITS, spelled_by(ORDERS[0])), table.curve(UNKNOWN, "words")
    length, free = table.curve(LENGTH, "tokens"), table.curve(BITS, FREE)
    subwords = [name for name in bits if str(name).startswith("BPE")]
    words = {order: table.mean(BITS, spelled_by(order), "words") for order in ORDERS}
    return [
        Check(
            "at equal compute, all vocabularies of subwords have a lower loss per byte than characters",
            max(bits[name] for name in subwords) < bits["characters"],
            ", ".join(f"{name} {bits[name]:.2f}" for name in ("characters", *subwords)) + " bits",
        ),
        Check(
            "they have a lower loss than words, however a model spells the words that are unknown to it",
            max(bits[name] for name in subwords) < min(words.values()),
            ", ".join(f"{value:.2f} with letters of order {order}" for order, value in words.items())
            + f"; subwords {min(bits[name] for name in subwords):.2f} to {max(bits[name] for name in subwords):.2f}",
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
    title="Subwords beat characters at equal compute; against words, the spelling of unknown words decides",
    quotes=(
        Quote("Each token (word, subword, etc.) in the input sequence is first converted into a vector", "review"),
        Quote("**Tokenization** → Break input into tokens.", "inside"),
    ),
    question="What does a language model gain or lose with tokens that are characters, subwords or words?",
    method="Tokenizers of each kind are trained on the sources of Python's standard library, with one space between "
    "words and signs. A small model is trained on the tokens of each, for the same number of FLOPs, the output matrix "
    "included. Losses are in bits per byte, because losses per token of different tokenizers cannot be compared. All "
    "unknown words share one token, which does not say how they are spelled. We add the bits of their spelling under "
    "three models of letters, which look back no, one or four letters.",
    lesson="A character is cheap to predict, but a text has many of them, so the budget is spent on a short text and "
    "the context covers few words. A vocabulary of words makes sequences short. But its output matrix is large, most "
    "of its words are rare, and new words are unknown. Subwords make frequent words one token and spell rare ones. No "
    "word is unknown to byte-level BPE. A model of words needs a second model that spells; how good it is decides "
    "whether words or subwords win, so a comparison that leaves it out says little.",
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
