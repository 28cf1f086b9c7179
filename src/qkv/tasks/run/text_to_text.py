"""Text to text: generate a target text for a source text (translation, summaries, spelling, dates).

A target is generated once for each source, even if several records have the same source. The prediction is compared
with the record's target; `exact_match_any` and `word_error_rate` compare it with the best of all targets of the source.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from qkv.data.objectives.table import OBJECTIVES
from qkv.data.records import Record
from qkv.decode import GenerationOptions
from qkv.errors import QkvError
from qkv.models import Config
from qkv.progress import OnProgress
from qkv.tasks import metrics
from qkv.tasks.metrics.rouge import ROUGE_NAMES
from qkv.tasks.metrics.text import References
from qkv.tasks.results import GeneratedText
from qkv.tasks.run.generate import (
    generate_batched,
    limit_new_tokens,
    make_generation_options,
    prompt_ids,
    truncate_prompts,
)
from qkv.tasks.task import Evaluation, EvaluationOptions, TextModel, select_metrics, select_usable
from qkv.text import Tokenizer
from qkv.text.sentences import split_sentences
from qkv.train.watch import Sample

MIN_BLEU_WORDS = 3  # mean words of a target above which BLEU is useful: shorter texts have few n-grams
MAX_TER_WORDS = 60  # mean words of a target up to which TER is computed by default: its time grows with the square
SUMMARY_RATIO = 3  # sources that are longer than their targets by this factor are probably summarised: ROUGE
PER_RECORD_METRICS = OBJECTIVES["seq2seq"].metrics["each"]  # compare each record with its own target
BEST_REFERENCE_METRICS = OBJECTIVES["seq2seq"].metrics["best"]  # compare each source with its best target
METRIC_FUNCTIONS: dict[str, Callable[[Sequence[str], References], float]] = {
    name: getattr(metrics, "exact_match" if name == "exact_match_any" else name)
    for name in PER_RECORD_METRICS + BEST_REFERENCE_METRICS
}


def run(
    model: TextModel,
    texts: Sequence[str],
    *,
    batch_size: int = 64,
    progress: OnProgress | None = None,
    **options: Any,
) -> list[GeneratedText]:
    """Generate a result for each text, in order; `options` are the fields of `qkv.decode.GenerationOptions`.

    An empty text gives an empty result. A text longer than the model can read is an error. By default at most 64
    tokens are generated, or fewer if the model does not have that many positions.
    """
    tokenizer, config = model.tokenizer, model.config
    chosen = make_generation_options(options, also_known=("batch_size", "progress"))
    prompts = [prompt_ids(tokenizer, config, text) if text.strip() else [] for text in texts]
    limits: list[int] = []
    if "max_tokens" not in options:
        lengths = [1 if config.encoder is not None else len(prompt) for prompt in prompts]
        limits = [limit_new_tokens(config, chosen.max_tokens, length) for length in lengths]
    results = generate_batched(model.network, tokenizer, prompts, chosen, batch_size, progress, limits)
    return [GeneratedText.from_generation(text, result) for text, result in zip(texts, results, strict=True)]


def available_metrics(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics, the main one first: BLEU if the targets are long enough, else exact match."""
    targets = [target for record in records if isinstance(target := record.fields["target"], str)]
    main = "bleu" if has_long_targets(targets) else "exact_match"
    return tuple(dict.fromkeys((main, *PER_RECORD_METRICS, *BEST_REFERENCE_METRICS)))


def evaluate(model: TextModel, records: Sequence[Record], options: EvaluationOptions) -> Evaluation:
    """Generate a target for each source, and compare it with the expected target.

    `default_metrics` lists the default metrics. BLEU, if computed, is the main metric. The default of `max_tokens` is
    1.5 times the tokens of the longest target, plus 8.
    """
    tokenizer, config = model.tokenizer, model.config
    records, notes = select_usable(records, source=str, target=str)
    targets = [record.fields["target"] for record in records]
    targets_by_source: dict[str, list[str]] = {}
    for record in records:
        targets_by_source.setdefault(record.fields["source"], []).append(record.fields["target"])
    requested = [*options.metrics, "exact_match"] if options.metrics else ()
    names = select_metrics(requested, available_metrics(config, records), default_metrics(targets_by_source))
    max_tokens = options.max_tokens or max_target_tokens(tokenizer, targets) * 3 // 2 + 8
    max_tokens = limit_new_tokens(config, max_tokens)

    prompts = [prompt_ids(tokenizer, config, source) if source.strip() else [] for source in targets_by_source]
    lengths = list(map(len, prompts))
    prompts, max_prompt = truncate_prompts(tokenizer, config, prompts, max_tokens)
    if num_long := sum(length > max_prompt for length in lengths):
        notes.append(f"{num_long:,} sources were truncated to the {max_prompt:,} tokens that fit")
    num_several = sum(len(split_sentences(source)) > 1 for source in targets_by_source) if config.reads_sentences else 0
    if num_several:
        notes.append(
            f"{num_several:,} of {len(targets_by_source):,} sources have several sentences; here, each source is read "
            "in one piece, but m.translate and qkv run read sentence by sentence"
        )
    generation = GenerationOptions(max_tokens=max_tokens, beam=options.beam, **options.generation)
    results = generate_batched(model.network, tokenizer, prompts, generation, options.batch_size, options.progress)
    if num_cut := sum(result.finish_reason == "length" for result in results):
        notes.append(f"{num_cut:,} of {len(results):,} predictions were cut off at {max_tokens} tokens")

    by_source = dict(zip(targets_by_source, (result.text for result in results), strict=True))
    predictions = [by_source[record.fields["source"]] for record in records]
    each = predictions, [[target] for target in targets]
    best = list(by_source.values()), list(targets_by_source.values())
    scores = {name: METRIC_FUNCTIONS[name](*(best if name in BEST_REFERENCE_METRICS else each)) for name in names}
    samples = [
        Sample(record.fields["source"], prediction, record.fields["target"])
        for record, prediction in zip(records[: options.max_samples], predictions, strict=False)
    ]
    main = names[0] if options.metrics else "bleu" if "bleu" in names else "exact_match"
    signatures = metrics.metric_signatures(names) | metrics.rouge_signatures(names)
    return Evaluation(scores, samples, main, len(records), tuple(notes), signatures)


def default_metrics(targets_by_source: Mapping[str, Sequence[str]]) -> list[str]:
    """The metrics that are useful for targets like these.

    They are exact match; exact match and word error rate against the best target, if a source has several targets;
    BLEU, chrF and TER if targets have more than three words on average; and ROUGE, if the sources are much longer than
    the targets and rouge-score is installed.
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
    """The tokens of the longest target; its characters if the tokenizer cannot encode one of the targets."""
    try:
        return max(map(len, tokenizer.target.encode_batch(targets)), default=0)
    except QkvError:
        return max(map(len, targets))
