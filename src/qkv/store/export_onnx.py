"""Export to ONNX: graphs for onnxruntime and other readers, with dynamic batch size and length.

    encoder-only       model.onnx      ids, mask (, token_type_ids) → logits (or vectors)
    decoder-only       model.onnx      ids, mask, past → logits, present
    encoder-decoder    encoder.onnx    source, mask → memory
                       decoder.onnx    target, mask, memory, past → logits, present

A mask is 1 for tokens and 0 for padding. `past` holds the cached keys and values of earlier tokens. It is empty (P = 0)
in the first call; every later call takes the `present` of the call before, and only the new tokens as `ids` or
`target`. The mask of a decoder-only graph covers past and new tokens. decoder.onnx takes the mask of the source.

B batch, T new tokens, P past tokens, S source tokens, L layers, KV key/value heads, D head dim
ids, target (B, T)   mask (B, T), (B, P + T) or (B, S)   memory (L, 2, B, KV, S, D)   past (L, 2, B, KV, P, D)
"""

import copy
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.blocks import CrossCache, Inputs, SequenceLayout
from qkv.blocks.head import POOLED_KINDS
from qkv.errors import QkvError
from qkv.files import to_path, write_atomically
from qkv.models import Config, Network
from qkv.store.staged_folder import staged_folder
from qkv.text import Tokenizer

ONNX_FILES = ("*.onnx", "*.onnx.data")


def write_onnx(folder: str | Path, config: Config, network: Network, tokenizer: Tokenizer | None) -> str:
    """Write a folder of ONNX graphs in float32, and return the names of the graph files."""
    try:
        import onnxscript  # noqa: F401 - torch.onnx.export needs it
    except ImportError as error:
        raise QkvError('the ONNX format needs an optional package: pip install "qkv[onnx]"') from error
    float32_copy = copy.deepcopy(network).to("cpu", torch.float32).eval()
    graphs = _make_graphs(float32_copy)
    with staged_folder(folder, list(graphs)[-1], ONNX_FILES) as staging:
        if tokenizer is not None:
            tokenizer.save(staging)
        for name, graph in graphs.items():
            graph.write(staging / name)
        if not (to_path(folder) / "README.md").exists():
            write_atomically(staging / "README.md", _readme(config, graphs))
    return ", ".join(graphs)


GraphInputs = dict[str, tuple[Tensor, Sequence[str]]]
"""For each input an example tensor and the names of its axes. An axis whose name is a number, as "2", is static."""


@dataclass(frozen=True)
class OnnxGraph:
    """One graph: the module to export, its inputs, and its outputs with a description of each."""

    module: nn.Module
    inputs: GraphInputs
    outputs: Mapping[str, str]

    def write(self, path: Path) -> None:
        """Export the module with torch.onnx and save it."""
        dynamic = {
            name: {i: torch.export.Dim.DYNAMIC for i, axis in enumerate(axes) if not axis.isdigit()}
            for name, (_, axes) in self.inputs.items()
        }
        log = logging.getLogger("torch.onnx")
        level = log.level
        try:
            log.setLevel(logging.ERROR)  # hides warnings about optional packages
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                program = torch.onnx.export(
                    self.module,
                    # Clones, because torch.export merges inputs that share a tensor.
                    tuple(tensor.clone() for tensor, _ in self.inputs.values()),
                    input_names=list(self.inputs),
                    output_names=list(self.outputs),
                    dynamic_shapes=dynamic,
                    dynamo=True,
                    verbose=False,
                )
                assert program is not None
                program.save(path)
        except Exception as error:  # the exporter has many exception types
            reason = str(error).strip().splitlines()
            raise QkvError(
                f"{path.name}: torch.onnx could not export this graph ({reason[0] if reason else error}); "
                "try another format (hf, ctranslate2)"
            ) from error
        finally:
            log.setLevel(level)


class NetworkGraph(nn.Module):
    """The part of a network that becomes one graph."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network: Any = network


class SequenceGraph(NetworkGraph):
    """ids, mask (, token_type_ids) → the output of the head, without a cache."""

    def forward(self, ids: Tensor, mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Run the network and its head."""
        positions = positions_from_mask(mask)
        out: Tensor = self.network(Inputs(ids, document_ids=mask, positions=positions, token_type_ids=token_type_ids))
        return out


