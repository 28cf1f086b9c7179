"""Pretraining on text without labels: masked tokens, next tokens and corrupted spans, then a task with few labels."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from qkv.tasks.train import TrainingResult
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

ACCURACY = "accuracy on new sentences"
NUM_TOPICS = 8
TOPIC_WORDS, COMMON_WORDS = 20, 20
SENTENCE_WORDS = 12
# name → the keys of pretraining, and the objective of fine-tuning
OBJECTIVES: dict[str, tuple[dict[str, Any], str]] = {
    "masked tokens (BERT)": ({"objective.kind": "masked_lm", "objective.mask_prob": 0.3}, "classification"),
    "next token (GPT)": ({"objective.kind": "causal_lm"}, "classification"),
    "corrupted spans (T5)": (
        {"objective.kind": "span_corruption", "objective.mask_prob": 0.3, "objective.mean_span_length": 2.0},
        "seq2seq",
    ),
}
FAMILIES = {"masked_lm": "encoder", "causal_lm": "decoder", "span_corruption": "seq2seq"}
NEW = ", not pretrained"
RECIPE = {
    "tokenizer.kind": "word",
    "tokenizer.min_frequency": 1,
    "data.max_length": 32,
    "data.max_source_length": 32,
    "model.width": 64,
    "model.layers": 1,
    "model.heads": 4,
    "model.dropout": 0.0,
    "model.init_std": 0.1,
}


@dataclass(frozen=True)
class PretrainingSettings:
    """Sentences without labels, labelled sentences of each topic, the steps of both trainings, and the objectives."""

    sentences: int = 4000
    labelled: tuple[int, ...] = (1, 4, 16)
    test_sentences: int = 400
    pretraining_steps: int = 250
    fine_tuning_steps: int = 50
    objectives: tuple[str, ...] = tuple(OBJECTIVES)


def make_sentences(rng: Random, count: int) -> list[tuple[str, str]]:
    """Sentences with the labels of their topics. Half of the words are words of the topic, half are common words.

    A label is a common word, because an encoder-decoder writes it.
    """
    sentences = []
    for i in range(count):
        topic = i % NUM_TOPICS
        choices = [(f"t{topic}w", TOPIC_WORDS), ("c", COMMON_WORDS)]
        picked = (rng.choice(choices) for _ in range(SENTENCE_WORDS))
        sentences.append((" ".join(f"{prefix}{rng.randrange(size)}" for prefix, size in picked), f"c{topic}"))
    return sentences


def run(experiment: Experiment) -> Iterator[Point]:
    """Pretrain with each objective, and fine-tune with few labels: the pretrained model, and a new one."""
    settings, rng = experiment.settings, Random(experiment.seed)
    text = experiment.write_texts("text.jsonl", (text for text, _ in make_sentences(rng, settings.sentences)))
    held_out = experiment.write_texts("held-out.jsonl", (text for text, _ in make_sentences(rng, NUM_TOPICS)))
    test = write_labelled(experiment, "test", make_sentences(rng, settings.test_sentences))
    labelled = {
        count: write_labelled(experiment, f"labelled-{count}", make_sentences(rng, count * NUM_TOPICS))
        for count in settings.labelled
    }
    for name in settings.objectives:
        objective, task = OBJECTIVES[name]
        budget = {"train.steps": settings.pretraining_steps, "train.batch_tokens": 1024, "train.lr": 3e-3}
        keys = {**RECIPE, **objective, **budget, "data.train": text, "data.valid": held_out}
        pretrained = experiment.train(name, keys)
        folder = pretrained.recipe.run
        new_model = {**RECIPE, "model.family": FAMILIES[objective["objective.kind"]], "tokenizer.from": folder}
        for series, start in ((name, {"model.from": folder}), (name + NEW, new_model)):
            for count, files in labelled.items():
                keys = {
                    **start,
                    "objective.kind": task,
                    "data.max_source_length": 32,
                    "data.max_length": 32,
                    "data.train": files[task],
                    "data.valid": test[task],
                    "train.steps": settings.fine_tuning_steps,
                    "train.batch_tokens": 512,
                    "train.lr": 3e-3,
                    "train.eval_examples": settings.test_sentences,
                }
                yield Point(ACCURACY, series, count, accuracy(experiment.train(f"{series} {count}", keys)))


def write_labelled(experiment: Experiment, name: str, sentences: list[tuple[str, str]]) -> dict[str, str]:
    """Write sentences with their labels, for a classifier and for an encoder-decoder that writes the label."""
    fields = {"classification": ("text", "label"), "seq2seq": ("source", "target")}
    return {
        task: experiment.write_records(
            f"{name}-{task}.jsonl", (dict(zip(names, pair, strict=True)) for pair in sentences)
        )
        for task, names in fields.items()
    }


def accuracy(trained: TrainingResult) -> float:
    """The fraction of test sentences with the right label."""
    metrics = trained.run_end.metrics
    return metrics["accuracy"] if "accuracy" in metrics else metrics["exact_match"]


def check(table: Table) -> list[Check]:
    """Every kind of pretraining helps, most with few labels; an encoder is expected to be the best classifier."""
    counts, names = table.xs(ACCURACY), [name for name in table.series(ACCURACY) if not name.endswith(NEW)]
    few, many = counts[len(counts) // 2], counts[-1]
    gains, late_gains = (
        [table.difference(ACCURACY, (name, count), (name + NEW, count))[0] for name in names] for count in (few, many)
    )
    scores = [table.mean(ACCURACY, name, counts[0]) for name in names]
    return [
        Check(
            f"with {few} labelled sentences of each topic, each kind of pretraining adds at least 0.15 to the accuracy",
            min(gains) >= 0.15,
            ", ".join(f"{name} {gain:+.2f}" for name, gain in zip(names, gains, strict=True)),
        ),
        Check(
            f"pretraining replaces labels: it adds less with {many} labelled sentences of each topic",
            all(late < early for early, late in zip(gains, late_gains, strict=True)),
            ", ".join(f"{name} {gain:+.2f}" for name, gain in zip(names, late_gains, strict=True)),
        ),
        Check(
            f"with {counts[0]} labelled sentence of each topic, the encoder is best, by at least 0.02",
            all(scores[0] >= other + 0.02 for other in scores[1:]),
            ", ".join(f"{name} {score:.3f}" for name, score in zip(names, scores, strict=True)),
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    from random import Random

    from qkv.data.objectives.table import OBJECTIVES

    rng, words = Random(0), ["the", "cat", "sat", "on", "the", "mat"]
    masked = [word if rng.random() > 0.3 else "[MASK]" for word in words]
    print("masked tokens   ", " ".join(masked), "→ the masked words")
    print("next token      ", " ".join(words[:-1]), "→ each next word, up to", words[-1])
    print("corrupted spans ", "the cat <1> the mat", "→ <1> sat on")
    for kind in ("masked_lm", "causal_lm", "span_corruption"):
        print(kind, "is an objective of:", OBJECTIVES[kind].families)


CLAIM = Claim(
    name="pretraining",
    chapter="uses",
    title="Pretraining replaces labels",
    quotes=(
        Quote("Masked Language Modeling (MLM), where random words are masked and predicted from context.", "inside"),
        Quote("Excellent at *understanding language* by learning deep contextual embeddings.", "inside"),
    ),
    question="How much does pretraining on text without labels help a classifier that has few labels?",
    method="A sentence has a topic: half of its words come from the 20 words of its topic, half are common words. An "
    "encoder, a decoder and an encoder-decoder are pretrained on the same sentences, without labels. Then each learns "
    "the eight topics from few labelled sentences. A new model with the same layers and the same tokenizer gets the "
    "same labelled sentences and the same steps. The encoder-decoder writes the label as text.",
    lesson="To predict a missing word, a model has to infer the topic from the other words, so pretraining gives "
    "words of the same topic similar vectors. One label then counts for all of these words, also for those that no "
    "labelled sentence contains. A new model knows nothing about a word that it has not seen with a label. All three "
    "objectives teach this. They differ in how much they learn from a sentence: the next-token objective has a label "
    "at every position, the others only at the masked ones. So a decoder can learn to understand as well.",
    limits="The topics are artificial, the order of the words has no meaning, and the models are tiny. On real text, "
    "pretraining needs far more steps before it helps. Decoders lose when a task needs the words to the right of each "
    "word (context-bidirectional).",
    settings={
        "mini": PretrainingSettings(40, (1,), 8, 2, 2, ("masked tokens (BERT)",)),
        "small": PretrainingSettings(),
        "full": PretrainingSettings(20_000, (1, 2, 4, 8, 16, 32, 64), 1000, 2000, 100),
    },
    run=run,
    check=check,
    charts=(Chart(measure=ACCURACY, x="labelled sentences of each topic", log_x=True),),
    example=example,
)
