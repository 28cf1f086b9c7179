"""A trace: the activations of one text, by the name of their site. `record.py` makes traces.

    t = trace(network, ids, sites=["decoder.*.pattern", "logits"])
    t["decoder.0.pattern"]                  # (H, T, S): heads, queries, keys
    t.save("cat.safetensors")

T target length or queries, S source length or keys, H heads, KV key/value heads, D head dim, C model width, L layers,
V vocabulary
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qkv.errors import QkvError, UsageError, shorten, suggest_name
from qkv.files import describe_os_error, open_file, parse_json, partial_path, publish_file
from qkv.inside.look.trace_page import look_at_trace
from qkv.inside.tokens import TokenList

LOGITS = "logits"
"""The site of the head's output. It is not a site of a `Tap`, because the head is not part of a stack."""
FORMAT = "qkv-trace"
VERSION = 1


@dataclass(frozen=True)
class Trace:
    """The activations of one text, or of one source and target. There is no batch axis; tensors are on the CPU.

    Shapes: residual stream (T, C); q and z (H, T, D); k and v (KV, S, D); scores and pattern (H, T, S); logits (T, V),
    or (V,) if the head pools.
    """

    values: dict[str, Tensor]
    tokens: dict[str, TokenList]  # by stack: "encoder", "decoder", or both for an encoder-decoder
    heads: tuple[int, ...] | None = None  # the heads of scores and patterns, if not all of them were recorded
    token_type_ids: tuple[int, ...] | None = None  # the token types that the encoder read, if any were given

    def __getitem__(self, site: str) -> Tensor:
        if site not in self.values:
            raise UsageError(f"nothing was recorded at {site!r}; {suggest_name(site, self.values)}")
        return self.values[site]

    def __contains__(self, site: object) -> bool:
        return site in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        tokens = ", ".join(f"{len(tokens)} {stack} tokens" for stack, tokens in self.tokens.items())
        num_bytes = sum(value.numel() * value.element_size() for value in self.values.values())
        return f"<trace of {tokens}: {len(self.values)} sites, {num_bytes / 1e6:.1f} MB>"

    def _repr_html_(self) -> str:
        """The tokens and the attention patterns, as a page in a frame of a notebook."""
        return look_at_trace(self.values, self.tokens, self.heads)._repr_html_()

    @property
    def output_stack(self) -> str:
        """The name of the stack under the head."""
        return "decoder" if "decoder" in self.tokens else "encoder"

    def queries(self, site: str) -> TokenList:
        """Return the tokens along the token axis of a site. For scores and patterns, these are the queries."""
        if site == LOGITS:
            return self.tokens[self.output_stack]
        stack, _, activation = site.partition(".")
        is_source = activation.endswith(("cross_k", "cross_v"))
        return self.tokens["encoder" if is_source else stack]

    def keys(self, site: str) -> TokenList:
        """Return the tokens along the key axis of scores and patterns. For cross-attention, these are the source."""
        return self.tokens["encoder"] if "cross_" in site else self.queries(site)

    def layers(self, activation: str, stack: str | None = None) -> Tensor:
        """Return an activation of all recorded layers as one tensor with a layer axis: "resid_post" → (L, T, C).

        `stack` is "encoder" or "decoder"; by default, it is the stack under the head.
        """
        stack = stack or self.output_stack
        found = [value for name, value in self.values.items() if fnmatchcase(name, f"{stack}.*.{activation}")]
        if not found:
            known = {name.rsplit(".", 1)[-1] for name in self.values if name.startswith(stack)}
            raise UsageError(f"no {activation!r} of the {stack} was recorded; {suggest_name(activation, known)}")
        return torch.stack(found)

    def save(self, path: str | Path) -> None:
        """Write the trace as one safetensors file, atomically."""
        write_tensors(Path(path), self.values, describe_trace(self))

    @staticmethod
    def load(path: str | Path) -> "Trace":
        """Read a trace that `save` wrote."""
        with report_damage(Path(path)):
            return read_trace(*open_tensors(Path(path)))


def describe_trace(trace: Trace) -> dict[str, Any]:
    """Return everything about a trace that is not a tensor, as JSON values."""
    tokens = {stack: asdict(tokens) for stack, tokens in trace.tokens.items()}
    for values in tokens.values():
        if not values["positions"]:
            del values["positions"]
    types = trace.token_type_ids
    return {"sites": list(trace.values), "tokens": tokens, "heads": trace.heads, "token_type_ids": types}


def read_trace(file: Any, description: Mapping[str, Any], prefix: str = "") -> Trace:
    """Build a trace from its description and from an open safetensors file, whose tensor names have the prefix."""
    tokens = {
        stack: TokenList(**{name: tuple(values) for name, values in fields.items()})
        for stack, fields in description["tokens"].items()
    }
    values = {site: file.get_tensor(prefix + site).clone() for site in description["sites"]}
    heads, types = description["heads"], description["token_type_ids"]
    return Trace(values, tokens, None if heads is None else tuple(heads), None if types is None else tuple(types))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Write tensors and a JSON description as one safetensors file, atomically."""
    save_tensors(path, tensors, {"format": FORMAT, "version": str(VERSION), "description": json.dumps(description)})


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and metadata as one safetensors file, atomically. Missing folders are made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(_with_own_memory(tensors), partial_path(path), metadata=metadata)
        publish_file(partial_path(path), path)
    except (OSError, SafetensorError) as error:
        partial_path(path).unlink(missing_ok=True)
        raise QkvError(f"{path}: cannot be written ({describe_os_error(error)}); give another path") from error


def _with_own_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors, with a copy of each one that shares its memory with an earlier one."""
    out: dict[str, Tensor] = {}
    memories: set[int] = set()
    for name, tensor in tensors.items():
        contiguous = tensor.contiguous()
        memory = contiguous.untyped_storage().data_ptr()
        out[name] = contiguous.clone() if memory in memories else contiguous
        memories.add(memory)
    return out


def open_tensors(path: Path) -> tuple[Any, dict[str, Any]]:
    """Open a file that `write_tensors` wrote, and return it with its description."""
    with report_damage(path):
        file: Any = safe_open(path, framework="pt")
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise QkvError(f"{path}: not a trace, but another safetensors file; give a file that Trace.save wrote")
        if int(metadata["version"]) > VERSION:
            version = shorten(metadata["version"], 20)
            raise QkvError(f"{path}: written by a newer qkv (version {version} of the format); update qkv")
        description = parse_json(metadata["description"])
        if not isinstance(description, dict):
            raise ValueError("its description is not a JSON object")
        return file, description


def read_weights(file: Any) -> dict[str, Tensor]:
    """Read all tensors of an open safetensors file; a ValueError is raised if they are not floating-point numbers."""
    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - a safetensors file is not a dict
    if others := [name for name, tensor in tensors.items() if not tensor.is_floating_point()]:
        raise ValueError(f"{shorten(others[0])} is stored as {tensors[others[0]].dtype}")
    return tensors


@contextmanager
def report_damage(path: Path) -> Iterator[None]:
    """Inside, any exception that a damaged file can cause becomes a `QkvError`. A pipe or a device is refused."""
    open_file(path).close()
    try:
        yield
    except (OSError, SafetensorError, ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        reason = shorten(describe_os_error(error), 300)
        raise QkvError(f"{path}: the file is not complete ({reason}); check the path, or write it again") from error