class DecoderGraph(NetworkGraph):
    """ids, mask, past → logits, present."""

    def forward(self, ids: Tensor, mask: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Run the decoder on new tokens, with the keys and values of earlier ones."""
        num_past = past.shape[4]
        positions = positions_from_mask(mask)
        cache: Any = PastCache(past, SequenceLayout(mask, positions))
        inputs = Inputs(ids, document_ids=mask[:, num_past:], positions=positions[:, num_past:])
        x, layout = self.network.hidden(inputs, cache=cache)
        logits: Tensor = self.network.head(x, layout)
        return logits, cache.present()


class EncoderGraph(NetworkGraph):
    """source, mask → memory."""

    def forward(self, source: Tensor, mask: Tensor) -> Tensor:
        """Encode the source and project the keys and values of cross-attention."""
        inputs = Inputs(source, document_ids=mask, positions=positions_from_mask(mask))
        cross = self.network.build_cross_cache(self.network.encode(inputs))
        return torch.stack([torch.stack(cross.keys), torch.stack(cross.values)], dim=1)


class CrossDecoderGraph(NetworkGraph):
    """target, mask of the source, memory, past → logits, present."""

    def forward(self, target: Tensor, mask: Tensor, memory: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Run the decoder on new target tokens, with earlier keys and values and the memory of the source."""
        num_past = past.shape[4]
        positions = torch.arange(num_past + target.shape[1])[None]
        cross = CrossCache(list(memory[:, 0]), list(memory[:, 1]), SequenceLayout(mask, positions_from_mask(mask)))
        cache: Any = PastCache(past, SequenceLayout(None, positions))
        inputs = Inputs(target, positions=positions[:, num_past:])
        x, layout = self.network.hidden(inputs, memory=cross, cache=cache)
        logits: Tensor = self.network.head(x, layout)
        return logits, cache.present()


class PastCache:
    """Replaces `SelfCache` inside a graph. A graph may not overwrite tensors, so this cache returns new, longer
    tensors.
    """

    def __init__(self, past: Tensor, layout: SequenceLayout) -> None:
        self.past, self.layout = past, layout
        self.batch_size = past.shape[2]
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def add_layout(self, new: SequenceLayout) -> SequenceLayout:
        """Return the layout of past and new tokens, which is known from the start."""
        return self.layout

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append a layer's new keys and values to the past ones, and return all of them."""
        self.keys.append(torch.cat([self.past[layer, 0], keys], dim=2))
        self.values.append(torch.cat([self.past[layer, 1], values], dim=2))
        return self.keys[-1], self.values[-1]

    def present(self) -> Tensor:
        """The keys and values of all layers, (L, 2, B, KV, P + T, D)."""
        return torch.stack([torch.stack(self.keys), torch.stack(self.values)], dim=1)


def positions_from_mask(mask: Tensor) -> Tensor:
    """Positions counted from the first token of each sequence, (B, T)."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def _make_graphs(network: Network) -> dict[str, OnnxGraph]:
    """The graphs of a network, by file name.

    The dynamic axes of the example inputs have different sizes, because torch.export merges axes of equal size.
    """
    batch, length, num_past, source_length = 2, 3, 4, 5
    new = torch.ones(batch, length, dtype=torch.long)
    kind = network.config.head.kind
    if not network.is_causal or (not network.has_source and kind in POOLED_KINDS):
        inputs: GraphInputs = {"ids": (new, ("B", "T")), "mask": (new, ("B", "T"))}
        if network.config.stack.token_types:
            inputs["token_type_ids"] = (torch.zeros_like(new), ("B", "T"))
        name = "vectors" if kind in ("none", "embed") else "logits"
        return {"model.onnx": OnnxGraph(SequenceGraph(network), inputs, {name: "the output of the head"})}
    stack = network.output_stack.config
    sizes = (str(stack.layers), "2", "B", str(stack.kv_heads), "P", str(stack.head_dim))
    past = (torch.zeros(stack.layers, 2, batch, stack.kv_heads, num_past, stack.head_dim), sizes)
    outputs = {"logits": "for each token", "present": "past with the keys and values of the T new tokens appended"}
    if not network.has_source:
        mask = torch.ones(batch, num_past + length, dtype=torch.long)
        inputs = {"ids": (new, ("B", "T")), "mask": (mask, ("B", "P + T")), "past": past}
        return {"model.onnx": OnnxGraph(DecoderGraph(network), inputs, outputs)}
    source = torch.ones(batch, source_length, dtype=torch.long)
    memory = torch.zeros(stack.layers, 2, batch, stack.kv_heads, source_length, stack.head_dim)
    source_input = (source, ("B", "S"))
    shape = (*sizes[:4], "S", sizes[5])
    return {
        "encoder.onnx": OnnxGraph(
            EncoderGraph(network), {"source": source_input, "mask": source_input}, {"memory": str(shape)}
        ),
        "decoder.onnx": OnnxGraph(
            CrossDecoderGraph(network),
            {"target": (new, ("B", "T")), "mask": source_input, "memory": (memory, shape), "past": past},
            outputs,
        ),
    }


def _readme(config: Config, graphs: Mapping[str, OnnxGraph]) -> str:
    lines = ["# ONNX graphs", "", "B batch, T new tokens, P past tokens, S source tokens. ids are int64.", ""]
    for name, graph in graphs.items():
        lines += [f"`{name}`", ""]
        lines += [f"- input `{key}` ({', '.join(axes)})" for key, (_, axes) in graph.inputs.items()]
        lines += [f"- output `{key}`: {what}" for key, what in graph.outputs.items()] + [""]
    if any("past" in graph.inputs for graph in graphs.values()):
        lines += ["`past` is empty (P = 0) in the first call, then the `present` of the call before.", ""]
    special_ids = {
        "decoder_start_token_id": config.decoder_start_token_id,
        "eos_token_ids": config.eos_token_ids or None,
        "pad_token_id": config.pad_token_id,
    }
    lines += [f"- {name}: {value}" for name, value in special_ids.items() if value is not None]
    return "\n".join([*lines, ""])
