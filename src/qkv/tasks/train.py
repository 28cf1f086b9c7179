"""Train a recipe: prepare its data and model, run the training loop, and make the run's folder a model folder.

    trained = train(open_recipe("dates", ["train.minutes=1"]))
    trained.network, trained.tokenizer, trained.run_end.metrics

To resume a run, pass its folder to `open_recipe`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch

from qkv import store
from qkv.data.records import Record
from qkv.errors import QkvError, UsageError, count_nouns
from qkv.files import to_path
from qkv.models import Config, Network, build
from qkv.models.runtime import free_memory
from qkv.models.tables.summary import summarise_model
from qkv.progress import OnProgress, OnStage
from qkv.store.hub import resolve_folder
from qkv.tasks.calibrate import calibrate
from qkv.tasks.evaluate import evaluate, has_option, main_metric
from qkv.tasks.evaluation import Evaluation
from qkv.tasks.prepare.memory import choose_micro_batch
from qkv.tasks.prepare.model import apply_adapters, needs_new_head
from qkv.tasks.prepare.prepare import PreparedRun, prepare, uses_in_batch_negatives
from qkv.tasks.table import find_task
from qkv.tasks.task import Task
from qkv.tasks.text_model import TextModel
from qkv.tasks.watchers import MetricsLog, WatcherGroup
from qkv.text import Tokenizer
from qkv.train.adapt import merge_lora
from qkv.train.head_fit import can_fit_head, fit_head
from qkv.train.loop import StoppedBySignal, fit
from qkv.train.parallel.shards import gather_network
from qkv.train.parallel.world import World, init_world
from qkv.train.recipe import recipe_file
from qkv.train.recipe.schema import Recipe, format_files
from qkv.train.recipe.table import to_table
from qkv.train.run.folder import RunFolder, resume_command
from qkv.train.run.signals import StopRequested, StopSignals
from qkv.train.run.trackers import make_trackers
from qkv.train.setup import Job
from qkv.train.watch import RunEnd, Sample, Watcher

EXCERPT_CHARS = 2000
"""Where only a sample of a language model's validation text is evaluated, it has excerpts of this length."""
COLLECTIVE_BACKENDS = ("gloo", "NCCL")
"""Names that occur in the errors of collective operations. Such an error means that another rank has failed."""


@dataclass
class TrainingResult:
    """The trained model, and how the run ended."""

    recipe: Recipe
    config: Config
    network: Network
    tokenizer: Tokenizer
    run_end: RunEnd
    notes: list[str]
    fields: frozenset[str] = frozenset()  # fields of the records that it was trained on, such as "messages" for chats


