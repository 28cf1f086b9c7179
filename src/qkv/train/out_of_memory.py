"""Out-of-memory errors: recognise them on any device, and suggest changes to the recipe."""

import torch

from qkv.errors import QkvError
from qkv.train.recipe.schema import TrainSection

CPU_MESSAGES = ("can't allocate memory", "cannot allocate memory", "not enough memory")
"""Parts of error messages. There is no exception type for running out of CPU memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the memory of a device ran out.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    True
    >>> is_out_of_memory(RuntimeError("shapes do not match"))
    False
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(words in str(error).lower() for words in CPU_MESSAGES)


def out_of_memory_error(
    section: TrainSection, error: BaseException, what: str = "a step", *, single_process: bool = True
) -> QkvError:
    """Make the error for a step (or an evaluation) that does not fit into memory."""
    auto = '; "auto" finds a size that fits' if single_process else ""
    return QkvError(
        f"{what} does not fit into the memory of the device ({str(error).splitlines()[0]}). Lower "
        f"train.micro_batch_tokens (the same batch in smaller micro-batches{auto}), train.batch_tokens = "
        f"{section.batch_tokens} or data.max_length; or set train.gradient_checkpointing = true, which saves memory "
        "and computes a third more"
    )
