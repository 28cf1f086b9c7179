"""Text to text: a source is read and its target written (translation, summaries, spelling, dates).

Each source is decoded once, however many records share it. What is written is held against the record's target; where
one source has several targets, `exact_match_any` and `word_error_rate` take the one that suits best.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

from qkv.data.records import Record
from qkv.decode import GenerationOptions, GenerationResult, NonFiniteLogits, generate
from qkv.errors import QkvError, UsageError, suggest_name
from qkv.models import Config, Network
from qkv.tasks import metrics as measure
from qkv.tasks.metrics.text import References
from qkv.tasks.run.example_batches import batches
from qkv.tasks.task import Evaluation, ProgressCallback, UsableRecords, evaluating, require_tokenizer, select_metrics
from qkv.text import Tokenizer
from qkv.train.watch import Sample

log = logging.getLogger("qkv")

MIN_BLEU_WORDS = 3  # words in the mean target above which n-grams say something
METRIC_FUNCTIONS: dict[
    str, Callable[[Sequence[str], References], float]
] = {  # a text for each record, with the one target it has
    "exact_match": measure.exact_match,
    "bleu": measure.bleu,
    "bleu_lowercase": measure.bleu_lowercase,
    "tokenised_bleu": measure.tokenised_bleu,
    "sacrebleu": measure.sacrebleu,
    "chrf": measure.chrf,
}
SOURCE_METRICS: dict[
    str, Callable[[Sequence[str], References], float]
] = {  # a text for each source, with all targets it has
    "exact_match_any": measure.exact_match,
    "word_error_rate": measure.word_error_rate,
}


def run(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    texts: Sequence[str],
    *,
    batch_size: int = 64,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> list[GenerationResult]:
    """What the model writes for each text, in order; `options` are those of `qkv.decode.Options`.

    An empty text gives an empty result. A text that is longer than the model can read is an error. Unless told, at most
    64 tokens are written, or as many as the model has places for.
    """
    reader = require_tokenizer(tokenizer)
    known = [one.name for one in fields(GenerationOptions)]
    for name in options:
        if name not in known:
            raise UsageError(f"unknown option {name!r}; {suggest_name(name, [*known, 'batch', 'progress'])}")
    stop = options.pop("stop", None)
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    prompts = [prompt_ids(reader, config, text) if text.strip() else [] for text in texts]
    if "max_tokens" not in options:
        read = 1 if config.encoder is not None else max(map(len, prompts), default=1)
        options["max_tokens"] = limit_new_tokens(config, GenerationOptions.max_tokens, read)
    return generate_batched(network, reader, prompts, GenerationOptions(stop=stops, **options), batch_size, progress)


def available_metrics(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics that can be asked for; first what a model is judged by: BLEU where the targets are long enough."""
    first = "bleu" if has_long_targets([record.fields["target"] for record in records]) else "exact_match"
    return tuple(dict.fromkeys((first, *METRIC_FUNCTIONS, *SOURCE_METRICS)))


