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

from qkv.data import Examples, Frame, Objective, Problems, Record, Rows, classes_of
from qkv.data.draw import Draw
from qkv.data.problems import TooManyProblems
from qkv.errors import QkvError, UsageError
from qkv.models import Config, Network
from qkv.tasks.prepare_data import Part, Progress, Sources, cache_root, sampled, sources_of
from qkv.tasks.prepare_judge import check_judge
from qkv.tasks.prepare_model import Wanted, checkpoint_notes, config_for, network_for
from qkv.tasks.prepare_objective import Joined, Study
from qkv.tasks.prepare_tokenizer import tokenizer_for
from qkv.text import Tokenizer
from qkv.train.recipe import Recipe
from qkv.train.recipe_check import check

MOST_CLASSES = 10_000  # a column with more different values than this is no label
CHUNK = 2**18  # examples looked at in one go


@dataclass
class Prepared:
    """All that a run needs."""

    recipe: Recipe
    tokenizer: Tokenizer
    config: Config
    rows: Rows
    valid_rows: Rows | None
    valid_records: list[Record]  # under the names of the objective's fields
    labels: tuple[str, ...]
    notes: list[str]  # what the user should know: what was skipped, cut, held out, left unsaid and decided
    problems: Problems  # what was bad in the training files
    fields: frozenset[str] = field(default_factory=frozenset)  # that records have

    def network(self, device: torch.device | str = "cpu") -> Network:
        """The network to train, its weights fresh (a function of the seed) or a checkpoint's."""
        return network_for(self.recipe, self.config, device)


def prepare(recipe: Recipe, progress: Progress | None = None, *, tokenizer: Tokenizer | None = None) -> Prepared:
    """Read, tokenise and lay out a recipe's data, and fit a model to it.

    `tokenizer`: the one that a run already has, when it goes on. `progress` hears what is being done and how far it is.

    >>> prepare(recipe).rows.batch_rows                                        # doctest: +SKIP
    """
    check(recipe)
    root = cache_root(recipe.data)
    try:
        sources = sources_of(recipe)
        return _prepare(recipe, sources, root, progress, tokenizer)
    except TooManyProblems as error:
        raise QkvError(str(error).replace("max_bad", "data.most_bad")) from None


def _prepare(
    recipe: Recipe, sources: Sources, root: Path, progress: Progress | None, tokenizer: Tokenizer | None
) -> Prepared:
    report = _reports(progress)
    parts = list(sources.train.values())
    fields = parts[0].fields
    for part in (*parts[1:], *sources.valid):
        if lacking := sorted(fields - part.fields):
            raise UsageError(f"{part.told} has no {lacking[0]}, which {parts[0].told} has; see data.columns")
    check_parts(recipe, fields)
    notes = list(sources.notes)
    if tokenizer is None:
        tokenizer, told = tokenizer_for(recipe, parts, root, progress)
        notes.append(told)
    classes = _classes(recipe, parts, fields)

    # The config needs to know of the data only what its records hold, so it is refused before they are tokenised.
    kind = recipe.objective.kind
    paired = kind in ("masked_sentences", "answers") or (kind == "classify" and "second" in fields)
    scored = kind == "classify" and "score" in fields
    longest = max(recipe.data.length, recipe.data.source_length)
    wanted = Wanted(tokenizer, classes, scored=scored, paired=paired, length=longest)
    config = config_for(recipe, wanted)
    notes += checkpoint_notes(recipe, config, tokenizer)
    valid_records = _spread(sources.valid, recipe.train.eval_examples) if sources.valid else []
    check_judge(recipe, config, valid_records)

    study = Study(recipe, tokenizer, fields, classes)
    encode = study.encode()
    problems = Problems(recipe.data.most_bad)
    encoded = {
        name: part.encoded(encode, root, problems, report(f"tokenising {part.told}"))
        for name, part in sources.train.items()
    }
    objectives = _alike(study, encoded, config)
    first = next(iter(objectives.values()))
    section = recipe.train
    rows = Rows(
        objectives if recipe.data.mix else first,
        batch_tokens=section.batch_tokens,
        seed=section.seed,
        layout=recipe.data.layout,
        weights=sources.weights or "proportional",
    )
    check_positions(config, objectives)
    check_types(config, tokenizer, rows)
    for name, objective in objectives.items():
        notes.append(f"{name or 'training'}: {objective.tally}")
    valid_rows = None
    if sources.valid:
        met = Problems(recipe.data.most_bad)
        held = [part.encoded(encode, root, met, report(f"tokenising {part.told}")) for part in sources.valid]
        objective = study.examples(
            held[0] if len(held) == 1 else Joined(held),
            start=config.start,
            shape=first.capacity,
        )
        if objective.tally.examples == 0:
            raise QkvError(f"there is nothing to validate on: {objective.tally}")
        check_positions(config, {"validation": objective})
        notes.append(f"validation: {objective.tally}")
        if not sources.valid_of_train:
            problems.merge(met.summary().to_dict())
        elif unseen := met.kinds.get("unknown class"):
            have = "records have" if unseen.count > 1 else "record has"
            notes.append(
                f"validation: {unseen.count:,} {have} a {'tag' if kind == 'tags' else 'label'} that training never "
                "saw: left out of the loss, and counted as wrong"
            )
        valid_rows = Rows(
            objective,
            batch_tokens=section.batch_tokens,
            seed=section.seed,
            layout=recipe.data.layout,
            texts=rows.texts,
        )
    if problems.bad or problems.kinds:
        notes.append(str(problems.summary()))
    return Prepared(
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
    )


