"""Weights on disk: one safetensors file, or several (shards) with an index. Pickles are refused.

Models that are distributed may be stored in int8, a quarter of the size of float32. Each matrix is stored as int8, and
a second tensor, `NAME.scale`, has one float32 factor for each of its rows:

    weight[row] = scale[row] · int8[row],   scale[row] = max |weight[row]| / 127

Rounding changes a weight by at most half its row's scale. Other tensors (norms, biases) stay in float32. Reading
multiplies the values by the factors again, so a loaded model has ordinary float32 weights.
"""

import json
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from qkv.errors import QkvError, shorten
from qkv.files import open_file, partial_path, publish_file, read_json_object, write_atomically

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_SHARD_BYTES = 5_000_000_000
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
MAX_LISTED = 8
"""How many tensor names a message lists before "…"."""
_PICKLE_HEADERS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


class Weights:
    """The tensors of a folder, by name. They are read one at a time.

    Opening the folder checks that every file is complete. With `shapes_only`, no tensor is read, and `get` returns
    tensors on the meta device; that is enough to check a folder against its config.
    """

    def __init__(self, folder: Path, *, shapes_only: bool = False) -> None:
        self.folder = folder
        self.shapes_only = shapes_only
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self._other_dtypes: dict[str, str] = {}  # tensor name → a dtype that is not floating-point
        self._files: dict[str, Any] = {}  # tensor name → the open file that contains it
        for path in _find_files(folder):
            self._open(path)
        self._int8 = self._find_int8()

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def get(self, name: str) -> Tensor:
        """Read a tensor into memory. It must have floating-point numbers; other tensors can only be ignored."""
        if name not in self.dtypes:
            raise QkvError(
                f"{self.folder}: {name} is stored as {self._other_dtypes[name]}, but weights are floating-point "
                f"numbers ({', '.join(DTYPES)}); use the original model, not a quantized or damaged one"
            )
        if self.shapes_only:
            return torch.empty(self.shapes[name], dtype=self.dtypes[name], device="meta")
        tensor: Tensor = self._files[name].get_tensor(name)
        if name in self._int8:
            try:
                return dequantize_rows(name, tensor, self._int8[name].get_tensor(name + SCALE_SUFFIX))
            except QkvError as error:
                raise QkvError(f"{self.folder}: {error}") from None
        return tensor.clone()  # a copy, because safetensors returns a view of the mapped file

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that most of the weights have."""
        sizes: dict[torch.dtype, int] = {}
        for name, dtype in self.dtypes.items():
            sizes[dtype] = sizes.get(dtype, 0) + torch.Size(self.shapes[name]).numel()
        return max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)

    def _find_int8(self) -> dict[str, Any]:
        """Count matrices in int8 as float32, and hide their scales. Returns the open file of each one's scales."""
        found: dict[str, Any] = {}
        for name in [name for name, dtype in self._other_dtypes.items() if dtype == "I8"]:
            scale = name + SCALE_SUFFIX
            if scale in self.dtypes and len(self.shapes[name]) == 2 and self.shapes[scale] == self.shapes[name][:1]:
                del self.shapes[scale], self.dtypes[scale], self._other_dtypes[name]
                found[name], self.dtypes[name] = self._files[scale], torch.float32
        return found

    def _open(self, path: Path) -> None:
        with open_file(path) as file:
            start = file.read(9)
        # A safetensors file is an 8-byte length followed by "{". The bytes of the length may look like a pickle header.
        if start.startswith(_PICKLE_HEADERS) and start[8:] != b"{":
            raise QkvError(
                f"{path}: this file is a pickle, despite its name. A pickle can run code, so it was not "
                "opened; ask for safetensors, or convert it on a machine where you trust it"
            )
        try:
            check_names(path)
            tensors: Any = safe_open(path, framework="pt")
            for name in tensors.keys():  # noqa: SIM118 - a safetensors file is not a dict
                if name in self._files:
                    raise QkvError(f"{path}: the tensor {shorten(name)} is also in another file; fetch the model again")
                tensor = tensors.get_slice(name)
                dtype = tensor.get_dtype()
                self.shapes[name] = tuple(tensor.get_shape())
                if dtype in DTYPES:
                    self.dtypes[name] = DTYPES[dtype]
                else:
                    self._other_dtypes[name] = dtype
                self._files[name] = tensors
        except (SafetensorError, OSError, ValueError) as error:
            raise QkvError(
                f"{path}: not a complete safetensors file ({error}); it may be truncated: fetch or copy it again"
            ) from error


def check_names(path: Path) -> None:
    """Raise an error if a safetensors file has two tensors of one name: the library would ignore one of them."""
    with open_file(path) as file:
        size, file_size = int.from_bytes(file.read(8), "little"), os.fstat(file.fileno()).st_size
        header = file.read(size) if size <= min(MAX_HEADER_BYTES, file_size) else b""  # the library refuses others
    with suppress(json.JSONDecodeError, UnicodeDecodeError, RecursionError):  # reported by the library
        counts: list[Counter[str]] = []  # the last one is of the outermost object
        json.loads(header, object_pairs_hook=lambda pairs: counts.append(Counter(name for name, _ in pairs)))
        for name, count in counts[-1].items() if counts else ():
            if count > 1:
                raise QkvError(
                    f"{path}: the tensor {shorten(name)} occurs {count} times, so it may be damaged; fetch it again"
                )