def open_recipe(name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read the recipe of a file, a built-in name or a run's folder, apply overrides, and set `run` if it is empty.

    A run that has checkpoints must be resumed with its own recipe; only some keys may change.
    """
    recipe_file.import_plugins_of(name, overrides)
    recipe = recipe_file.read(name, overrides)
    path = to_path(name)
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
    recipe: Recipe, *, watch: Watcher | None = None, progress: OnStage | None = None, world: World | None = None
) -> TrainingResult:
    """Train a recipe, or resume the run in its folder."""
    world = world or init_world(recipe.train)
    try:
        with StopSignals(world.size > 1, mode="abort", announce=world.rank == 0) as signals:
            trained = train_on_rank(world, recipe, watch, progress, signals)
    except StopRequested as stop:
        world.leave(failed=True)
        command = resume_command(recipe.run, world.size)
        raise StoppedBySignal(stop.number, f"stopped; nothing is lost. Start or resume with: {command}") from None
    except BaseException as error:
        world.leave(failed=not isinstance(error, StoppedBySignal))
        is_collective = isinstance(error, RuntimeError) and any(name in str(error) for name in COLLECTIVE_BACKENDS)
        if world.size > 1 and is_collective:
            cause, command = str(error).splitlines()[0], resume_command(recipe.run, world.size)
            raise QkvError(
                f"rank {world.rank} lost its connection to another rank ({cause}); see that rank's log for the cause. "
                f"Resume from the newest checkpoint with: {command}"
            ) from error
        raise
    world.leave()
    return trained


def train_on_rank(
    world: World, recipe: Recipe, watch: Watcher | None, progress: OnStage | None, signals: StopSignals
) -> TrainingResult:
    """Train a recipe as one rank of a world."""
    if recipe.model.lora_rank and world.is_sharded:
        raise UsageError(
            f"model.lora_rank = {recipe.model.lora_rank}: LoRA does not support sharded weights; set "
            'train.parallel = "ddp" and train.tensor_parallel = 1, or leave it out'
        )
    is_first = world.rank == 0
    keep = max(recipe.train.keep_checkpoints, recipe.train.average_checkpoints)
    folder = RunFolder(recipe.run, max_to_keep=keep, rank=world.rank, world_size=world.size)
    with ExitStack() as stack:
        if is_first:
            stack.enter_context(folder.lock())
        if recipe.train.num_threads:
            torch.set_num_threads(recipe.train.num_threads)
        if is_first:
            folder.write_initial_recipe(recipe_file.to_toml(recipe))
        prepared = prepare_rank_zero_first(recipe, folder, world, progress)
        notes = [*prepared.notes, *folder.notes, *in_batch_negative_notes(prepared, world.data_size)]
        can_split = not uses_in_batch_negatives(recipe, prepared.fields)
        micro_batch_tokens, memory_note = choose_micro_batch(
            recipe,
            prepared.config,
            prepared.train_data,
            free_memory_of_rank(world),
            can_split=can_split,
            shards=world.size if world.is_sharded else 1,
        )
        notes += [memory_note] if memory_note else []
        if is_first:
            notes += folder.write_env(str(world.device), torch.get_num_threads())
        # In a sharded run no rank holds the whole network: it is built on the meta device, sharded, and then loaded.
        network = build(prepared.config, device="meta") if world.is_sharded else prepared.build_network()
        network = apply_adapters(network, recipe, prepared.config)
        watchers: list[Watcher] = []
        summary = summarise_model(prepared.config, max(prepared.train_data.max_lengths))
        flops = None if summary.unstated_flops else summary.flops_training
        log = MetricsLog(folder, recipe_file.to_toml(recipe), flops)
        if is_first:
            tracked = make_trackers(recipe.train.trackers, folder.path, to_table(recipe))
            watchers = [log, *([watch] if watch else []), *tracked]
        main = main_metric(prepared.config, prepared.valid_records) if prepared.valid_records else ""
        task_metrics = ValidationMetrics(prepared)
        job = Job(
            recipe=recipe if can_split else replace(recipe, train=replace(recipe.train, micro_batch_tokens=0)),
            network=network,
            train_data=prepared.train_data,
            valid_data=prepared.valid_data,
            folder=folder,
            world=world,
            watcher=WatcherGroup(watchers),
            task_metrics=task_metrics if main else None,
            make_sample=task_metrics.sample if main and watch is not None and world.size == 1 else None,
            invariants=resume_fingerprint(prepared),
            notes=notes,
            micro_batch_tokens=micro_batch_tokens,
            signals=signals,
            initial_network=prepared.build_network if world.is_sharded else None,
            **plan_start(prepared, network, world),
        )
        end = fit(job)
        config = prepared.config
        whole = gather_network(network, world, torch.device("cpu"))
        if whole is not None:
            if recipe.model.lora_rank:
                merge_lora(whole)
            model = TextModel(whole.eval(), prepared.tokenizer, config)
            config, calibration = calibrate(
                model, prepared.valid_records, prepared.scope_records, recipe.objective.out_of_scope
            )
            write_model(folder, prepared, replace(model, config=config), end, calibration)
            log.log_end(end)
        world.barrier()
    return TrainingResult(recipe, config, whole or network, prepared.tokenizer, end, notes, prepared.fields)


def plan_start(prepared: PreparedRun, network: Network, world: World) -> dict[str, Any]:
    """What a run starts with: fitting a new head, or evaluating a network that was trained for the same task."""
    recipe = prepared.recipe
    if world.size > 1:
        return {}
    if recipe.model.from_ and not needs_new_head(recipe, prepared.config):
        return {"evaluate_first": recipe.train.final == "best"}
    if recipe.train.fit_head and network.head.one_hot is not None:
        from qkv.text.residues import describe_residues
        from qkv.train.one_hot_fit import can_fit_table, fit_table

        tokens = map(prepared.tokenizer.id_to_token, range(prepared.config.stack.vocab_size))
        if can_fit_table(network, prepared.fields):
            return {"fit_head": partial(fit_table, properties=describe_residues(tokens))}
    if recipe.model.from_ and recipe.train.fit_head and can_fit_head(network):
        return {"fit_head": fit_head}
    return {}


def in_batch_negative_notes(prepared: PreparedRun, data_parallel_size: int) -> list[str]:
    """A note that in-batch negatives come from one rank only."""
    if data_parallel_size < 2 or not uses_in_batch_negatives(prepared.recipe, prepared.fields):
        return []
    return [
        f"contrastive: each of {data_parallel_size} ranks compares only the pairs of its own shard of a batch, so the "
        "loss differs from the loss of a single process with the same train.batch_tokens"
    ]


def free_memory_of_rank(world: World) -> int | None:
    """The bytes that a rank may use. The ranks of a CPU share its memory."""
    free = free_memory(world.device)
    return free // world.size if free is not None and world.device.type == "cpu" else free


def prepare_rank_zero_first(recipe: Recipe, folder: RunFolder, world: World, progress: OnStage | None) -> PreparedRun:
    """Prepare the data first on rank 0 and then on the other ranks, which find it in the cache."""
    prepared = None
    if world.rank == 0:
        if recipe.model.from_ and folder.has_progress:
            check_base_model(recipe.model.from_)
        kept = Tokenizer.load(folder.path) if (folder.path / "tokenizer.json").exists() else None
        free = None if world.is_sharded else free_memory_of_rank(world)
        prepared = prepare(recipe, progress, tokenizer=kept, free_memory=free)
        if kept is None:
            prepared.tokenizer.save(folder.path)
    world.barrier()
    return prepared or prepare(recipe, None, tokenizer=Tokenizer.load(folder.path))


def check_base_model(model: str) -> None:
    """Raise an error if the base model of a resumed run no longer exists."""
    try:
        resolve_folder(model)
    except QkvError as error:
        raise QkvError(
            f"model.from: {error}. The run's checkpoints have all weights, but the model's config is read from "
            "model.from; put the model back to resume"
        ) from error


def resume_fingerprint(prepared: PreparedRun) -> dict[str, Any]:
    """The config and the tokenizer's fingerprint, which must not change when a run is resumed.

    The data loader checks its own state.
    """
    return {"tokenizer": prepared.tokenizer.fingerprint, **dict(_flatten("model", prepared.config.to_dict()))}


def _flatten(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _flatten(f"{path}.{name}", one)
    else:
        yield path, list(value) if isinstance(value, tuple) else value


class ValidationMetrics:
    """Computes the task's metrics and predictions on the validation records, or on a fixed random sample of them."""

    def __init__(self, prepared: PreparedRun) -> None:
        self.prepared, self.task = prepared, find_task(prepared.config)
        self.examples = split_long_texts(prepared.valid_records, self.task)
        self.shuffled = Random(prepared.recipe.train.seed).sample(self.examples, len(self.examples))
        self.num_examples = len(self.examples)
        self.max_examples = len(self.examples) + len(prepared.more_valid_records)
        self.next_record = 0

    def __call__(
        self, network: Network, num_examples: int = 0, progress: OnProgress | None = None, resamples: int = 0
    ) -> Evaluation:
        train = self.prepared.recipe.train
        metrics = () if train.metric in ("", "loss") else (train.metric,)
        records = self.shuffled[:num_examples] if num_examples else self.prepared.valid_records
        records = [*records, *self.prepared.more_valid_records[: max(0, num_examples - self.num_examples)]]
        options = {"beam": train.eval_beam, "metrics": metrics, "progress": progress, "resamples": resamples}
        return self._evaluate(network, records, **options)

    def sample(self, network: Network) -> Sample | None:
        """A prediction for one validation example; each call uses the next example."""
        example = self.examples[self.next_record % len(self.examples)]
        self.next_record += 1
        samples = self._evaluate(network, [example]).samples
        return samples[0] if samples else None

    def _evaluate(self, network: Network, records: Sequence[Record], **options: Any) -> Evaluation:
        # The labels of a small sample may all be missing in the training data.
        options |= {"check_classes": False}
        options = {name: value for name, value in options.items() if has_option(self.task, name)}
        return evaluate(network, self.prepared.tokenizer, self.prepared.config, records, **options)


def split_long_texts(records: Sequence[Record], task: Task) -> list[Record]:
    """The records as examples of similar length: a language model's long texts are split, so that they can be sampled.

    A text file is a single record, which may have gigabytes.
    """
    if not task.reads_documents:
        return list(records)
    examples = []
    for record in records:
        text = record.fields.get("text", "")
        starts = range(0, len(text), EXCERPT_CHARS) if len(text) > EXCERPT_CHARS else ()
        pieces = [replace(record, fields={**record.fields, "text": text[i : i + EXCERPT_CHARS]}) for i in starts]
        examples += pieces or [record]
    return examples


def format_interval(end: RunEnd, metric: str) -> str:
    """The 95 % confidence interval of a metric at the end of a run, in brackets; "" if there is none."""
    interval = end.final.intervals.get(metric) if end.final is not None else None
    return "" if interval is None else f" [{interval[0]:.4g}, {interval[1]:.4g}]"


def write_model(folder: RunFolder, prepared: PreparedRun, model: TextModel, end: RunEnd, calibration: str = "") -> None:
    """Make a run's folder a model folder: weights, tokenizer, and a model card with fields that describe the run."""
    recipe, metrics, mix = prepared.recipe, end.metrics, prepared.recipe.data.mix
    steps = count_nouns(end.step, "step")
    card_fields = {
        "data": format_files(recipe.data.train)
        or ", ".join(f"{name}: {format_files(one['train'])}" for name, one in mix.items()),
        "recipe": f"{recipe.objective.kind}, {steps} in {end.seconds / 60:.1f} minutes; see recipe.toml",
    }
    if metrics:
        scores = ", ".join(f"{name} {value:.4f}{format_interval(end, name)}" for name, value in metrics.items())
        examples = f" ({count_nouns(end.final.num_examples, 'example')})" if end.final is not None else ""
        card_fields["scores"] = f"{scores} on validation data{examples}" + (f"; {end.subset}" if end.subset else "")
    if calibration:
        card_fields["calibration"] = calibration
    store.write_model(folder.path, model.config, model.network, model.tokenizer, card_fields=card_fields)
