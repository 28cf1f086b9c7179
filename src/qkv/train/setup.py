"""Preparations before the first step: compile and distribute the network, restore a checkpoint.

`prepare_run(job)` returns a `TrainingRun` with all objects that the loop needs.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from qkv.data.load.loader import Loader
from qkv.data.stream.sequences import SequenceStream
from qkv.errors import QkvError
from qkv.models import Config, Network
from qkv.train.allocator import keep_freed_memory
from qkv.train.checkpoint.manager import CheckpointManager
from qkv.train.checkpoint.reader import Checkpoint
from qkv.train.compile import should_compile
from qkv.train.core_share import CoreShare
from qkv.train.evaluation import Evaluator, TaskMetrics, broadcast_json
from qkv.train.loss.training_module import TrainingModule
from qkv.train.optim.averages import Ema
from qkv.train.optim.optimizers import make_optimizer
from qkv.train.parallel.parallelize import parallelize
from qkv.train.parallel.shards import scatter_weights
from qkv.train.parallel.world import World
from qkv.train.precision import choose_precision, set_residual_dtype
from qkv.train.progress import Budget, Progress
from qkv.train.recipe.schema import Recipe, TrainSection
from qkv.train.run.folder import RunFolder, resume_command
from qkv.train.run.signals import StopSignals
from qkv.train.step import Stepper, resolve_precision
from qkv.train.tables import OPTIMIZERS
from qkv.train.watch import RunStart, Sample, Watcher

MIN_CPU_TOKENS, CACHED_NUMBERS = 2048, 2**22
"""On a CPU, the widest activation of a micro-batch has `CACHED_NUMBERS` numbers, but a micro-batch has at least
`MIN_CPU_TOKENS` tokens: then the activations stay in the cache, and memory is used again instead of being allocated."""


@dataclass
class Job:
    """Everything that `fit` needs to train a recipe."""

    recipe: Recipe
    # If parameters are sharded, the network is on the meta device, so that no accelerator holds all of them. At the
    # start rank 0 builds the whole network once, with `initial_network`, and `scatter_weights` sends it.
    network: Network
    train_data: SequenceStream
    valid_data: SequenceStream | None
    folder: RunFolder
    world: World
    watcher: Watcher = field(default_factory=Watcher)
    task_metrics: TaskMetrics | None = None
    make_sample: Callable[[Network], Sample | None] | None = None  # predicts one example, to be displayed
    micro_batch_tokens: int = 0  # what fits into memory, for `train.micro_batch_tokens = "auto"`; 0: a whole batch
    signals: StopSignals | None = None  # the stop signals of a caller that catches them already
    invariants: Mapping[str, Any] = field(default_factory=dict)  # values that must not change between start and resume
    notes: Sequence[str] = ()
    initial_network: Callable[[], Network] | None = None  # makes the initial weights for a network on the meta device
    fit_head: Callable[["Job", "TrainingRun", Any], str] | None = None  # fits a new head before the first step
    evaluate_first: bool = False  # the network was trained before, so the weights of step 0 may be the best


@dataclass
class TrainingRun:
    """All objects that the loop needs. If the run has a checkpoint, they are restored from it."""

    network: Network
    stepper: Stepper
    ema: Ema | None
    loader: Loader
    manager: CheckpointManager
    evaluator: Evaluator
    budget: Budget
    progress: Progress
    notes: list[str]
    is_resumed: bool
    share: CoreShare = field(default_factory=CoreShare)  # of the whole run

    def fraction_done(self) -> float:
        """Return the fraction of the budget that is spent, 0 … 1."""
        progress = self.progress
        return self.budget.fraction_done(progress.step, progress.seconds, self.loader.cursor, progress.cpu_seconds)

    def end_reason(self, section: TrainSection, fraction_done: float) -> str:
        """Return why the run ends now: the limit of the budget, or "patience"; "" if it continues."""
        if fraction_done >= 1:
            return self.budget.reason(self.progress.step, self.progress.seconds, self.progress.cpu_seconds)
        return "patience" if section.patience and self.progress.evals_since_best >= section.patience else ""


def prepare_run(job: Job, signals: StopSignals) -> TrainingRun:
    """Make all objects that the loop needs, and restore the newest checkpoint if there is one."""
    section, world = job.recipe.train, job.world
    checkpoint = find_checkpoint(job)
    network = job.network if job.initial_network else job.network.to(world.device)
    training_module = TrainingModule(network, job.recipe.objective)
    if world.device.type == "cpu":
        keep_freed_memory()
    progress, decision_notes = decide(section, world, training_module, job.train_data, checkpoint)
    section = replace(section, precision=cast(Literal["float32", "bfloat16", "float16"], progress.precision))
    training_module = prepare_module(training_module, section, world, compiled=progress.compiled)
    module = parallelize(training_module, world, section)
    if job.initial_network and checkpoint is None:  # otherwise the checkpoint has the weights
        scatter_weights(network, job.initial_network() if world.rank == 0 else None, world)
    trained = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    fused = OPTIMIZERS[section.optimizer].is_fused and not world.is_sharded
    optimizer = make_optimizer(trained, section, fused=fused, capturable=fused and world.device.type == "cuda")
    ema = Ema(trained, section.ema_decay) if section.ema_decay else None
    loader = Loader(
        job.train_data,
        rank=world.data_rank,
        world_size=world.data_size,
        num_workers=section.num_workers,
        epochs=section.epochs or None,
        pin_memory=world.device.type == "cuda",
    )
    micro_batches = num_micro_batches(section, job.train_data, world, network.config, job.micro_batch_tokens)
    fixed_shapes = network.config.has_fixed_shapes
    stepper = Stepper(module, optimizer, section, world, num_micro_batches=micro_batches, fixed_shapes=fixed_shapes)
    checkpoints = job.folder.checkpoints
    manager = CheckpointManager(checkpoints, network, stepper, ema, loader, job.invariants, job.valid_data)
    if checkpoint is not None:
        progress = manager.restore(checkpoint)
    run = TrainingRun(
        network=network,
        stepper=stepper,
        ema=ema,
        loader=loader,
        manager=manager,
        evaluator=Evaluator(
            module,
            network,
            stepper,
            job.valid_data,
            job.task_metrics,
            signals,
            job.watcher.on_eval_progress,
        ),
        budget=Budget.from_section(section, job.train_data),
        progress=progress,
        notes=[*job.notes, *training_module.notes, *decision_notes],
        is_resumed=checkpoint is not None,
    )
    if checkpoint is not None:
        run.notes += [*checkpoints.skipped, *manager.notes, resume_message(job.recipe.run, run, section)]
        checkpoints.prune(progress.step)
    elif any(record.get("kind") == "step" for record in job.folder.log_records()):
        run.notes.append("this run was started before and has no checkpoint: it starts again at step 0")
    if world.rank == 0:
        job.folder.truncate_log(progress.step)
    return run


def decide(
    section: TrainSection, world: World, module: TrainingModule, data: SequenceStream, checkpoint: Checkpoint | None
) -> tuple[Progress, list[str]]:
    """Return the progress of the checkpoint, or of a new run with its decisions (compiling, precision), and notes."""
    notes = []
    if checkpoint is not None:
        progress = Progress.from_dict(checkpoint.state["progress"])
        if section.precision != "auto":
            progress.precision = section.precision
    else:
        compiled, compile_note = should_compile(section, world, module.network, data)
        precision, precision_note = broadcast_json(world, choose_precision(section, world, module, data))
        progress, notes = Progress(compiled=compiled, precision=precision), [compile_note, precision_note]
    if section.residual_dtype == "bfloat16" and progress.precision != "bfloat16":
        notes.append(f'train.residual_dtype = "bfloat16" has no effect: this run computes in {progress.precision}')
    return progress, [note for note in notes if note]


def find_checkpoint(job: Job) -> Checkpoint | None:
    """Return the newest readable checkpoint, or None for a new run. Raise if a run has lost its checkpoints."""
    checkpoints = job.folder.checkpoints
    found = checkpoints.newest()
    if found is None and checkpoints.skipped:
        raise QkvError(
            f"{job.recipe.run}: no checkpoint of this run can be read:\n  "
            + "\n  ".join(checkpoints.skipped)
            + "\nRestore one from a backup, or start a new run in another folder (run=…)"
        )
    if found is None and job.folder.has_model:
        raise QkvError(
            f"{job.recipe.run}: this run has a model but no checkpoints, and training from step 0 would overwrite the "
            "model. Restore a checkpoint, or start a new run in another folder with run=… (to start from the weights "
            f'of this model, add model.from="{job.recipe.run}")'
        )
    return found


def prepare_module(module: TrainingModule, section: TrainSection, world: World, *, compiled: bool) -> TrainingModule:
    """Put a module into training mode, with the recipe's dtypes and gradient checkpointing. Compile it if asked."""
    module.train()
    on_gpu = world.device.type == "cuda"
    precision = resolve_precision(section, world.device)
    if precision == "bfloat16":  # in eager mode torch warns that the norms' weights are float32
        warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
    set_residual_dtype(module.network, section, precision)
    for stack in module.network.stacks.values():
        stack.gradient_checkpointing = section.gradient_checkpointing
    # Kernels of our own are compiled, too, so a run that is too short for the compiler does without them.
    if on_gpu and (compiled or section.compile == "no" or world.is_sharded):
        module.install_kernels(precision)
    if compiled:
        module.compile(dynamic=False if on_gpu else None)
    return module


