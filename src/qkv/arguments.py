"""Checks of what callers of `qkv.api` give: devices, dtypes, token ids, masks, lists of texts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.errors import UsageError, suggest_name

Ids = Tensor | Sequence[Sequence[int]]
"""Token ids or other whole numbers, as a tensor of shape (B, T) or as lists."""


def parse_device(device: torch.device | str) -> torch.device:
    """Return the device, or raise an error if this machine does not have it."""
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise UsageError(
            f"device = {device!r}: unknown device; use cpu, cuda or mps, with a number if needed (cuda:1)"
        ) from error
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError(f"device = {str(device)!r}: torch finds no such device on this machine; use cpu")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device = {str(device)!r}: torch finds no GPU on this machine; use cpu")
    return chosen


def parse_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return the dtype, which may be given by its name."""
    known = ("float32", "bfloat16", "float16", "float64")
    if isinstance(dtype, str):
        if dtype not in known:
            raise UsageError(f"dtype = {dtype!r} is unknown; {suggest_name(dtype, known)}")
        return getattr(torch, dtype)  # type: ignore[no-any-return]
    return dtype


def check_ids(ids: Ids, name: str, vocab_size: int, device: torch.device, *, choices: bool = False) -> Tensor:
    """Move ids to a device. They are checked first, because an id out of range would crash a GPU."""
    tensor = to_tensor(ids, name)
    if tensor.dim() not in ((2, 3) if choices else (2,)) or not is_integer(tensor):
        shape = "(batch, choices, length)" if choices else "(batch, length)"
        raise UsageError(f"{name}: expected integers of shape {shape}, got {tuple(tensor.shape)} {tensor.dtype}")
    wrong = tensor[(tensor < 0) | (tensor >= vocab_size)]
    if len(wrong):
        raise UsageError(
            f"{name}: token id {int(wrong[0])} is outside this model's vocabulary of {vocab_size} "
            f"(0 … {vocab_size - 1}); encode the text with the tokenizer of this model"
        )
    return tensor.to(device, torch.long)


def check_mask(mask: Ids | None, ids: Tensor) -> Tensor | None:
    """Check a mask of ones and zeros, and convert it to document ids."""
    if mask is None:
        return None
    tensor = to_tensor(mask, "mask", ids.shape)
    wrong = tensor[(tensor != 0) & (tensor != 1)]
    if len(wrong):
        raise UsageError(f"mask: {wrong[0].item()} is neither 1 (a token) nor 0 (padding); give a mask of 0 and 1")
    return tensor.to(ids.device, torch.long)


def check_token_types(token_type_ids: Ids, ids: Tensor, num_types: int) -> Tensor:
    """Check token type ids, and move them to the device of the ids."""
    tensor = to_tensor(token_type_ids, "token_type_ids", ids.shape)
    wrong = tensor[(tensor < 0) | (tensor >= num_types)]
    if len(wrong) or not is_integer(tensor):
        value = wrong[0].item() if len(wrong) else tensor.dtype
        raise UsageError(
            f"token_type_ids: {value} is not one of this model's {num_types} token types (0 … {num_types - 1})"
        )
    return tensor.to(ids.device, torch.long)


def check_list(values: Any, wanted: str) -> None:
    """Raise an error if a value is no sequence, such as a number, a dictionary or bytes."""
    if not isinstance(values, Sequence) or isinstance(values, bytes):
        raise UsageError(f"{wanted}, got {describe_value(values)}")


def describe_value(value: Any) -> str:
    """A value and its type for an error message, cut to a readable length."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:60] + '…'} ({type(value).__name__})"


def as_list(values: Any) -> Any:
    """Convert a tensor or an array to lists; return anything else unchanged. Bytes are neither a text nor token ids."""
    if isinstance(values, bytes | bytearray | memoryview):
        raise UsageError(f"expected a text or token ids, got {type(values).__name__}; for a text: .decode() it")
    return values.tolist() if hasattr(values, "tolist") else values


def to_tensor(values: Ids, name: str, shape: torch.Size | None = None) -> Tensor:
    """Convert lists of numbers to a tensor, and check that it has the shape, if one is given."""
    if isinstance(values, str):
        raise UsageError(f"{name}: expected token ids, got a text; encode it with the model's tokenizer")
    try:
        tensor = torch.as_tensor(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UsageError(f"{name}: sequences of unequal length need padding and a mask ({error})") from error
    if shape is not None and tensor.shape != shape:
        raise UsageError(
            f"{name}: shape {tuple(tensor.shape)} does not match the shape of the ids, {tuple(shape)}; "
            "give one value for each id"
        )
    return tensor


def is_integer(tensor: Tensor) -> bool:
    """Whether a tensor has an integer dtype."""
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool)
