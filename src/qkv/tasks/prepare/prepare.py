"""From a recipe to all that training needs: data in rows, a tokenizer, a config, and what the user should know.

    prepared = prepare(read("translate.toml"))
    prepared.network()                           the network to train
    Loader(prepared.rows)                        the batches

Whatever does not fit together is refused here, before the first step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from qkv.data import EncodedExamples, Objective, Problems, Record, SequenceStream, SpecialTokenTemplate, find_classes
from qkv.data.problems import TooManyProblems
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError, UsageError
from qkv.models import Config, Network
from qkv.store.word_vectors import WordVectors
from qkv.tasks.prepare.evaluation_check import check_evaluation
from qkv.tasks.prepare.model import ModelRequirements, build_config, build_network, checkpoint_notes
from qkv.tasks.prepare.objective import JoinedExamples, Study
from qkv.tasks.prepare.sources import DataSource, DataSources, PhaseProgress, cache_root, open_sources, sample_records
from qkv.tasks.prepare.tokenizer import load_or_train_tokenizer
from qkv.tasks.prepare.word_vectors import apply_word_vectors, load_word_vectors
from qkv.text import Tokenizer
from qkv.train.recipe.check import check_recipe
from qkv.train.recipe.schema import Recipe

MAX_CLASSES = 10_000  # a column with more different values than this is no label
CHUNK_EXAMPLES = 2**18  # examples looked at in one go


@dataclass
class PreparedRun:
    """All that a run needs."""

    recipe: Recipe
    tokenizer: Tokenizer
    config: Config
    rows: SequenceStream
    valid_rows: SequenceStream | None
    valid_records: list[Record]  # under the names of the objective's fields
    labels: tuple[str, ...]
    notes: list[str]  # what the user should know: what was skipped, cut, held out, left unsaid and decided
    problems: Problems  # what was bad in the training files
    fields: frozenset[str] = field(default_factory=frozenset)  # that records have
    word_vectors: WordVectors | None = None  # what the embedding starts from, with `model.vectors`

    def build_network(self, device: torch.device | str = "cpu") -> Network:
        """The network to train, its weights fresh (a function of the seed) or a checkpoint's."""
        network = build_network(self.recipe, self.config, device)
        if self.word_vectors is not None:
            apply_word_vectors(network, self.word_vectors)
        return network


def prepare(
    recipe: Recipe, progress: PhaseProgress | None = None, *, tokenizer: Tokenizer | None = None
) -> PreparedRun:
    """Read, tokenise and lay out a recipe's data, and fit a model to it.

    `tokenizer`: the one that a run already has, when it goes on. `progress` hears what is being done and how far it is.

    >>> prepare(recipe).rows.batch_rows                                        # doctest: +SKIP
    """
    check_recipe(recipe)
    root = cache_root(recipe.data)
    try:
        sources = open_sources(recipe)
        return _prepare(recipe, sources, root, progress, tokenizer)
    except TooManyProblems as error:
        raise QkvError(str(error).replace("max_invalid_fraction", "data.max_invalid_fraction")) from None


