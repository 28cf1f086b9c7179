"""The settings of a server: its address, its models and its limits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qkv.errors import UsageError

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """The settings of a server. An error that a limit causes names the limit."""

    # Models
    device: str = "cpu"
    dtype: str | None = None  # None: as stored
    precision: Literal["int8", "int4"] | None = None  # quantized weights, on a CPU
    max_sequences: int = 64  # requests that one engine runs at the same time
    cache_mib: int = 1024  # keys and values of one engine; it allocates less if its sequences cannot use it all
    min_free_mib: int = 256  # with less free memory, requests are refused and models are not loaded
    # Limits of a request
    max_body_bytes: int = MIB
    max_tokens: int = 4096  # new tokens of one choice
    max_choices: int = 128  # prompts × n
    max_texts: int = 256  # texts of a call that is not a generation
    max_trace_bytes: int = 16 * MIB  # tensors of a trace
    body_seconds: float = 20.0  # time to receive the body
    request_seconds: float = 300.0  # time for everything
    # Limits of the server
    max_queue: int = 256  # unfinished requests of one model; more get 429
    max_connections: int = 1024
    gather_seconds: float = 0.004  # other calls wait this long for more calls to join their batch
    flush_seconds: float = 0.005  # the shortest time between two notifications of new text
    drain_seconds: float = 30.0  # after a stop signal, running requests get this long to finish
    # Access
    keys: Path | None = None  # a file with hashed API keys; None: no key is needed
    cors_origins: tuple[str, ...] = ()  # the origins whose pages may use the server; by default, none but its own
    allowed_hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]", "testserver")  # "*" allows every host name
    # Logs
    log_file: Path | None = None  # None: stderr
    log_texts: bool = False  # whether logs contain the bodies of requests

    def check(self) -> None:
        """Raise an error for a value that cannot work."""
        for name, value in vars(self).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                minimum = 0 if name.endswith("_seconds") or name == "min_free_mib" else 1
                if value < minimum:
                    option = "--" + name.replace("_", "-")
                    raise UsageError(f"{option} {value}: must be at least {minimum}; raise it")
