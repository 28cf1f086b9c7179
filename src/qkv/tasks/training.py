"""A recipe, trained: data and model made from it, the loop run, the run's folder left as a model folder.

    trained = train(open_recipe("dates", ["train.minutes=1"]))
    trained.network, trained.tokenizer, trained.end.metrics

`open_recipe` also takes a run's folder, and the run then goes on where it stopped.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qkv import store
from qkv.errors import QkvError, UsageError
from qkv.models import Config, Network, build
from qkv.store.hub import locate
from qkv.tasks.evaluate import evaluate, main_metric
from qkv.tasks.prepare import Prepared, among_all, prepare
from qkv.tasks.prepare_model import adapted
from qkv.tasks.task import Evaluation
from qkv.text import Tokenizer
from qkv.train import recipe_file
from qkv.train.adapt import merge_lora
from qkv.train.loop import Job, Stopped, fit
from qkv.train.recipe import Files, Recipe, TrainSection
from qkv.train.run_folder import RunFolder, command
from qkv.train.scale import World, join, whole_network
from qkv.train.step import precision_of
from qkv.train.track import trackers
from qkv.train.watch import End, EvalReport, Sample, Start, StepReport, Watcher

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is (0: not known)."""


TRANSPORTS = ("gloo", "NCCL")
"""What processes talk by. An error of theirs is another process's end, seen from here."""


@dataclass
class Trained:
    """What came of a run."""

    recipe: Recipe
    config: Config
    network: Network
    tokenizer: Tokenizer
    end: End
    notes: list[str]


