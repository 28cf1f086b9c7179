"""The final weights of a run: last, best, exponential moving average, or average of several checkpoints."""

from collections.abc import Sequence

from qkv.models import Network
from qkv.train.checkpoint.files import EMA_PREFIX, WEIGHTS_PREFIX, DamagedCheckpoint, OtherFormatVersion
from qkv.train.checkpoint.folder import CheckpointFolder
from qkv.train.checkpoint.reader import Checkpoint
from qkv.train.optim.averages import CheckpointAverage, Ema
from qkv.train.parallel.shards import load_slices
from qkv.train.parallel.world import World
from qkv.train.progress import Progress
from qkv.train.recipe.schema import TrainSection


def load_final_weights(
    section: TrainSection,
    checkpoints: CheckpointFolder,
    network: Network,
    ema: Ema | None,
    progress: Progress,
    world: World,
) -> tuple[list[str], int | None]:
    """Load the final weights into the network, as the recipe selects them.

    Return notes that describe the selection, and the step of the weights, or None for an average.
    """
    source: Checkpoint | CheckpointAverage
    step: int | None = None
    best, notes = None, []
    if section.final == "best":
        try:
            best = checkpoints.best()
        except (DamagedCheckpoint, OtherFormatVersion) as error:
            notes = [f"{error}: the best weights are lost, so the final weights are the weights of the last step"]
    if section.average_checkpoints > 1:
        readable, damaged = readable_checkpoints(checkpoints, checkpoints.steps()[-section.average_checkpoints :])
        steps, source = [one.step for one in readable], CheckpointAverage(readable)
        notes += damaged
        description = f"the average of {len(steps)} checkpoints, steps {steps[0]:,} to {steps[-1]:,}"
    elif section.final == "best" and best is not None and best.step != progress.step:
        source, step = best, best.step
        description = f"those of step {best.step:,}, which has the best metric"
    elif ema is not None:
        ema.copy_to_network()
        return [*notes, "the final weights are the exponential moving average"], None
    else:
        return notes, progress.step
    for name, parameter in network.named_parameters():
        has_average = ema is not None and parameter.requires_grad  # the metric was computed with the EMA, so load that
        load_slices(parameter, source, (EMA_PREFIX if has_average else WEIGHTS_PREFIX) + name, world)
    return [*notes, f"the final weights are {description}"], step


def readable_checkpoints(checkpoints: CheckpointFolder, steps: Sequence[int]) -> tuple[list[Checkpoint], list[str]]:
    """Return the undamaged checkpoints of these steps, and a note about each damaged one."""
    readable: list[Checkpoint] = []
    damaged: list[str] = []
    for step in steps:
        try:
            checkpoint = checkpoints.open_step(step)
            checkpoint.verify()
        except (DamagedCheckpoint, OtherFormatVersion) as error:
            damaged.append(f"{error}: left out of the average")
        else:
            readable.append(checkpoint)
    return readable, damaged