def evaluate(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    records: Sequence[Record],
    *,
    batch_size: int = 64,
    beam: int = 1,
    progress: ProgressCallback | None = None,
    metrics: Sequence[str] = (),
    max_samples: int = 8,
    max_tokens: int = 0,
    **options: Any,
) -> Evaluation:
    """Decode every source and compare with its target.

    Without `metrics`: exact match always; BLEU where targets have more than three words on average (and sacreBLEU and
    chrF where the library is installed); `exact_match_any` where a source has several targets. BLEU is then what a
    model is judged by. At most `max_tokens` are written; 0: half as many again as the longest target has, and eight.
    """
    reader = require_tokenizer(tokenizer)
    usable = UsableRecords.select(records, source=str, target=str)
    notes, listed = usable.notes, usable.records
    sources = list(dict.fromkeys(record.fields["source"] for record in listed))
    several: dict[str, list[str]] = {source: [] for source in sources}
    for record in listed:
        several[record.fields["source"]].append(record.fields["target"])
    targets = [record.fields["target"] for record in listed]
    names = select_metrics(
        [*metrics, "exact_match"] if metrics else (),
        available_metrics(config, listed),
        default_metrics(targets, several),
    )
    bound = limit_new_tokens(config, max_tokens or max_target_tokens(reader, targets) * 3 // 2 + 8)

    prompts = [prompt_ids(reader, config, source) if source.strip() else [] for source in sources]
    reach = config.encoder if config.encoder is not None else config.stack
    if reach.has_max_positions:
        room = reach.max_positions - (0 if config.encoder is not None else bound)
        long = sum(len(prompt) > room for prompt in prompts)
        prompts = [prompt if len(prompt) <= room else [] for prompt in prompts]
        if long:
            notes.append(f"{long:,} sources are longer than this model can read, and count as answered with nothing")
    results = generate_batched(
        network, reader, prompts, GenerationOptions(max_tokens=bound, beam=beam, **options), batch_size, progress
    )
    cut = sum(result.finish_reason == "length" for result in results)
    if cut:
        notes.append(f"{cut:,} of {len(results):,} texts were cut at {bound} tokens")

    written = dict(zip(sources, (result.text for result in results), strict=True))
    said = [written[record.fields["source"]] for record in listed]
    scores = {
        name: METRIC_FUNCTIONS[name](said, [[target] for target in targets])
        for name in names
        if name in METRIC_FUNCTIONS
    }
    scores |= {
        name: SOURCE_METRICS[name](list(written.values()), list(several.values()))
        for name in names
        if name in SOURCE_METRICS
    }
    shown = [
        Sample(record.fields["source"], text, record.fields["target"])
        for record, text in zip(listed[:max_samples], said, strict=False)
    ]
    judged = names[0] if metrics else "bleu" if "bleu" in names else "exact_match"
    return Evaluation({name: scores[name] for name in names}, shown, judged, len(listed), tuple(notes))


def default_metrics(targets: Sequence[str], targets_by_source: dict[str, list[str]]) -> list[str]:
    """The metrics that say something about targets like these."""
    names = ["exact_match"]
    if any(len(set(listed)) > 1 for listed in targets_by_source.values()):
        names.append("exact_match_any")
    if has_long_targets(targets):
        names += ["bleu", "tokenised_bleu"]
        if find_spec("sacrebleu") is not None:
            names += ["sacrebleu", "chrf"]
    return names


def has_long_targets(targets: Sequence[str]) -> bool:
    """Whether texts have more than three words on average, so that n-grams of words say something."""
    return sum(len(target.split()) for target in targets) > MIN_BLEU_WORDS * len(targets)


def prompt_ids(tokenizer: Tokenizer, config: Config, text: str) -> list[int]:
    """A text as the model is given it. A decoder goes on from it, so an end that the tokenizer adds is taken off."""
    ids = tokenizer.encode(text)
    if config.encoder is None:
        while len(ids) > 1 and ids[-1] in config.eos_token_ids:
            ids.pop()
    return ids


def generate_batched(
    network: Network,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    options: GenerationOptions,
    batch_size: int,
    progress: ProgressCallback | None = None,
) -> list[GenerationResult]:
    """A result for each prompt, in order, decoded in batches of like lengths; an empty prompt gives an empty result.

    So does one for which the model's scores are no numbers, which is told of: a run whose weights have grown too large
    is to hear of it, and not to end by it.
    """
    results = [GenerationResult("", [], 0.0, "end") for _ in prompts]
    filled = [i for i, prompt in enumerate(prompts) if prompt]
    lost = 0

    def decode(places: list[int]) -> None:
        nonlocal lost
        try:
            found = generate(network, [prompts[i] for i in places], options, tokenizer)
        except NonFiniteLogits:
            lost += len(places) == 1
            for i in places if len(places) > 1 else ():  # which of them?
                decode([i])
            return
        for i, result in zip(places, found, strict=True):
            results[i] = result

    with evaluating(network):
        for chosen in batches([len(prompts[i]) for i in filled], batch_size, progress):
            decode([filled[i] for i in chosen])
    if lost:
        log.warning("%d of %d answers count as empty: the model's scores were not numbers (NaN)", lost, len(prompts))
    return results


def max_target_tokens(tokenizer: Tokenizer, targets: Sequence[str]) -> int:
    """The tokens of the longest target; a target that has none (a letter that the tokenizer cannot read) counts 0."""
    try:
        return max(map(len, tokenizer.target.encode_batch(targets)), default=0)
    except QkvError:
        return max(map(len, targets))


def limit_new_tokens(config: Config, max_tokens: int, prompt_tokens: int = 1) -> int:
    """As many new tokens as wanted, or as many as the model has places for beside those that its decoder has read."""
    stack = config.stack
    return max(1, min(max_tokens, stack.max_positions - prompt_tokens)) if stack.has_max_positions else max_tokens
