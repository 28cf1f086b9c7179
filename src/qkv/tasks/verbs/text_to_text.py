"""Text to text: generate a target text for a source text (translation, summaries, spelling, dates).

In an evaluation, a target is generated once for each source, even if several records have the same source. The
prediction is compared with the record's target; `exact_match_any` and `word_error_rate` compare it with the best of all
targets of the source.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from qkv.data.records import Record
from qkv.decode import GenerationOptions
from qkv.errors import QkvError
from qkv.models import Config
from qkv.tasks import metrics
from qkv.tasks.baselines import copy_first_sentence, copy_source, predict_nearest
from qkv.tasks.evaluation import EvaluationOptions, select_usable
from qkv.tasks.metrics.text import ROUGE_NAMES, References, has_rouge
from qkv.tasks.record_task import RecordTask
from qkv.tasks.run.generate import (
    GeneratedText,
    generate_batched,
    limit_new_tokens,
    make_generation_options,
    prompt_ids,
    truncate_prompts,
)
from qkv.tasks.run.translation.options import SummariseOptions, TranslateOptions
from qkv.tasks.scorer import Baseline, Metric, Prediction, TaskScorer, has_texts
from qkv.tasks.starters.starter import SMOOTHING, Starter
from qkv.tasks.text_model import TextModel
from qkv.text import Tokenizer
from qkv.text.sentences import split_sentences

MIN_BLEU_WORDS = 3  # mean words of a target above which BLEU is useful: shorter texts have few n-grams
MAX_TER_WORDS = 60  # mean words of a target up to which TER is computed by default: its time grows with the square
SUMMARY_RATIO = 3  # if sources are longer than their targets by this factor, the task is probably summarisation: ROUGE
PER_RECORD_METRICS = (
    *("exact_match", "bleu", "bleu_lowercase", "tokenised_bleu", "sacrebleu", "chrf", "ter"),
    *ROUGE_NAMES,
)
"""The metrics that compare each record with its own target."""
BEST_REFERENCE_METRICS = ("exact_match_any", "word_error_rate")
"""The metrics that compare each source with its best target."""
METRIC_FUNCTIONS: dict[str, Callable[[Sequence[str], References], float]] = {
    name: getattr(metrics, "exact_match" if name == "exact_match_any" else name)
    for name in PER_RECORD_METRICS + BEST_REFERENCE_METRICS
}


@dataclass(frozen=True, kw_only=True)
class TextToTextEvaluation(EvaluationOptions):
    """Options of an evaluation of generated texts."""

    beam: int = 1  # number of beams
    max_tokens: int = 0  # maximum number of new tokens; 0: 1.5 times the tokens of the longest target, plus 8
    generation: Mapping[str, Any] = field(default_factory=dict)  # other fields of `GenerationOptions`


def measure_texts(
    function: Callable[[Sequence[str], References], float], predicted: Sequence[str], expected: Sequence[str]
) -> float:
    """A metric of texts with one reference each."""
    return function(predicted, [[reference] for reference in expected])


class TextScorer(TaskScorer):
    """A generated text for each source, compared by BLEU, or by exact match if targets are short."""

    modality, input_fields = "text", ("source",)
    selectable = tuple(name for name in PER_RECORD_METRICS if name != "ter")  # lower TER is better, so it cannot select
    always_measured = ("exact_match",)
    metrics: Mapping[str, Metric] = {name: partial(measure_texts, METRIC_FUNCTIONS[name]) for name in METRIC_FUNCTIONS}
    baselines: Mapping[str, Baseline] = {
        "copy of the source": Baseline(copy_source, is_cheap=True),
        "first sentence of the source": Baseline(
            copy_first_sentence, is_cheap=True, applies=lambda scorer, records: scorer.metric in ROUGE_NAMES
        ),
        "nearest source's target (BM25)": Baseline(predict_nearest),
    }

    def __init__(self, records: Sequence[Record]) -> None:
        self.targets_by_source: dict[str, list[str]] = {}
        for record in records:
            if has_texts(record, "source", "target"):
                self.targets_by_source.setdefault(record.fields["source"], []).append(record.fields["target"])
        targets = [target for several in self.targets_by_source.values() for target in several]
        self.metric = "bleu" if has_long_targets(targets) else "exact_match"
        self.metrics = {self.metric: self.metrics[self.metric], **self.metrics}

    @property
    def default_metrics(self) -> Sequence[str]:
        return default_metrics(self.targets_by_source)

    def is_usable(self, record: Record) -> bool:
        return has_texts(record, "source", "target")

    def expected(self, record: Record) -> str:
        return str(record.fields["target"])

    def predict(self, model: TextModel, records: Sequence[Record], options: Any, notes: list[str]) -> list[Prediction]:
        tokenizer, config = model.tokenizer, model.config
        max_tokens = options.max_tokens or max_target_tokens(tokenizer, [*map(self.expected, records)]) * 3 // 2 + 8
        max_tokens = limit_new_tokens(config, max_tokens)
        sources = list(dict.fromkeys(record.fields["source"] for record in records))
        prompts = [prompt_ids(tokenizer, config, source) if source.strip() else [] for source in sources]
        lengths = list(map(len, prompts))
        prompts, max_prompt = truncate_prompts(tokenizer, config, prompts, max_tokens)
        if num_long := sum(length > max_prompt for length in lengths):
            notes.append(f"{num_long:,} sources were truncated to the {max_prompt:,} tokens that fit")
        num_several = sum(len(split_sentences(source)) > 1 for source in sources) if config.reads_sentences else 0
        if num_several:
            notes.append(
                f"{num_several:,} of {len(sources):,} sources have several sentences; here, each source is read in one "
                "piece, but m.translate and qkv run read sentence by sentence"
            )
        generation = GenerationOptions(max_tokens=max_tokens, beam=options.beam, tap=model.tap, **options.generation)
        results = generate_batched(model, prompts, generation)
        if num_cut := sum(result.finish_reason == "length" for result in results):
            notes.append(f"{num_cut:,} of {len(results):,} predictions were cut off at {max_tokens} tokens")
        by_source = dict(zip(sources, results, strict=True))
        found = [by_source[record.fields["source"]] for record in records]
        return [(one.text, mean_probability(one.score, len(one.ids) + 1, options.beam)) for one in found]

    def measure_all(
        self, names: Sequence[str], predicted: Sequence[Any], expected: Sequence[Any], records: Sequence[Record]
    ) -> dict[str, float]:
        """Compute the named metrics. A source with several targets has one prediction, which is compared with all of
        them.
        """
        by_source = {record.fields["source"]: text for record, text in zip(records, predicted, strict=True)}
        best = list(by_source.values()), [self.targets_by_source[source] for source in by_source]
        return {
            name: METRIC_FUNCTIONS[name](*best)
            if name in BEST_REFERENCE_METRICS
            else self.metrics[name](predicted, expected)
            for name in names
        }

    def score_each(self, predicted: Sequence[str], expected: Sequence[str]) -> list[float]:
        """1 if the texts are equal; otherwise 0 or, if targets are long, the F1 of their words."""
        pairs = list(zip(predicted, expected, strict=True))
        if self.metric == "exact_match":
            return [metrics.exact_match([ours], [[theirs]]) for ours, theirs in pairs]
        return [metrics.answer_f1([ours], [[theirs]]) for ours, theirs in pairs]

    def signatures(self, names: Sequence[str]) -> Mapping[str, str]:
        return metrics.metric_signatures(names) | metrics.rouge_signatures(names)

    def choose_metric(self, name: str) -> None:
        """Make this the main metric if its package is installed."""
        if name not in ROUGE_NAMES or has_rouge():
            super().choose_metric(name)


def mean_probability(score: float, tokens: int, beam: int) -> float | None:
    """The geometric mean of the probabilities of the tokens; None for beam search, whose scores are normalised."""
    return math.exp(score / max(1, tokens)) if beam == 1 else None


def default_metrics(targets_by_source: Mapping[str, Sequence[str]]) -> list[str]:
    """The metrics that are useful for targets like these.

    Exact match is always included. If a source has several targets, exact match and word error rate against the best
    target are added; if targets have more than three words on average, BLEU, chrF and TER; and ROUGE if the sources are
    much longer than the targets and rouge-score is installed.
    """
    names = ["exact_match"]
    targets = [target for several in targets_by_source.values() for target in several]
    if any(len(set(several)) > 1 for several in targets_by_source.values()):
        names += ["exact_match_any", "word_error_rate"]
    if not has_long_targets(targets):
        return names
    names += ["bleu", "tokenised_bleu", "sacrebleu", "chrf"]
    mean_words = _count_words(targets) / len(targets)
    if mean_words <= MAX_TER_WORDS:
        names.append("ter")
    if metrics.has_rouge() and _count_words(targets_by_source) > SUMMARY_RATIO * mean_words * len(targets_by_source):
        names += ROUGE_NAMES
    return names


def has_long_targets(targets: Sequence[str]) -> bool:
    """Whether targets have more than three words on average, so that n-grams of words are useful."""
    return _count_words(targets) > MIN_BLEU_WORDS * len(targets)


def _count_words(texts: Iterable[str]) -> int:
    return sum(len(text.split()) for text in texts)


def max_target_tokens(tokenizer: Tokenizer, targets: Sequence[str]) -> int:
    """The number of tokens of the longest target, or of its characters if the tokenizer cannot encode a target."""
    try:
        return max(map(len, tokenizer.target.encode_batch(targets)), default=0)
    except QkvError:
        return max(map(len, targets))


class TextToText(RecordTask):
    """The base of tasks that generate a target text for a source text."""

    description = "generates a text for a text"
    objective = "seq2seq"
    inputs, target = ("source",), "target"
    calls = ("translate", "summarise", "generate", "score")
    evaluation_batch_size, max_samples = 64, 8
    generates = True
    EvalOptions, results, scorers = TextToTextEvaluation, (GeneratedText,), (TextScorer,)

    def make_options(self, values: Mapping[str, Any]) -> Any:
        """The options by name. Options that are not fields of `Options` are fields of `GenerationOptions`."""
        own = {one.name for one in fields(self.Options)}
        others = {name: value for name, value in values.items() if name not in own}
        given = {name: value for name, value in values.items() if name in own}
        if isinstance(stop := given.get("stop"), str):
            given["stop"] = [stop]
        make_generation_options(others, sorted(own))  # an error before anything runs
        return replace(super().make_options(given), generation=others)

    def select(self, config: Config, records: Sequence[Record], options: Any, notes: list[str]) -> list[Record]:
        return select_usable(records, notes, source=str, target=str)

    def find_scorer(self, config: Config, records: Sequence[Record]) -> TextScorer:
        return TextScorer(records)


class TranslateTask(TextToText):
    """Generate a text for a text, sentence by sentence if the model was trained on sentences."""

    name = "translate"
    question = "Translate texts."
    title = "Output"
    batch_size = 64
    Options = TranslateOptions
    starter = Starter(
        "From one text to another: translation, spelling, anything with a source and a target.",
        "train.tsv",
        256,
        preset="transformer-base",
        exportable_preset="marian",
        length_comment="tokens of a target sequence; the source length follows in proportion",
        objective_lines=(SMOOTHING,),
        may_have_characters=True,
    )

    def decode(self, model: TextModel, texts: Sequence[str], options: TranslateOptions) -> list[GeneratedText]:
        """Translate texts of any length. Line breaks are kept."""
        from qkv.tasks.run.translation import parts

        return parts.translate(model, texts, options)


class SummariseTask(TextToText):
    """Summarise a text; a text that is too long for the model is summarised in parts."""

    name = "summarise"
    question = "Summarise texts."
    title = "Summary"
    batch_size = 16
    Options = SummariseOptions
    starter = Starter(
        "From a long text to a short one.",
        "train.jsonl",
        256,
        preset="transformer-base",
        exportable_preset="marian",
        max_source_length=1024,
        too_long="truncate",
        length_comment="tokens of a target sequence",
        objective_lines=(SMOOTHING,),
        may_have_characters=True,
        shortens=True,
        metric="rougeL",
    )

    def decode(self, model: TextModel, texts: Sequence[str], options: SummariseOptions) -> list[GeneratedText]:
        """Summarise texts of any length."""
        from qkv.tasks.run.translation import parts

        return parts.summarise(model, texts, options)


TRANSLATE = TranslateTask()
SUMMARISE = SummariseTask()
