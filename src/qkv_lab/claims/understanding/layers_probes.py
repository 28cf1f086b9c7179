"""Probes: parts of speech are found in the first layers of an encoder, grammatical relations in later ones."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from qkv import Tokenizer, UsageError, build, inside
from qkv.data import read
from qkv.data.encode.align import char_span_to_tokens
from qkv.models import Network
from qkv.train.run.load import load_model
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.grammar import GrammarWord, make_sentences, split_lexicon
from qkv_lab.probe import probe_accuracy
from qkv_lab.table import Point, Table

GENERATED = "accuracy of probes, generated sentences"
TREEBANK = "accuracy of probes, treebank"
PROBE_ACCURACY = "accuracy of probes on the vector at a word"
TAG, RELATION = "part of speech", "relation"
OWN, BEFORE = "part of speech of the word", "part of speech of the word before"
TRAINED, UNTRAINED = "", ", untrained encoder"
MODEL = "en-fr"
MAX_WORDS = 40


class LabelledSentence(NamedTuple):
    """Words, and the labels of each word by property."""

    words: list[str]
    labels: dict[str, list[str]]


@dataclass(frozen=True)
class LayersProbesSettings:
    """The number of sentences that probes are fitted and tested on."""

    train_sentences: int = 600
    test_sentences: int = 250


def run(experiment: Experiment) -> Iterator[Point]:
    """Fit a probe for each property on each layer of a trained encoder, and on one with random weights."""
    settings, stored = experiment.settings, load_model(MODEL)
    tokenizer = stored.tokenizer
    assert tokenizer is not None
    networks = {TRAINED: stored.network, UNTRAINED: build(stored.config).eval()}
    sources = {GENERATED: generate_sentences(settings, experiment.seed)}
    if experiment.data is not None:
        sources[TREEBANK] = read_treebank(experiment.data, settings, experiment.seed)
    for name, (train, test) in sources.items():
        for suffix, network in networks.items():
            vectors = [word_vectors(network, tokenizer, part) for part in (train, test)]
            labels = {label: [collect_labels(part, label) for part in (train, test)] for label in (TAG, RELATION)}
            for layer, (known, new) in enumerate(zip(*vectors, strict=True)):
                experiment.progress(f"{name}{suffix}", layer, len(vectors[0]))
                for label, (known_labels, new_labels) in labels.items():
                    yield Point(name, label + suffix, layer, probe_accuracy(known, known_labels, new, new_labels))
                if (name, suffix) == (GENERATED, TRAINED):
                    own, new_own = (part[:, : part.shape[1] // 2] for part in (known, new))
                    yield Point(
                        PROBE_ACCURACY, OWN, layer, probe_accuracy(own, labels[TAG][0], new_own, labels[TAG][1])
                    )
                    before = [shift_labels(part) for part in labels[TAG]]
                    yield Point(PROBE_ACCURACY, BEFORE, layer, probe_accuracy(own, before[0], new_own, before[1]))


def collect_labels(sentences: Sequence[LabelledSentence], label: str) -> list[str]:
    """The labels of all words."""
    return [value for sentence in sentences for value in sentence.labels[label]]


def shift_labels(labels: Sequence[str]) -> list[str]:
    """The label of the word before each word. The first word of a sentence follows the last word of another one."""
    return ["", *labels[:-1]]


def generate_sentences(
    settings: LayersProbesSettings, seed: int
) -> tuple[list[LabelledSentence], list[LabelledSentence]]:
    """Sentences of a grammar. The two parts share no noun, verb or adjective."""
    first, second = split_lexicon()
    train = make_sentences(settings.train_sentences, 2 * seed, first)
    test = make_sentences(settings.test_sentences, 2 * seed + 1, second)
    return [label_sentence(words) for words in train], [label_sentence(words) for words in test]


def label_sentence(words: Sequence[GrammarWord]) -> LabelledSentence:
    """A generated sentence with its labels."""
    labels = {TAG: [word.tag for word in words], RELATION: [word.relation for word in words]}
    return LabelledSentence([word.text for word in words], labels)


def read_treebank(
    path: Path, settings: LayersProbesSettings, seed: int
) -> tuple[list[LabelledSentence], list[LabelledSentence]]:
    """Random sentences of a CoNLL-U file. Subtypes of relations are left out: nsubj:pass is nsubj."""
    columns = {"tokens": "form", "tags": "upos", "relations": "deprel"}
    found = []
    for record in read(path, format="conllu", columns=columns):
        words, relations = record.fields["tokens"], [relation.split(":")[0] for relation in record.fields["relations"]]
        if len(words) <= MAX_WORDS:
            found.append(LabelledSentence(words, {TAG: record.fields["tags"], RELATION: relations}))
    wanted = settings.train_sentences + settings.test_sentences
    if len(found) < wanted:
        raise UsageError(f"--data {path}: {len(found)} sentences, but this size needs {wanted}; use a larger file")
    chosen = random.Random(seed).sample(found, wanted)
    return chosen[: settings.train_sentences], chosen[settings.train_sentences :]


def word_vectors(network: Network, tokenizer: Tokenizer, sentences: Sequence[LabelledSentence]) -> list[Tensor]:
    """The vectors of all words in the embedding and after each layer of the encoder, (N, 2·C) each.

    The vector of a word is the mean over its subwords, and beside it the vector of the token after the word.
    """
    texts = [" ".join(sentence.words) for sentence in sentences]
    examples = inside.encode_examples(network, tokenizer, [(text, "") for text in texts])
    sites = ["encoder.0.resid_pre", *(f"encoder.{i}.resid_post" for i in range(network.config.encoder.layers))]  # type: ignore[union-attr]
    layers: list[list[Tensor]] = [[] for _ in sites]
    traces = inside.trace_many(network, examples, sites=sites, batch_size=64)
    for sentence, text, trace in zip(sentences, texts, traces, strict=True):
        _, offsets = tokenizer.encode_with_offsets(text)
        start = 0
        for word in sentence.words:
            first, last = char_span_to_tokens(offsets, start, start + len(word)) or (0, 0)
            start += len(word) + 1
            for layer, site in zip(layers, sites, strict=True):
                layer.append(torch.cat([trace[site][first : last + 1].mean(0), trace[site][last + 1]]))
    return [torch.stack(layer) for layer in layers]


def check(table: Table) -> list[Check]:
    """Layers add more for relations than for parts of speech; an untrained encoder adds little.

    The first check is about the treebank if there is one. It holds without it as well, for generated sentences.
    """
    checks = []
    for name in (source for source in (TREEBANK, GENERATED) if source in table.measures()):
        where = name.removeprefix("accuracy of probes, ")
        curves = {
            label + suffix: list(table.curve(name, label + suffix).values())
            for label in (TAG, RELATION)
            for suffix in (TRAINED, UNTRAINED)
        }
        depths = [expected_layer(curves[label]) for label in (TAG, RELATION)]
        gains = {label: max(curve) - curve[0] for label, curve in curves.items()}
        checks += [
            Check(
                f"{where}: layers add more for relations than for parts of speech (at least 1.5 times as much)",
                gains[RELATION] >= 1.5 * gains[TAG],
                f"+{gains[RELATION]:.1%} and +{gains[TAG]:.1%}",
            ),
            Check(
                f"{where}: relations are found deeper than parts of speech (by the mean layer of the gains)",
                depths[1] > depths[0],
                f"layers {depths[1]:.1f} and {depths[0]:.1f}",
            ),
            Check(
                f"{where}: an untrained encoder adds less than half of this for relations",
                gains[RELATION + UNTRAINED] < gains[RELATION] / 2,
                f"+{gains[RELATION + UNTRAINED]:.0%}",
            ),
        ]
    return checks


def expected_layer(accuracies: Sequence[float]) -> float:
    """The mean of the layers, weighted by how much each layer adds to the accuracy (Tenney et al. 2019)."""
    gains = [max(0.0, after - before) for before, after in pairwise(accuracies)]
    return sum(layer * gain for layer, gain in enumerate(gains, start=1)) / max(sum(gains), 1e-9)


def example() -> None:
    """The idea in a few lines."""
    import torch

    import qkv

    model, site = qkv.load("en-fr"), "encoder.5.resid_post"  # the last layer
    texts = ("my watch is old .", "the watch is new .", "we watch the old dog .")  # noun, noun, verb
    vectors = [model.trace(text, "", sites=[site])[site][1:3].flatten() for text in texts]
    for other in (1, 2):
        print(texts[0], "|", texts[other], f"cosine {torch.cosine_similarity(vectors[0], vectors[other], dim=0):.2f}")


CLAIM = Claim(
    name="layers-probes",
    chapter="understanding",
    title="Layers add more to relations between words than to parts of speech",
    quotes=(
        Quote("Early layers capture simpler patterns (e.g., local syntax)", "inside"),
        Quote("Each layer refines embeddings further using the outputs of the previous one.", "inside"),
    ),
    question="Which layer of a trained encoder knows the part of speech of a word, and which its relation, such as "
    "subject or object?",
    method="The model is the encoder of en-fr, the translator that comes with qkv: six layers, trained on translations "
    "only. A linear classifier (a probe) reads the part of speech or the dependency relation of each word from the "
    "vectors of one layer; layer 0 is the embedding. A word is represented by its own vector and the vector of the "
    "token after it. The sentences come from a small grammar in which many words are nouns and verbs, and the words "
    "of the test sentences are new. With --data, the sentences of a treebank are probed, too. The comparison is the "
    "same encoder with random weights.",
    lesson="A translator has to know who does what to whom, so its encoder computes it, although nobody labelled it. "
    "The part of speech depends mostly on the word and its neighbours, and the first layers suffice. The relation "
    "depends on the structure of the sentence, and every layer adds to it. In an encoder with random weights, layers "
    "only mix words, and probes get worse. The vector at a position does not only describe the word of that "
    "position: this encoder copies much of each word to the next position. There, a probe reads the previous word "
    "more accurately than the word itself. Probes that look at one position only would miss this.",
    limits="A probe shows that a property can be read, not that the model uses it. This is one small encoder. Tone, "
    "style or facts, which the notes also name, are not measured.",
    settings={
        "mini": LayersProbesSettings(20, 10),
        "small": LayersProbesSettings(),
        "full": LayersProbesSettings(1500, 450),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=GENERATED, x="layer"),
        Chart(measure=TREEBANK, x="layer"),
        Chart(measure=PROBE_ACCURACY, x="layer"),
    ),
    example=example,
    optional_data="a treebank in CoNLL-U format, such as en_ewt-ud-dev.conllu of Universal Dependencies",
)