def _prepare(
    recipe: Recipe, sources: DataSources, root: Path, progress: PhaseProgress | None, tokenizer: Tokenizer | None
) -> PreparedRun:
    report = _phase_callbacks(progress)
    parts = list(sources.train.values())
    fields = parts[0].fields
    for part in (*parts[1:], *sources.valid):
        if lacking := sorted(fields - part.fields):
            raise UsageError(
                f"{part.description} has no {lacking[0]}, which {parts[0].description} has; see data.columns"
            )
    check_micro_batch(recipe, fields)
    notes = list(sources.notes)
    if tokenizer is None:
        tokenizer, told = load_or_train_tokenizer(recipe, parts, root, progress)
        notes.append(told)
    classes = _find_classes(recipe, parts, fields)

    # The config needs to know of the data only what its records hold, so it is refused before they are tokenised.
    kind = recipe.objective.kind
    paired = kind in ("next_sentence", "question_answering") or (kind == "classification" and "second" in fields)
    scored = kind == "classification" and "score" in fields
    longest = max(recipe.data.max_length, recipe.data.max_source_length)
    wanted = ModelRequirements(tokenizer, classes, is_regression=scored, has_text_pairs=paired, max_length=longest)
    config = build_config(recipe, wanted)
    notes += checkpoint_notes(recipe, config, tokenizer)
    word_vectors = load_word_vectors(recipe.model, config, tokenizer)
    if word_vectors is not None:
        notes.append(word_vectors.describe(tokenizer.vocab_size))
    valid_records = _sample_validation(sources.valid, recipe.train.eval_examples) if sources.valid else []
    check_evaluation(recipe, config, valid_records)

    study = Study(recipe, tokenizer, fields, classes)
    encode = study.encode()
    problems = Problems(recipe.data.max_invalid_fraction)
    encoded = {
        name: part.encoded(encode, root, problems, report(f"tokenising {part.description}"))
        for name, part in sources.train.items()
    }
    objectives = _build_objectives(study, encoded, config)
    first = next(iter(objectives.values()))
    section = recipe.train
    rows = SequenceStream(
        objectives if recipe.data.mix else first,
        batch_tokens=section.batch_tokens,
        seed=section.seed,
        layout=recipe.data.layout,
        weights=sources.weights or "proportional",
    )
    check_positions(config, objectives)
    check_token_types(config, tokenizer, rows)
    for name, objective in objectives.items():
        notes.append(f"{name or 'training'}: {objective.tally}")
    valid_rows = None
    if sources.valid:
        met = Problems(recipe.data.max_invalid_fraction)
        held = [part.encoded(encode, root, met, report(f"tokenising {part.description}")) for part in sources.valid]
        objective = study.examples(
            held[0] if len(held) == 1 else JoinedExamples(held),
            start=config.decoder_start_token_id,
            shape=first.capacity,
        )
        if objective.tally.examples == 0:
            raise QkvError(f"there is nothing to validate on: {objective.tally}")
        check_positions(config, {"validation": objective})
        notes.append(f"validation: {objective.tally}")
        if not sources.valid_is_held_out:
            problems.merge(met.summary().to_dict())
        elif unseen := met.categories.get("unknown class"):
            have = "records have" if unseen.count > 1 else "record has"
            notes.append(
                f"validation: {unseen.count:,} {have} a {'tag' if kind == 'tagging' else 'label'} that training never "
                "saw: left out of the loss, and counted as wrong"
            )
        valid_rows = SequenceStream(
            objective,
            batch_tokens=section.batch_tokens,
            seed=section.seed,
            layout=recipe.data.layout,
            max_documents=rows.max_documents,
        )
    if problems.num_invalid or problems.categories:
        notes.append(str(problems.summary()))
    return PreparedRun(
        recipe=recipe,
        tokenizer=tokenizer,
        config=config,
        rows=rows,
        valid_rows=valid_rows,
        valid_records=valid_records,
        labels=classes,
        notes=notes,
        problems=problems,
        fields=fields,
        word_vectors=word_vectors,
    )


def _phase_callbacks(progress: PhaseProgress | None) -> Callable[[str], Callable[[int, int], None] | None]:
    """What to call while one thing is done."""

    def report(what: str) -> Callable[[int, int], None] | None:
        if progress is None:
            return None
        return lambda done, total: progress(what, done, total)

    return report


def _find_classes(recipe: Recipe, parts: list[DataSource], fields: frozenset[str]) -> tuple[str, ...]:
    """The classes of labels or tags, from all of the training data."""
    kind = recipe.objective.kind
    name = {"classification": "label", "tagging": "tags"}.get(kind)
    if name is None or name not in fields:
        return ()
    problems = Problems(max_invalid_fraction=1)
    found = {one for part in parts for one in find_classes(part.records(problems), name)}
    if len(found) > MAX_CLASSES:
        raise UsageError(
            f"{parts[0].description}: {len(found):,} different values in {name}: is this the right column?"
        )
    if len(found) < 2 and kind == "classification":
        unread = f"\n{problems.summary()}" if problems.num_invalid else ""
        raise UsageError(
            f"{parts[0].description}: all labels are {', '.join(found) or 'missing'}: there is nothing to tell apart{unread}"
        )
    return tuple(sorted(found))


