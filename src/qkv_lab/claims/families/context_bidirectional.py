"""An encoder reads the words on both sides. With a causal mask, a tag that a later word decides is a guess."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch

from qkv.models.runtime import eval_mode
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

ACCURACY = "tag accuracy"
MASKS = {"bidirectional (encoder)": "encoder", "causal (decoder)": "decoder"}
OFFSETS = (-4, -2, -1, 1, 2, 4)
RECIPE = {
    "objective.kind": "tagging",
    "tokenizer.kind": "word",
    "tokenizer.min_frequency": 1,
    "data.max_length": 32,
    "model.width": 64,
    "model.layers": 2,
    "model.heads": 4,
    "model.dropout": 0.0,
    "train.batch_tokens": 1024,
    "train.lr": 3e-3,
    "train.eval_examples": 1,
}
OUTSIDE = "outside"


@dataclass(frozen=True)
class ContextBidirectionalSettings:
    """The number of sentences, of their words, and of training steps."""

    train_sentences: int = 2000
    test_sentences: int = 400
    sentence_words: int = 16
    steps: int = 200


def make_sentence(rng: Random, num_words: int) -> tuple[list[str], list[int], list[str]]:
    """Random words, for each word the offset of the word that decides its tag, and the tags.

    The word "after2b" has the colour b, and its tag is the colour of the word two positions after it.
    """
    offsets = [rng.choice(OFFSETS) for _ in range(num_words)]
    colours = [rng.choice("ab") for _ in range(num_words)]
    words = [
        f"{'before' if offset < 0 else 'after'}{abs(offset)}{colour}"
        for offset, colour in zip(offsets, colours, strict=True)
    ]
    tags = [colours[i + offset] if 0 <= i + offset < num_words else OUTSIDE for i, offset in enumerate(offsets)]
    return words, offsets, tags


def run(experiment: Experiment) -> Iterator[Point]:
    """Train a tagger with either mask, and measure its accuracy by the offset of the deciding word."""
    settings, rng = experiment.settings, Random(experiment.seed)
    keys = {**RECIPE, "train.steps": settings.steps}
    for split, count in (("train", settings.train_sentences), ("valid", 8)):
        sentences = (make_sentence(rng, settings.sentence_words) for _ in range(count))
        records = ({"tokens": words, "tags": tags} for words, _, tags in sentences)
        keys[f"data.{split}"] = experiment.write_records(f"{split}.jsonl", records)
    test = [make_sentence(rng, settings.sentence_words) for _ in range(settings.test_sentences)]
    for name, family in MASKS.items():
        trained = experiment.train(name, {**keys, "model.family": family})
        ids = torch.tensor([trained.tokenizer.encode(" ".join(words)) for words, _, _ in test])
        with torch.no_grad(), eval_mode(trained.network):
            logits = trained.network(ids)[:, 1:-1]  # without [CLS] and [SEP]
        predicted = [[trained.config.head.labels[k] for k in row] for row in logits.argmax(dim=2).tolist()]
        for offset in OFFSETS:
            correct = [
                guess == tag
                for (_, offsets, tags), guesses in zip(test, predicted, strict=True)
                for other, tag, guess in zip(offsets, tags, guesses, strict=True)
                if other == offset and tag != OUTSIDE
            ]
            yield Point(ACCURACY, name, offset, sum(correct) / len(correct))


def check(table: Table) -> list[Check]:
    """Both masks read the words before; only the bidirectional one reads the words after."""
    encoder, decoder = MASKS
    before, after = [o for o in OFFSETS if o < 0], [o for o in OFFSETS if o > 0]
    both = min(table.mean(ACCURACY, encoder, offset) for offset in OFFSETS)
    causal = [[table.mean(ACCURACY, decoder, offset) for offset in side] for side in (before, after)]
    return [
        Check(
            "the bidirectional tagger reaches 0.95 at every offset, and the causal one is at chance (0.45–0.55) if a "
            "later word decides",
            both >= 0.95 and all(0.45 <= value <= 0.55 for value in causal[1]),
            f"bidirectional at least {both:.2f}; causal {min(causal[1]):.2f} to {max(causal[1]):.2f}",
        ),
        Check(
            "the causal tagger also reaches 0.95 if an earlier word decides",
            min(causal[0]) >= 0.95,
            f"at least {min(causal[0]):.2f}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    from qkv.blocks import Mask, make_layout

    layout = make_layout(torch.zeros(1, 5))
    for causal in (False, True):
        mask = Mask(layout, layout, causal=causal).dense()[0, 0]  # row: query, column: key
        print("causal" if causal else "bidirectional:", "word 2 reads the words", mask[2].nonzero().flatten().tolist())


CLAIM = Claim(
    name="context-bidirectional",
    chapter="families",
    title="An encoder reads both sides; a causal mask hides the right one",
    quotes=(
        Quote("Fully bidirectional – each token can attend to tokens both before and after it.", "inside"),
        Quote("But we want bidirectional context, like in a bidirectional RNN, in the encoder.", "lecture"),
    ),
    question="Can a tagger use a word that comes after the word that it tags?",
    method="Each word of a random sentence has a colour, and its tag is the colour of another word, one to four "
    "positions before or after it. The same tagger is trained as an encoder and as a decoder. The two differ only in "
    "the mask: they have the same layers, the same number of parameters, the same data and the same steps.",
    lesson="The hidden state of a token depends only on the tokens that its mask lets it attend to, in every layer. "
    "A causal model therefore has no information about a word to the right, whatever its size and however long it is "
    "trained. This is why encoders suit tagging, classification and search. The mask is also what makes a decoder "
    "able to generate: its hidden states do not change when the next token is added.",
    limits="In real text the left context often suffices to guess a tag. A decoder can tag in other ways: it can read "
    "the sentence first and then write the tags.",
    settings={
        "mini": ContextBidirectionalSettings(train_sentences=50, test_sentences=20, sentence_words=12, steps=5),
        "small": ContextBidirectionalSettings(),
        "full": ContextBidirectionalSettings(train_sentences=10_000, test_sentences=2000, steps=1000),
    },
    run=run,
    check=check,
    charts=(Chart(measure=ACCURACY, x="position of the deciding word, relative to the tagged word"),),
    example=example,
)
