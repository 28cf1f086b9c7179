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
from qkv.store.hub import resolve_folder
from qkv.tasks.evaluate import evaluate, main_metric
from qkv.tasks.prepare.model import apply_adapters
from qkv.tasks.prepare.prepare import PreparedRun, prepare, uses_in_batch_negatives
from qkv.tasks.task import Evaluation
from qkv.text import Tokenizer
from qkv.train.adapt import merge_lora
from qkv.train.loop import StoppedBySignal, fit
from qkv.train.parallel.shards import gather_network
from qkv.train.parallel.world import World, init_world
from qkv.train.recipe import recipe_file
from qkv.train.recipe.schema import Files, Recipe, TrainSection
from qkv.train.run.folder import RunFolder, resume_command
from qkv.train.run.trackers import make_trackers
from qkv.train.setup import Job
from qkv.train.step import resolve_precision
from qkv.train.watch import EvalReport, RunEnd, RunStart, Sample, StepReport, Watcher

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is (0: not known)."""


COLLECTIVE_BACKENDS = ("gloo", "NCCL")
"""What processes talk by. An error of theirs is another process's end, seen from here."""


@dataclass
class TrainingResult:
    """What came of a run."""

    recipe: Recipe
    config: Config
    network: Network
    tokenizer: Tokenizer
    end: RunEnd
    notes: list[str]


