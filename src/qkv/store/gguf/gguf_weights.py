"""The tensors of a GGUF file under their Hugging Face names, dequantized one at a time."""

from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.errors import QkvError, shorten
from qkv.models.tables.architecture import Json
from qkv.store.gguf.architectures import ROPE_FACTORS, find_gguf_architecture, hf_tensor, hf_tensor_name, llama3_scaling
from qkv.store.gguf.gguf_file import GgufFile
from qkv.store.weights import Weights

FLOAT_DTYPES = {0: torch.float32, 1: torch.float16, 28: torch.float64, 30: torch.bfloat16}
"""ggml's number of a type that PyTorch has, too. All other types are dequantized to float32."""


def require_gguf() -> Any:
    """The package `gguf`."""
    try:
        import gguf
    except ImportError as error:
        raise QkvError('for GGUF files, install the package gguf: pip install "qkv[gguf]"') from error
    return gguf


class GgufWeights(Weights):
    """The tensors of a GGUF file, by their Hugging Face names. Opening it checks that all of them are complete."""

    def __init__(self, file: GgufFile, hf_config: Json, *, shapes_only: bool = False) -> None:
        self.folder = file.path
        self.shapes_only = shapes_only
        self._gguf, self._file, self._hf_config = require_gguf(), file, hf_config
        _, self._architecture = find_gguf_architecture(file.metadata)
        self.shapes, self.dtypes = {}, {}
        self._stored_names: dict[str, str] = {}  # Hugging Face's name → the name in the file
        num_bytes = 0
        for stored_name, tensor in file.tensors.items():
            num_bytes += len(self._stored_bytes(stored_name))
            if stored_name == ROPE_FACTORS:
                continue
            name = hf_tensor_name(self._architecture, stored_name)
            module = stored_name.split(".")[-2] if "." in stored_name else ""
            is_transposed = module in self._architecture.transposed and len(tensor.shape) == 2
            self.shapes[name] = tensor.shape[::-1] if is_transposed else tensor.shape
            self.dtypes[name] = FLOAT_DTYPES.get(tensor.type_number, torch.float32)
            self._stored_names[name] = stored_name
        if num_bytes > file.num_data_bytes:
            raise QkvError("its tensors overlap; the file is damaged: fetch or copy it again")
        if ROPE_FACTORS in file.tensors:
            factors = self._dequantize(ROPE_FACTORS).flatten()
            hf_config["rope_scaling"] = llama3_scaling(factors, float(hf_config.get("rope_theta", 10_000.0)))

    def get(self, name: str) -> Tensor:
        """Read a tensor into memory, dequantized."""
        if self.shapes_only:
            return torch.empty(self.shapes[name], dtype=self.dtypes[name], device="meta")
        stored_name = self._stored_names[name]
        return hf_tensor(stored_name, self._dequantize(stored_name), self._architecture, self._hf_config)

    def _stored_bytes(self, name: str) -> np.ndarray:
        tensor = self._file.tensors[name]
        try:
            block_size, block_bytes = self._gguf.GGML_QUANT_SIZES[self._gguf.GGMLQuantizationType(tensor.type_number)]
        except (ValueError, KeyError):
            raise QkvError(f"{shorten(name)}: unknown type {tensor.type_number}; update the package gguf") from None
        if tensor.shape[-1] % block_size:
            raise QkvError(f"{shorten(name)}: rows of {tensor.shape[-1]} are not whole blocks of {block_size}")
        return self._file.tensor_bytes(name, prod(tensor.shape) // block_size * block_bytes)

    def _dequantize(self, name: str) -> Tensor:
        tensor, stored = self._file.tensors[name], self._stored_bytes(name)
        if tensor.type_number in FLOAT_DTYPES:
            values = torch.frombuffer(stored.copy(), dtype=FLOAT_DTYPES[tensor.type_number])
        else:
            kind = self._gguf.GGMLQuantizationType(tensor.type_number)
            try:
                rows = stored.reshape(prod(tensor.shape[:-1]), -1)
                values = torch.from_numpy(self._gguf.dequantize(rows, kind))
            except (NotImplementedError, ValueError) as error:
                raise QkvError(f"{shorten(name)}: {kind.name} cannot be dequantized ({shorten(str(error))})") from None
        if values.numel() != prod(tensor.shape):  # integers, which are not weights
            raise QkvError(f"{shorten(name)}: it has {values.numel()} numbers, and its shape is {tensor.shape}")
        return values.reshape(tensor.shape)