def _build_objectives(study: Study, encoded: Mapping[str, EncodedExamples], config: Config) -> dict[str, Objective]:
    """Training examples of every source, in rows of one shape."""
    made = {name: study.examples(one, start=config.decoder_start_token_id) for name, one in encoded.items()}
    if len({objective.capacity for objective in made.values()}) > 1:
        shape = tuple(np.max([objective.capacity for objective in made.values()], axis=0).tolist())
        made = {
            name: study.examples(one, start=config.decoder_start_token_id, shape=shape) for name, one in encoded.items()
        }
    target, *source = next(iter(made.values())).capacity
    if study.recipe.train.batch_tokens < target + sum(source):
        rows = f"{source[0]} source and {target} target places" if source else f"{target} places"
        raise UsageError(
            f"train.batch_tokens = {study.recipe.train.batch_tokens} is less than one row of {rows}: raise it, or "
            "lower data.max_length"
            + (" (source rows follow in proportion, or set data.max_source_length)" if source else "")
        )
    return made


def _sample_validation(parts: Sequence[DataSource], count: int) -> list[Record]:
    """Records of the validation data, as many of each part as of the others."""
    each = -(-count // len(parts))
    return [
        record for part in parts for record in sample_records(part.records(Problems(max_invalid_fraction=1)), each)
    ][:count]


def check_positions(config: Config, objectives: Mapping[str, Objective]) -> None:
    """Raise where an example is longer than the positions that a model has; a row that packs several may be."""
    for objective in objectives.values():
        names = ("length", "source_length")[: len(objective.capacity)]
        stacks = (config.stack, config.encoder or config.stack)
        for stream, (name, stack) in enumerate(zip(names, stacks, strict=False)):
            if not stack.has_max_positions or objective.capacity[stream] <= stack.max_positions:
                continue
            longest = max_example_length(objective, stream)
            if longest > stack.max_positions:
                raise UsageError(
                    f"an example of {longest:,} tokens has no place in the {stack.max_positions:,} positions of this "
                    f"model: lower data.{name} to {stack.max_positions:,}, or raise model.max_positions"
                )


def check_micro_batch(recipe: Recipe, fields: frozenset[str]) -> None:
    """Raise where a step cannot be taken in parts: each text of a pair is told from all others of the batch."""
    micro, whole = recipe.train.micro_batch_tokens, recipe.train.batch_tokens
    if uses_in_batch_negatives(recipe, fields) and micro not in (0, whole):
        raise UsageError(
            f"train.micro_batch_tokens = {micro!r}: contrast learns from the other pairs of a step, and a part has fewer of "
            "them; leave it out and lower train.batch_tokens, or save memory with train.gradient_checkpointing = true"
        )


def uses_in_batch_negatives(recipe: Recipe, fields: frozenset[str]) -> bool:
    """Whether the loss of an example depends on which others are in its batch: pairs without scores."""
    return recipe.objective.kind == "contrastive" and "score" not in fields


def check_token_types(config: Config, tokenizer: Tokenizer, rows: SequenceStream) -> None:
    """Raise where the second of two texts would be marked with a type that the model does not have."""
    second, known = SpecialTokenTemplate.from_tokenizer(tokenizer).second_token_type, config.stack.token_types
    if "token_type_ids" in rows.outputs and 0 < known <= second:
        raise UsageError(
            f"the tokenizer marks the second of two texts with type {second}, and this model has {known} type only: "
            "take the tokenizer that belongs to it"
        )


def max_example_length(objective: Objective, side: int) -> int:
    """The most places that an example takes in one of its rows."""
    draw, most = EpochRng(0), 0
    count = objective.num_examples(draw)
    for start in range(0, count, CHUNK_EXAMPLES):
        lengths = objective.lengths(np.arange(start, min(start + CHUNK_EXAMPLES, count)), draw)
        most = max(most, int(lengths[:, side].max(initial=0)))
    return most