def open_recipe(name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a file, a built-in name or a run's folder, with changes; its `run` is always set.

    A run that is under way goes on only with the recipe that it was begun with, but for what may change on the way.
    """
    recipe = recipe_file.read(name, overrides)
    path = Path(name).expanduser()
    elsewhere = any(change.partition("=")[0].strip() == "run" for change in overrides)
    if path.is_dir() and RunFolder(path).is_run and not elsewhere:
        recipe = replace(recipe, run=str(path))
    elif not recipe.run:
        recipe = replace(recipe, run=str(Path("runs") / path.stem))
    folder = RunFolder(recipe.run)
    if folder.has_progress:
        before = replace(recipe_file.loads(folder.read_recipe(), str(folder.path / "recipe.toml")), run=recipe.run)
        recipe_file.check_resumable(before, recipe)
    return recipe


def train(
    recipe: Recipe, *, watch: Watcher | None = None, progress: Progress | None = None, world: World | None = None
) -> TrainingResult:
    """Train a recipe, or go on with it where its folder holds a run that was begun."""
    world = world or init_world(recipe.train)
    try:
        trained = train_on_rank(world, recipe, watch, progress)
    except BaseException as error:
        world.leave(failed=not isinstance(error, StoppedBySignal))
        if (
            world.size > 1
            and isinstance(error, RuntimeError)
            and any(name in str(error) for name in COLLECTIVE_BACKENDS)
        ):
            raise QkvError(
                f"process {world.rank} has lost another one ({str(error).splitlines()[0]}), which may have said why. "
                f"The run goes on from its newest checkpoint with: {resume_command(recipe.run, world.size)}"
            ) from error
        raise
    world.leave()
    return trained


def train_on_rank(world: World, recipe: Recipe, watch: Watcher | None, progress: Progress | None) -> TrainingResult:
    """Train a recipe as one of the processes of a world."""
    if recipe.model.lora_rank and world.is_sharded:
        raise UsageError(
            'model.lora_rank is for whole copies: use train.parallel = "ddp" and train.tensor_parallel = 1'
        )
    first = world.rank == 0
    keep = max(recipe.train.keep_checkpoints, recipe.train.average_checkpoints)
    folder = RunFolder(recipe.run, max_to_keep=keep, rank=world.rank, world_size=world.size)
    with ExitStack() as stack:
        if first:
            stack.enter_context(folder.lock())
        if recipe.train.num_threads:
            torch.set_num_threads(recipe.train.num_threads)
        if first:
            folder.begin_run(recipe_file.to_toml(recipe))
        prepared = prepare_rank_zero_first(recipe, folder, world, progress)
        notes = [*prepared.notes, *folder.notes]
        notes += [
            *in_batch_negative_notes(prepared, world.data_size),
            *residual_dtype_notes(recipe.train, world.device),
        ]
        if first:
            notes += folder.write_env(str(world.device), torch.get_num_threads())
        # Sharded, no process need hold the whole network: it is made without weights, cut, and filled then.
        whole_here = not world.is_sharded
        network = apply_adapters(
            prepared.build_network() if whole_here else build(prepared.config, device="meta"), recipe, prepared.config
        )
        watchers: list[Watcher] = []
        log = MetricsLog(folder, recipe_file.to_toml(recipe))
        if first:
            tracked = make_trackers(recipe.train.trackers, folder.path, recipe_file.to_table(recipe))
            watchers = [log, *([watch] if watch else []), *tracked]
        main = main_metric(prepared.config, prepared.valid_records) if prepared.valid_records else ""
        scored = ValidationMetrics(prepared)
        job = Job(
            recipe=recipe,
            network=network,
            train_data=prepared.train_data,
            valid_data=prepared.valid_data,
            folder=folder,
            world=world,
            watcher=WatcherGroup(watchers),
            task_metrics=scored if main else None,
            metric=recipe.train.metric or main,
            make_sample=scored.sample if main and watch is not None and world.size == 1 else None,
            invariants=resume_fingerprint(prepared),
            notes=notes,
            initial_network=None if whole_here else prepared.build_network,
        )
        end = fit(job)
        whole = gather_network(network, world, torch.device("cpu"))
        if whole is not None:
            if recipe.model.lora_rank:
                merge_lora(whole)
            write_model(folder, prepared, whole.eval(), end)
            log.log_end(end)
        world.barrier()
    return TrainingResult(recipe, prepared.config, whole or network, prepared.tokenizer, end, notes)


def in_batch_negative_notes(prepared: PreparedRun, processes: int) -> list[str]:
    """What the user should know of a step that several processes share."""
    if processes < 2 or not uses_in_batch_negatives(prepared.recipe, prepared.fields):
        return []
    return [
        f"contrast: each of {processes} processes tells apart the pairs of its own share of a step, so the loss is not "
        "that of one process with the same train.batch_tokens"
    ]


def residual_dtype_notes(train: TrainSection, device: torch.device) -> list[str]:
    """Where the run computes in another type than its stream was asked for."""
    precision = resolve_precision(train, device)
    if train.residual_dtype != "bfloat16" or precision == "bfloat16":
        return []
    return [
        f'train.residual_dtype = "{train.residual_dtype}" has no effect: on this device the run computes in {precision}'
    ]


def prepare_rank_zero_first(recipe: Recipe, folder: RunFolder, world: World, progress: Progress | None) -> PreparedRun:
    """Prepare the data; the first process before the others, which then find what it made."""
    prepared = None
    if world.rank == 0:
        if recipe.model.from_ and folder.has_progress:
            check_base_model(recipe.model.from_)
        kept = Tokenizer.load(folder.path) if (folder.path / "tokenizer.json").exists() else None
        prepared = prepare(recipe, progress, tokenizer=kept)
        if kept is None:
            prepared.tokenizer.save(folder.path)
    world.barrier()
    return prepared or prepare(recipe, None, tokenizer=Tokenizer.load(folder.path))


def check_base_model(model: str) -> None:
    """Raise where the model that a run under way began with has gone."""
    try:
        resolve_folder(model)
    except QkvError as error:
        raise QkvError(
            f"model.from: {error}. The run's checkpoints hold all of its weights, but the shape of the model is read "
            "there: put it back to go on"
        ) from error


def resume_fingerprint(prepared: PreparedRun) -> dict[str, Any]:
    """What a run that goes on must find as it was: the model and the tokenizer (the data's own is in its cursor)."""
    return {"tokenizer": prepared.tokenizer.fingerprint, **dict(_flat("model", prepared.config.to_dict()))}


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _flat(f"{path}.{name}", one)
    else:
        yield path, list(value) if isinstance(value, tuple) else value


class ValidationMetrics:
    """The task's metrics on held-out records."""

    def __init__(self, prepared: PreparedRun) -> None:
        self.prepared = prepared
        self.beam = prepared.recipe.train.eval_beam
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


class WatcherGroup(Watcher):
    """Tells several watchers."""

    def __init__(self, watchers: Iterable[Watcher]) -> None:
        self.watchers = list(watchers)

    def on_start(self, start: RunStart) -> None:
        for watcher in self.watchers:
            watcher.on_start(start)

    def on_step(self, report: StepReport) -> None:
        for watcher in self.watchers:
            watcher.on_step(report)

    def on_evaluate(self, report: EvalReport) -> None:
        for watcher in self.watchers:
            watcher.on_evaluate(report)

    def on_sample(self, step: int, sample: Sample) -> None:
        for watcher in self.watchers:
            watcher.on_sample(step, sample)

    def on_note(self, step: int, text: str) -> None:
        for watcher in self.watchers:
            watcher.on_note(step, text)

    def on_end(self, end: RunEnd) -> None:
        for watcher in self.watchers:
            watcher.on_end(end)


class MetricsLog(Watcher):
    """Writes metrics.jsonl, and the recipe once it is sure that the run goes on with it."""

    def __init__(self, folder: RunFolder, recipe: str) -> None:
        self.folder, self.recipe = folder, recipe

    def on_start(self, start: RunStart) -> None:
        self.folder.write_recipe(self.recipe)
        for note in start.notes:
            self.on_note(start.step, note)

    def on_step(self, report: StepReport) -> None:
        kept = ("step", "loss", "lr", "grad_norm", "tokens", "seconds", "epoch")
        self.folder.append_log({"kind": "step", **{name: getattr(report, name) for name in kept}})

    def on_evaluate(self, report: EvalReport) -> None:
        self.folder.append_log({"kind": "eval", "step": report.step, "seconds": report.seconds, **report.metrics})
        self.folder.sync_log()

    def on_note(self, step: int, text: str) -> None:
        self.folder.append_log({"kind": "note", "step": step, "text": text})

    def on_end(self, end: RunEnd) -> None:
        """A run that was stopped is over now. Any other has come to its end when its model is there."""
        if end.reason == "signal":
            self.log_end(end)

    def log_end(self, end: RunEnd) -> None:
        self.folder.append_log({"kind": "end", "step": end.step, "seconds": end.seconds, "reason": end.reason})
        self.folder.sync_log()


def write_model(folder: RunFolder, prepared: PreparedRun, network: Network, end: RunEnd) -> None:
    """Make a run's folder a model folder: its weights, its tokenizer, and a card that says how it came to be."""
    recipe, metrics, mix = prepared.recipe, end.metrics, prepared.recipe.data.mix
    facts = {
        "data": format_files(recipe.data.train)
        or ", ".join(f"{name}: {format_files(one['train'])}" for name, one in mix.items()),
        "recipe": f"{recipe.objective.kind}, {end.step:,} steps in {end.seconds / 60:.1f} minutes; see recipe.toml",
    }
    if metrics:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        facts["scores"] = f"{scores} on held-out data"
    store.write_model(folder.path, prepared.config, network, prepared.tokenizer, facts=facts)


def format_files(files: Files) -> str:
    """The files of a recipe, for people to read."""
    if isinstance(files, str):
        return files
    return ", ".join(files.values() if isinstance(files, dict) else files)
