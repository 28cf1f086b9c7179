"""Keep freed memory instead of returning it to the system.

A training step on a CPU allocates and frees the same large tensors again and again. By default, glibc returns large
blocks to the system, and the system clears every page before it gives them out again, which takes a tenth of the time
of a step or more.
"""

import ctypes
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""The numbers of glibc's parameters in `mallopt`."""
MAX_MMAP_THRESHOLD = 32 * 2**20
"""glibc's limit. Larger blocks are always returned, so activations should be smaller; see `setup.cached_tokens`."""


def keep_freed_memory() -> None:
    """Let glibc's allocator keep up to 1 GiB of freed memory. With another C library, nothing changes."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, MAX_MMAP_THRESHOLD)
        mallopt(TRIM_THRESHOLD, 2**30)
        mallopt(TOP_PAD, 64 * 2**20)