def _reports(progress: Progress | None) -> Callable[[str], Callable[[int, int], None] | None]:
    """What to call while one thing is done."""

    def report(what: str) -> Callable[[int, int], None] | None:
        if progress is None:
            return None
        return lambda done, total: progress(what, done, total)

    return report


def _classes(recipe: Recipe, parts: list[Part], fields: frozenset[str]) -> tuple[str, ...]:
    """The classes of labels or tags, from all of the training data."""
    kind = recipe.objective.kind
    name = {"classify": "label", "tags": "tags"}.get(kind)
    if name is None or name not in fields:
        return ()
    problems = Problems(max_bad=1)
    found = {one for part in parts for one in classes_of(part.records(problems), name)}
    if len(found) > MOST_CLASSES:
        raise UsageError(f"{parts[0].told}: {len(found):,} different values in {name}: is this the right column?")
    if len(found) < 2 and kind == "classify":
        unread = f"\n{problems.summary()}" if problems.bad else ""
        raise UsageError(
            f"{parts[0].told}: all labels are {', '.join(found) or 'missing'}: there is nothing to tell apart{unread}"
        )
    return tuple(sorted(found))


def _alike(study: Study, encoded: Mapping[str, Examples], config: Config) -> dict[str, Objective]:
    """Training examples of every source, in rows of one shape."""
    made = {name: study.examples(one, start=config.start) for name, one in encoded.items()}
    if len({objective.capacity for objective in made.values()}) > 1:
        shape = tuple(np.max([objective.capacity for objective in made.values()], axis=0).tolist())
        made = {name: study.examples(one, start=config.start, shape=shape) for name, one in encoded.items()}
    target, *source = next(iter(made.values())).capacity
    if study.recipe.train.batch_tokens < target + sum(source):
        rows = f"{source[0]} source and {target} target places" if source else f"{target} places"
        raise UsageError(
            f"train.batch_tokens = {study.recipe.train.batch_tokens} is less than one row of {rows}: raise it, or "
            "lower data.length" + (" (source rows follow in proportion, or set data.source_length)" if source else "")
        )
    return made


def _spread(parts: Sequence[Part], count: int) -> list[Record]:
    """Records of the validation data, as many of each part as of the others."""
    each = -(-count // len(parts))
    return [record for part in parts for record in sampled(part.records(Problems(max_bad=1)), each)][:count]


def check_positions(config: Config, objectives: Mapping[str, Objective]) -> None:
    """Raise where an example is longer than the positions that a model has; a row that packs several may be."""
    for objective in objectives.values():
        names = ("length", "source_length")[: len(objective.capacity)]
        stacks = (config.stack, config.encoder or config.stack)
        for stream, (name, stack) in enumerate(zip(names, stacks, strict=False)):
            if not stack.limited or objective.capacity[stream] <= stack.max_positions:
                continue
            longest = longest_example(objective, stream)
            if longest > stack.max_positions:
                raise UsageError(
                    f"an example of {longest:,} tokens has no place in the {stack.max_positions:,} positions of this "
                    f"model: lower data.{name} to {stack.max_positions:,}, or raise model.max_positions"
                )


def check_parts(recipe: Recipe, fields: frozenset[str]) -> None:
    """Raise where a step cannot be taken in parts: each text of a pair is told from all others of the batch."""
    micro, whole = recipe.train.micro_batch, recipe.train.batch_tokens
    if among_all(recipe, fields) and micro not in (0, whole):
        raise UsageError(
            f"train.micro_batch = {micro!r}: contrast learns from the other pairs of a step, and a part has fewer of "
            "them; leave it out and lower train.batch_tokens, or save memory with train.recompute = true"
        )


def among_all(recipe: Recipe, fields: frozenset[str]) -> bool:
    """Whether the loss of an example depends on which others are in its batch: pairs without scores."""
    return recipe.objective.kind == "contrast" and "score" not in fields


def check_types(config: Config, tokenizer: Tokenizer, rows: Rows) -> None:
    """Raise where the second of two texts would be marked with a type that the model does not have."""
    second, known = Frame.of(tokenizer).second_type, config.stack.types
    if "types" in rows.outputs and 0 < known <= second:
        raise UsageError(
            f"the tokenizer marks the second of two texts with type {second}, and this model has {known} type only: "
            "take the tokenizer that belongs to it"
        )


def longest_example(objective: Objective, stream: int) -> int:
    """The most places that an example takes in one of its rows."""
    draw, most = Draw(0), 0
    count = objective.count(draw)
    for start in range(0, count, CHUNK):
        lengths = objective.lengths(np.arange(start, min(start + CHUNK, count)), draw)
        most = max(most, int(lengths[:, stream].max(initial=0)))
    return most
