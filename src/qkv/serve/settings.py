"""The settings of a server: its models, its limits, who may use it, and its log."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qkv.errors import UsageError

MIB = 2**20
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """The settings of a server. If a request exceeds a limit, the error names the limit."""

    device: str = "cpu"
    """Device: cpu, cuda or mps."""
    dtype: str | None = None
    """Dtype of the weights, such as bfloat16. Default: as stored."""
    precision: Literal["int8", "int4"] | None = None
    """Quantize the weights, for decoding on a CPU."""
    max_sequences: int = 64
    """Maximum number of texts that a model generates at the same time."""
    cache_mib: int = 1024
    """Memory for the KV cache of each model, in MiB; a small model takes less."""
    min_free_mib: int = 256
    """Free memory below which requests get a 503, and no model is loaded, in MiB."""
    max_body_bytes: int = MIB
    """Maximum size of the body of a request."""
    max_tokens: int = 4096
    """Maximum number of new tokens of a text."""
    max_choices: int = 128
    """Maximum number of texts that one request generates: prompts × n."""
    max_texts: int = 256
    """Maximum number of texts in a request for another task."""
    max_trace_bytes: int = 16 * MIB
    """Maximum size of a trace."""
    body_seconds: float = 20.0
    """Maximum time to receive the body of a request."""
    request_seconds: float = 300.0
    """Maximum time to answer a request."""
    constraint_seconds: float = 10.0
    """Maximum time to compile the constraint of a request."""
    max_queue: int = 256
    """Maximum number of unfinished generations of a model; further requests get a 429."""
    max_connections: int = 1024
    """Maximum number of connections."""
    max_connections_per_address: int = 256
    """Maximum number of connections of one address; raise it behind a proxy."""
    header_seconds: float = 10.0
    """Maximum time to receive the headers of a request."""
    write_seconds: float = 30.0
    """Maximum time that a client may pause while it reads an answer."""
    max_unsent_bytes: int = 256 * MIB
    """Maximum size of all answers that clients have not read yet."""
    gather_seconds: float = 0.004
    """Time that a call waits for others to join its batch. It does not apply to generation, which batches continuously.
    """
    max_chunks_per_second: int = 2000
    """Maximum number of chunks per second in all streams of a model; above it, chunks have several tokens."""
    drain_seconds: float = 30.0
    """Maximum time that running requests may take after a stop signal."""
    keys: Path | None = None
    """File with hashed API keys, which qkv new-key writes. Default: no key is needed."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may use the server, such as https://example.org."""
    allowed_hosts: tuple[str, ...] = LOCAL_HOSTS
    """Host names that the server accepts in requests; *: any name."""
    log_file: Path | None = None
    """File for the log. Default: stderr."""
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
