"""Memory: whether a model or a request still fits."""

import time
from pathlib import Path

import torch

from qkv.errors import QkvError
from qkv.models.runtime import free_memory
from qkv.serve.http.api_error import ApiError
from qkv.serve.settings import MIB, ServeSettings
from qkv.store.hub import find_bundled

WEIGHT_SUFFIXES = (".safetensors", ".gguf")
CHECK_SECONDS = 0.25


class MemoryGuard:
    """Refuses work when the free memory of the machine, or of the GPU, is below a limit."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.devices = [torch.device("cpu")]
        if torch.device(settings.device).type == "cuda":
            self.devices.append(torch.device(settings.device))
        self._checked_at, self._free = 0.0, 0

    def free_bytes(self, *, now: bool = False) -> int:
        """The free memory of the device that has least. It is read again after a quarter of a second."""
        if now or time.monotonic() - self._checked_at > CHECK_SECONDS:
            known = [free for free in map(free_memory, self.devices) if free is not None]
            self._free, self._checked_at = min(known, default=2**62), time.monotonic()
        return self._free

    def check_request(self) -> None:
        """Raise a 503 if too little memory is free for any request."""
        minimum = self.settings.min_free_mib * MIB
        if self.free_bytes() < minimum:
            free = self.free_bytes() // MIB
            raise ApiError(
                503,
                f"only {free:,} MiB of memory are free, and the server keeps min_free_mib = "
                f"{self.settings.min_free_mib:,}; try later, or drop a model",
                code="memory",
                retry_after=5,
            )

    def check_load(self, name: str, source: str) -> None:
        """Raise an error if the files of a model are larger than the free memory."""
        needed = weight_bytes(find_bundled(source) or Path(source)) + self.settings.min_free_mib * MIB
        if needed > self.free_bytes(now=True):
            raise QkvError(
                f"model {name!r} needs about {needed // MIB:,} MiB, and {self.free_bytes() // MIB:,} MiB of memory are "
                "free; drop another model first"
            )


def weight_bytes(source: Path) -> int:
    """The size of the weights of a model: of a file, or of the files of a folder. 0 if it is neither."""
    try:
        files = [source] if source.is_file() else list(source.iterdir()) if source.is_dir() else []
        return sum(file.stat().st_size for file in files if file.suffix in WEIGHT_SUFFIXES)
    except OSError:
        return 0