def _find_files(folder: Path) -> list[Path]:
    """The weight files of a folder. If there are none, the error lists what the folder contains instead."""
    if (folder / WEIGHTS_FILE).exists():
        return [folder / WEIGHTS_FILE]
    if (folder / INDEX_FILE).exists():
        return _files_in_index(folder)
    pickles = sorted(path.name for pattern in PICKLE_PATTERNS for path in folder.glob(pattern))
    if pickles:
        raise QkvError(
            f"{folder}: no safetensors, only {', '.join(pickles)}; these are pickles, which can run code, so they "
            "were not opened; ask for safetensors, or convert them on a machine where you trust them"
        )
    if (folder / "checkpoints").is_dir():
        raise QkvError(
            f"{folder}: no weights ({WEIGHTS_FILE} or {INDEX_FILE}), only the checkpoints of a run; to finish the run "
            f"or write its weights again: qkv train {shlex.quote(str(folder))}"
        )
    raise QkvError(
        f"{folder}: no weights ({WEIGHTS_FILE} or {INDEX_FILE}); copy them into this folder, or give another folder"
    )


def _files_in_index(folder: Path) -> list[Path]:
    path = folder / INDEX_FILE
    shards = read_json_object(path).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise QkvError(f"{path}: no 'weight_map' from tensor names to files; fetch or copy the file again")
    outside = [name for name in shards.values() if name != Path(name).name or name in ("", "..")]
    if outside:
        raise QkvError(
            f"{path}: {outside[0]!r} is not a file in this folder, and qkv reads no other files; fetch the model again"
        )
    paths = [folder / name for name in sorted(set(shards.values()))]
    missing = [shard.name for shard in paths if not shard.exists()]
    if missing:
        raise QkvError(
            f"{folder}: {len(missing)} of {len(paths)} weight files are missing: {', '.join(missing)}; "
            "fetch or copy them again"
        )
    return paths


def write_weights(folder: Path, tensors: Mapping[str, Tensor], max_shard_bytes: int = MAX_SHARD_BYTES) -> list[str]:
    """Write tensors as one file, or as shards with an index if they are large, and return the names of the files.

    Each file is written atomically: after a crash it is either the old file or the new one.
    """
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        num_bytes = tensor.numel() * tensor.element_size()
        if shards[-1] and size + num_bytes > max_shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor.detach().cpu().contiguous()
        size += num_bytes
    if len(shards) == 1:
        _write_shard(folder / WEIGHTS_FILE, shards[0])
        return [WEIGHTS_FILE]
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        _write_shard(folder / name, shard)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    weight_map = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_atomically(folder / INDEX_FILE, json.dumps(index, indent=2) + "\n")
    return [*names, INDEX_FILE]


def _write_shard(path: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, partial_path(path), metadata={"format": "pt"})
    publish_file(partial_path(path), path)


def check_not_quantized(network: nn.Module) -> None:
    """Raise an error for a network that was quantized for decoding: it no longer has its full weights."""
    if any(parameter.shape == (0,) for parameter in network.parameters()):  # a table without a vocabulary is (0, C)
        raise QkvError(
            "this network was quantized for decoding and no longer has its full weights; "
            "save or export the model that it was made from"
        )


def describe_mismatches(folder: Path, mismatches: Mapping[str, Sequence[str]]) -> str:
    """The error message for weights that do not match their config, or "" if there is no mismatch.

    `mismatches` maps each problem, such as "missing", to the names of the tensors that have it.
    """
    problems = [
        f"{len(names)} tensors {problem}: {', '.join(names[:MAX_LISTED])}{' …' if len(names) > MAX_LISTED else ''}"
        for problem, names in mismatches.items()
        if names
    ]
    if not problems:
        return ""
    return f"{folder}: the weights do not match config.json; {'; '.join(problems)}; use files of one and the same model"


SCALE_SUFFIX = ".scale"


def quantize_rows(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as they are stored: each matrix as int8 with its scales, everything else in float32.

    >>> stored = quantize_rows({"w": torch.tensor([[1.0, -0.5], [0.0, 0.0]])})
    >>> stored["w"].tolist(), [round(scale, 5) for scale in stored["w.scale"].tolist()]
    ([[127, -64], [0, 0]], [0.00787, 1.0])
    """
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        values = tensor.detach().float().cpu()
        if values.dim() != 2:
            stored[name] = values
            continue
        if not bool(values.isfinite().all()):
            raise QkvError(f"{name} has values that are not finite, which int8 cannot store; save the model in float32")
        largest = values.abs().amax(dim=1)
        scale = torch.where(largest > 0, largest / 127, 1.0)
        stored[name] = (values / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
        stored[name + SCALE_SUFFIX] = scale
    return stored


def dequantize_rows(name: str, values: Tensor, scale: Tensor) -> Tensor:
    """A matrix in float32 from its int8 values and the scales of its rows, which must be finite and positive."""
    if not bool((scale.isfinite() & (scale > 0)).all()):
        raise QkvError(f"{name}{SCALE_SUFFIX} has a scale that is not a finite positive number; fetch the file again")
    return values.float() * scale.float()[:, None]