def cached_tokens(config: Config) -> int:
    """Return the tokens of a micro-batch whose largest activations stay in the cache of a CPU."""
    widest = max(max(2 * stack.ffn_width, 3 * stack.width) for stack in config.stacks.values())
    return max(MIN_CPU_TOKENS, CACHED_NUMBERS // widest)


def num_micro_batches(
    section: TrainSection, data: SequenceStream, world: World, config: Config, auto_tokens: int = 0
) -> int:
    """Return the number of micro-batches into which each rank splits its part of a batch.

    `auto_tokens` is the size of a micro-batch if the recipe leaves it to the machine. Rank 0 decides for all.
    """
    tokens = auto_tokens if section.micro_batch_tokens == "auto" else int(section.micro_batch_tokens)
    if section.micro_batch_tokens == "auto" and world.device.type == "cpu":
        tokens = min(tokens or section.batch_tokens, cached_tokens(config))
    return int(broadcast_json(world, data.num_micro_batches(tokens, world.data_size) if tokens else 1))


def resume_message(run: str, resumed: TrainingRun, section: TrainSection) -> str:
    """Return a note. A note: the step that the run resumes from or, if the run has ended, which limit to raise."""
    reason = resumed.end_reason(section, resumed.fraction_done())
    if not reason:
        return f"resuming from step {resumed.progress.step:,}"
    why = (
        "the run ended because the metric no longer improved"
        if reason == "patience"
        else "the budget of this run is spent"
    )
    return f"{why}; to continue, raise train.{reason}: {resume_command(run)} train.{reason}=…"


def describe_start(job: Job, run: TrainingRun) -> RunStart:
    """Return the report that watchers get before the first step."""
    section, parameters = job.recipe.train, list(job.network.parameters())
    return RunStart(
        run=job.recipe.run,
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in parameters if p.requires_grad),
        step=run.progress.step,
        steps=section.steps,
        minutes=section.minutes,
        cpu_minutes=section.cpu_minutes,
        device=str(job.world.device),
        notes=tuple(run.notes),
    )
