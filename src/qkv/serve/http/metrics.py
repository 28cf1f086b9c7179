"""Metrics in the text format of Prometheus."""

from collections.abc import Iterable
from threading import Lock

HELP: dict[str, tuple[str, str]] = {
    "qkv_requests_total": ("counter", "Requests, by path and status."),
    "qkv_request_seconds": ("histogram", "Time from the first byte of a request to the last of its response."),
    "qkv_first_token_seconds": ("histogram", "Time from the submission of a generation to its first token."),
    "qkv_prompt_tokens_total": ("counter", "Tokens of prompts, by model."),
    "qkv_generated_tokens_total": ("counter", "Generated tokens, by model."),
    "qkv_cancelled_total": ("counter", "Requests whose client went away."),
    "qkv_requests_running": ("gauge", "Requests that are being answered."),
    "qkv_unfinished": ("gauge", "Generations and other calls that wait or run, by model."),
    "qkv_pages": ("gauge", "Pages of keys and values, by model and state."),
    "qkv_reused_tokens_total": ("counter", "Prompt tokens whose keys and values were found in cached pages, by model."),
    "qkv_preemptions_total": ("counter", "Generations that gave their pages to older ones for a while, by model."),
    "qkv_faults_total": ("counter", "Generations that failed in a forward pass, by model."),
    "qkv_batches_total": ("counter", "Batches of calls other than generations, by model."),
    "qkv_free_memory_bytes": ("gauge", "Free memory of the machine, or of the GPU if that has less."),
    "qkv_log_lines_dropped_total": ("counter", "Lines of the log that could not be written."),
}
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, dict[str, str], float]
"""A name, its labels and its value."""


class Metrics:
    """Counters and histograms. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._values: dict[tuple[str, Labels], float] = {}
        self._histograms: dict[tuple[str, Labels], list[float]] = {}

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """Increase a counter."""
        key = (name, tuple(sorted(labels.items())))
        with self._lock:
            self._values[key] = self._values.get(key, 0) + value

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add a value to a histogram."""
        with self._lock:
            counts = self._histograms.setdefault((name, tuple(sorted(labels.items()))), [0.0] * (len(BUCKETS) + 2))
            for i, bound in enumerate(BUCKETS):
                counts[i] += value <= bound
            counts[-2] += 1
            counts[-1] += value

    def render(self, current: Iterable[Sample]) -> str:
        """All metrics as text. `current` are values that are read at this moment."""
        with self._lock:
            samples = [(name, dict(labels), value) for (name, labels), value in self._values.items()]
            histograms = [(name, dict(labels), list(counts)) for (name, labels), counts in self._histograms.items()]
        lines: dict[str, list[str]] = {name: [] for name in HELP}
        for name, labels, value in [*samples, *current]:
            lines[name].append(f"{name}{format_labels(labels)} {value:.10g}")
        for name, labels, counts in histograms:
            for bound, count in zip([*map(str, BUCKETS), "+Inf"], counts, strict=False):
                lines[name].append(f"{name}_bucket{format_labels({**labels, 'le': bound})} {count:.10g}")
            for suffix, value in (("count", counts[-2]), ("sum", counts[-1])):
                lines[name].append(f"{name}_{suffix}{format_labels(labels)} {value:.10g}")
        text = [
            f"# HELP {name} {HELP[name][1]}\n# TYPE {name} {HELP[name][0]}\n" + "\n".join(found)
            for name, found in lines.items()
            if found
        ]
        return "\n".join(text) + "\n"


def format_labels(labels: dict[str, str]) -> str:
    """Labels as in {model="a",state="free"}.

    >>> format_labels({"model": 'a "b"'})
    '{model="a \\\\"b\\\\""}'
    """
    escaped = {k: v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for k, v in labels.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}" if labels else ""