def open_recipe(name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a file, a built-in name or a run's folder, with changes; its `run` is always set.

    A run that is under way goes on only with the recipe that it was begun with, but for what may change on the way.
    """
    recipe = recipe_file.read(name, overrides)
    path = Path(name).expanduser()
    elsewhere = any(change.partition("=")[0].strip() == "run" for change in overrides)
    if path.is_dir() and RunFolder(path).begun and not elsewhere:
        recipe = replace(recipe, run=str(path))
    elif not recipe.run:
        recipe = replace(recipe, run=str(Path("runs") / path.stem))
    folder = RunFolder(recipe.run)
    if folder.under_way:
        before = replace(recipe_file.loads(folder.recipe(), str(folder.path / "recipe.toml")), run=recipe.run)
        recipe_file.check_same(before, recipe)
    return recipe


def train(
    recipe: Recipe, *, watch: Watcher | None = None, progress: Progress | None = None, world: World | None = None
) -> Trained:
    """Train a recipe, or go on with it where its folder holds a run that was begun."""
    world = world or join(recipe.train)
    try:
        trained = train_in(world, recipe, watch, progress)
    except BaseException as error:
        world.leave(failed=not isinstance(error, Stopped))
        if world.size > 1 and isinstance(error, RuntimeError) and any(name in str(error) for name in TRANSPORTS):
            raise QkvError(
                f"process {world.rank} has lost another one ({str(error).splitlines()[0]}), which may have said why. "
                f"The run goes on from its newest checkpoint with: {command(recipe.run, world.size)}"
            ) from error
        raise
    world.leave()
    return trained


def train_in(world: World, recipe: Recipe, watch: Watcher | None, progress: Progress | None) -> Trained:
    """Train a recipe as one of the processes of a world."""
    if recipe.model.lora_rank and world.sharded:
        raise UsageError('model.lora_rank is for whole copies: use train.shard = "ddp" and train.tensor_parallel = 1')
    first = world.rank == 0
    keep = max(recipe.train.keep, recipe.train.average)
    folder = RunFolder(recipe.run, keep=keep, rank=world.rank, ranks=world.size)
    with ExitStack() as stack:
        if first:
            stack.enter_context(folder.lock())
        if recipe.train.threads:
            torch.set_num_threads(recipe.train.threads)
        if first:
            folder.begin(recipe_file.to_toml(recipe))
        prepared = prepare_in_turn(recipe, folder, world, progress)
        notes = [*prepared.notes, *folder.notes]
        notes += [*notes_on_shares(prepared, world.data_size), *notes_on_stream(recipe.train, world.device)]
        if first:
            notes += folder.write_env(str(world.device), torch.get_num_threads())
        # Sharded, no process need hold the whole network: it is made without weights, cut, and filled then.
        whole_here = not world.sharded
        network = adapted(
            prepared.network() if whole_here else build(prepared.config, device="meta"), recipe, prepared.config
        )
        watchers: list[Watcher] = []
        log = Log(folder, recipe_file.to_toml(recipe))
        if first:
            tracked = trackers(recipe.train.track, folder.path, recipe_file.to_table(recipe))
            watchers = [log, *([watch] if watch else []), *tracked]
        main = main_metric(prepared.config, prepared.valid_records) if prepared.valid_records else ""
        scored = Scored(prepared)
        job = Job(
            recipe=recipe,
            network=network,
            rows=prepared.rows,
            valid=prepared.valid_rows,
            folder=folder,
            world=world,
            watch=Several(watchers),
            judge=scored if main else None,
            metric=recipe.train.metric or main,
            sample=scored.sample if main and watch is not None and world.size == 1 else None,
            same=identity(prepared),
            notes=notes,
            first_weights=None if whole_here else prepared.network,
        )
        end = fit(job)
        whole = whole_network(network, world, torch.device("cpu"))
        if whole is not None:
            if recipe.model.lora_rank:
                merge_lora(whole)
            write_model(folder, prepared, whole.eval(), end)
            log.ended(end)
        world.barrier()
    return Trained(recipe, prepared.config, whole or network, prepared.tokenizer, end, notes)


def notes_on_shares(prepared: Prepared, processes: int) -> list[str]:
    """What the user should know of a step that several processes share."""
    if processes < 2 or not among_all(prepared.recipe, prepared.fields):
        return []
    return [
        f"contrast: each of {processes} processes tells apart the pairs of its own share of a step, so the loss is not "
        "that of one process with the same train.batch_tokens"
    ]


def notes_on_stream(train: TrainSection, device: torch.device) -> list[str]:
    """Where the run computes in another type than its stream was asked for."""
    precision = precision_of(train, device)
    if train.stream != "bfloat16" or precision == "bfloat16":
        return []
    return [f'train.stream = "{train.stream}" has no effect: on this device the run computes in {precision}']


def prepare_in_turn(recipe: Recipe, folder: RunFolder, world: World, progress: Progress | None) -> Prepared:
    """Prepare the data; the first process before the others, which then find what it made."""
    prepared = None
    if world.rank == 0:
        if recipe.model.from_ and folder.under_way:
            check_origin(recipe.model.from_)
        kept = Tokenizer.load(folder.path) if (folder.path / "tokenizer.json").exists() else None
        prepared = prepare(recipe, progress, tokenizer=kept)
        if kept is None:
            prepared.tokenizer.save(folder.path)
    world.barrier()
    return prepared or prepare(recipe, None, tokenizer=Tokenizer.load(folder.path))


def check_origin(model: str) -> None:
    """Raise where the model that a run under way began with has gone."""
    try:
        locate(model)
    except QkvError as error:
        raise QkvError(
            f"model.from: {error}. The run's checkpoints hold all of its weights, but the shape of the model is read "
            "there: put it back to go on"
        ) from error


def identity(prepared: Prepared) -> dict[str, Any]:
    """What a run that goes on must find as it was: the model and the tokenizer (the data's own is in its cursor)."""
    return {"tokenizer": prepared.tokenizer.fingerprint, **dict(_flat("model", prepared.config.to_dict()))}


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _flat(f"{path}.{name}", one)
    else:
        yield path, list(value) if isinstance(value, tuple) else value


class Scored:
    """The task's metrics on held-out records."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.beam = prepared.recipe.train.beam
        self.turn = 0

    def __call__(self, network: Network) -> Evaluation:
        p = self.prepared
        asked = p.recipe.train.metric
        more: dict[str, Any] = {"metrics": [asked]} if asked not in ("", "loss") else {}
        return evaluate(network, p.tokenizer, p.config, p.valid_records, beam=self.beam, **more)

    def sample(self, network: Network) -> Sample | None:
        """What the network makes of one held-out record, another each time."""
        p = self.prepared
        record = p.valid_records[self.turn % len(p.valid_records)]
        self.turn += 1
        found = evaluate(network, p.tokenizer, p.config, [record])
        return found.samples[0] if found.samples else None


class Several(Watcher):
    """Tells several watchers."""

    def __init__(self, watchers: Iterable[Watcher]) -> None:
        self.watchers = list(watchers)

    def start(self, start: Start) -> None:
        for watcher in self.watchers:
            watcher.start(start)

    def step(self, report: StepReport) -> None:
        for watcher in self.watchers:
            watcher.step(report)

    def evaluated(self, report: EvalReport) -> None:
        for watcher in self.watchers:
            watcher.evaluated(report)

    def sampled(self, step: int, sample: Sample) -> None:
        for watcher in self.watchers:
            watcher.sampled(step, sample)

    def note(self, step: int, text: str) -> None:
        for watcher in self.watchers:
            watcher.note(step, text)

    def end(self, end: End) -> None:
        for watcher in self.watchers:
            watcher.end(end)


class Log(Watcher):
    """Writes metrics.jsonl, and the recipe once it is sure that the run goes on with it."""

    def __init__(self, folder: RunFolder, recipe: str) -> None:
        self.folder, self.recipe = folder, recipe

    def start(self, start: Start) -> None:
        self.folder.write_recipe(self.recipe)
        for note in start.notes:
            self.note(start.step, note)

    def step(self, report: StepReport) -> None:
        kept = ("step", "loss", "lr", "grad_norm", "tokens", "seconds", "epoch")
        self.folder.log({"kind": "step", **{name: getattr(report, name) for name in kept}})

    def evaluated(self, report: EvalReport) -> None:
        self.folder.log({"kind": "eval", "step": report.step, "seconds": report.seconds, **report.metrics})
        self.folder.sync()

    def note(self, step: int, text: str) -> None:
        self.folder.log({"kind": "note", "step": step, "text": text})

    def end(self, end: End) -> None:
        """A run that was stopped is over now. Any other has come to its end when its model is there."""
        if end.reason == "signal":
            self.ended(end)

    def ended(self, end: End) -> None:
        self.folder.log({"kind": "end", "step": end.step, "seconds": end.seconds, "reason": end.reason})
        self.folder.sync()


def write_model(folder: RunFolder, prepared: Prepared, network: Network, end: End) -> None:
    """Make a run's folder a model folder: its weights, its tokenizer, and a card that says how it came to be."""
    recipe, metrics, mix = prepared.recipe, end.metrics, prepared.recipe.data.mix
    facts = {
        "data": told(recipe.data.train) or ", ".join(f"{name}: {told(one['train'])}" for name, one in mix.items()),
        "recipe": f"{recipe.objective.kind}, {end.step:,} steps in {end.seconds / 60:.1f} minutes; see recipe.toml",
    }
    if metrics:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        facts["scores"] = f"{scores} on held-out data"
    store.write(folder.path, prepared.config, network, prepared.tokenizer, facts=facts)


def told(files: Files) -> str:
    """The files of a recipe, for people to read."""
    if isinstance(files, str):
        return files
    return ", ".join(files.values() if isinstance(files, dict) else files)
