"""The settings of a server: its models, its limits, who may use it, and its log."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qkv.errors import UsageError

MIB = 2**20
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """The settings of a server. An error that a limit causes names the limit."""

    device: str = "cpu"
    """Device: cpu, cuda or mps."""
    dtype: str | None = None
    """The dtype of the weights, such as bfloat16; by default, as stored."""
    precision: Literal["int8", "int4"] | None = None
    """Quantize the weights, for decoding on a CPU."""
    max_sequences: int = 64
    """The number of texts that a model generates at the same time."""
    cache_mib: int = 1024
    """Memory for the keys and values of each model, in MiB; a small model takes less."""
    min_free_mib: int = 256
    """With less free memory, requests get a 503 and no model is loaded."""
    max_body_bytes: int = MIB
    """The largest body of a request."""
    max_tokens: int = 4096
    """The largest number of new tokens of a text."""
    max_choices: int = 128
    """The largest number of texts that one request generates: prompts × n."""
    max_texts: int = 256
    """The largest number of texts in a request for another task."""
    max_trace_bytes: int = 16 * MIB
    """The largest trace."""
    body_seconds: float = 20.0
    """The time to receive the body of a request."""
    request_seconds: float = 300.0
    """The time to answer a request."""
    max_queue: int = 256
    """The largest number of unfinished texts of a model; further requests get a 429."""
    max_connections: int = 1024
    """The largest number of connections."""
    gather_seconds: float = 0.004
    """How long a request waits for others to join its batch, if it is not a generation."""
    max_chunks_per_second: int = 2000
    """The largest number of chunks per second of all streams of a model; beyond it, a chunk has several tokens."""
    drain_seconds: float = 30.0
    """How long running requests may take after a stop signal."""
    keys: Path | None = None
    """A file with hashed API keys, as qkv new-key writes it; by default, no key is needed."""
    cors_origins: tuple[str, ...] = ()
    """Other origins, such as https://example.org, whose pages may use the server."""
    allowed_hosts: tuple[str, ...] = LOCAL_HOSTS
    """The host names that the server answers to; * is any."""
    log_file: Path | None = None
    """The file of the log; by default, stderr."""
    log_texts: bool = False
    """Write the bodies of requests to the log."""

    def check(self) -> None:
        """Raise an error for a value that cannot work."""
        for name, value in vars(self).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                minimum = 0 if name.endswith("_seconds") or name == "min_free_mib" else 1
                if not value >= minimum:
                    option = "--" + name.replace("_", "-")
                    raise UsageError(f"{option} {value}: must be at least {minimum}; raise it")
