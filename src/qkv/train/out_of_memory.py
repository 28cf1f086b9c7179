"""Whether an error says that memory ran out: torch has a type for it on a GPU, and only a message on a CPU."""

import torch

CPU_MESSAGES = ("can't allocate memory", "cannot allocate memory", "not enough memory")  # as torch and systems say it


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on whichever device.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    True
    >>> is_out_of_memory(RuntimeError("shapes do not match"))
    False
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(words in str(error).lower() for words in CPU_MESSAGES)
