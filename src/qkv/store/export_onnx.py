"""ONNX graphs: a model for onnxruntime and whatever else reads them, with free batch and length.

    encoder-only       model.onnx      ids, mask (, types) → logits (or vectors)
    decoder-only       model.onnx      ids, mask, past → logits, grown
    encoder-decoder    encoder.onnx    source, mask → memory
                       decoder.onnx    target, mask, memory, past → logits, grown

Masks are 1 for tokens and 0 for padding. `past` is what decoding remembers: empty (P = 0) for a whole text at once,
else what the last call gave as `grown`, with `ids` or `target` holding the new tokens alone. The mask of a
decoder-only graph covers past and new tokens; the one of decoder.onnx is that of the source.

B batch, T new tokens, P tokens before them, S source tokens, L layers, KV key/value heads, D head width
ids, target (B, T)   mask (B, T), (B, P + T) or (B, S)   memory (L, 2, B, KV, S, D)   past (L, 2, B, KV, P, D)
"""

import copy
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.blocks import CrossCache, SequenceLayout
from qkv.blocks.head import POOLED_KINDS
from qkv.errors import QkvError
from qkv.models import Config, Decoder, Encoder, Network, Seq2Seq
from qkv.store.staged_folder import staged_folder
from qkv.store.weights import write_text
from qkv.store.whole import check_not_quantized
from qkv.text import Tokenizer

ONNX_FILES = ("*.onnx", "*.onnx.data")


def write_onnx(folder: str | Path, config: Config, network: Network, tokenizer: Tokenizer | None) -> str:
    """Write a folder of ONNX graphs in float32; returns the names of its files."""
    check_not_quantized(network)
    try:
        import onnxscript  # noqa: F401 - what torch's exporter is built on
    except ImportError as error:
        raise QkvError('the ONNX format needs the extra: pip install "qkv[onnx]"') from error
    twin = copy.deepcopy(network).to("cpu", torch.float32).eval()
    graphs = _make_graphs(twin)
    with staged_folder(folder, list(graphs)[-1], ONNX_FILES) as partial:
        if tokenizer is not None:
            tokenizer.save(partial)
        for name, graph in graphs.items():
            graph.write(partial / name)
        if not (Path(folder).expanduser() / "README.md").exists():
            write_text(partial / "README.md", _readme(config, graphs))
    return ", ".join(graphs)


GraphInputs = dict[str, tuple[Tensor, Sequence[str]]]
"""By name: a tensor of the right kind and size, and the names of its axes; a number is an axis that is not free."""


class OnnxGraph:
    """One graph: a module, what it takes, and what it gives."""

    def __init__(self, module: nn.Module, inputs: GraphInputs, outputs: Mapping[str, str]) -> None:
        self.module, self.inputs, self.outputs = module, inputs, outputs

    def write(self, path: Path) -> None:
        free = {
            name: {i: torch.export.Dim.DYNAMIC for i, axis in enumerate(axes) if not axis.isdigit()}
            for name, (_, axes) in self.inputs.items()
        }
        log = logging.getLogger("torch.onnx")
        level = log.level
        try:
            log.setLevel(logging.ERROR)  # it tells of packages that it would have liked to see
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                program = torch.onnx.export(
                    self.module,
                    tuple(tensor.clone() for tensor, _ in self.inputs.values()),  # one given twice would count as one
                    input_names=list(self.inputs),
                    output_names=list(self.outputs),
                    dynamic_shapes=free,
                    dynamo=True,
                    verbose=False,
                )
                assert program is not None
                program.save(path)
        except Exception as error:  # the exporter has many kinds of its own
            reason = str(error).strip().splitlines()
            raise QkvError(
                f"{path.name}: torch could not write this graph ({reason[0] if reason else error})"
            ) from error
        finally:
            log.setLevel(level)


class SequenceGraph(nn.Module):
    """ids, mask (, types) → what the head says of whole texts."""

    def __init__(self, network: Encoder | Decoder) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        more = {} if types is None else {"token_type_ids": types}
        out: Tensor = self.network(ids, mask, positions_from_mask(mask), **more)
        return out


class DecoderGraph(nn.Module):
    """ids, mask, past → logits, past."""

    def __init__(self, network: Decoder) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor, mask: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        before = past.shape[4]
        every = positions_from_mask(mask)
        cache = PastCache(past, SequenceLayout(mask, every))
        x, place = self.network.hidden(ids, mask[:, before:], every[:, before:], cache=cache)  # type: ignore[arg-type]
        return self.network.head(x, place), cache.present()


class EncoderGraph(nn.Module):
    """source, mask → memory."""

    def __init__(self, network: Seq2Seq) -> None:
        super().__init__()
        self.network = network

    def forward(self, source: Tensor, mask: Tensor) -> Tensor:
        cross = self.network.build_cross_cache(self.network.encode(source, mask, positions_from_mask(mask)))
        return torch.stack([torch.stack(cross.keys), torch.stack(cross.values)], dim=1)


class CrossDecoderGraph(nn.Module):
    """target, mask of the source, memory, past → logits, past."""

    def __init__(self, network: Seq2Seq) -> None:
        super().__init__()
        self.network = network

    def forward(self, target: Tensor, mask: Tensor, memory: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        before = past.shape[4]
        every = torch.arange(before + target.shape[1])[None]
        cross = CrossCache(list(memory[:, 0]), list(memory[:, 1]), SequenceLayout(mask, positions_from_mask(mask)))
        cache = PastCache(past, SequenceLayout(None, every))
        x, place = self.network.hidden(target, cross, None, every[:, before:], cache=cache)  # type: ignore[arg-type]
        return self.network.head(x, place), cache.present()


class PastCache:
    """What `SelfCache` is to a stack, for a graph: tensors come in, longer ones go out, nothing is written over."""

    def __init__(self, past: Tensor, place: SequenceLayout) -> None:
        self.past, self.place = past, place
        self.rows = past.shape[2]
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def extend(self, new: SequenceLayout) -> SequenceLayout:
        return self.place

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.keys.append(torch.cat([self.past[layer, 0], keys], dim=2))
        self.values.append(torch.cat([self.past[layer, 1], values], dim=2))
        return self.keys[-1], self.values[-1]

    def present(self) -> Tensor:
        return torch.stack([torch.stack(self.keys), torch.stack(self.values)], dim=1)


def positions_from_mask(mask: Tensor) -> Tensor:
    """Positions counted from the first token of each row, (B, T)."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def _make_graphs(network: Network) -> dict[str, OnnxGraph]:
    """The graphs of a network, with small inputs: every free axis has another size, so that none is taken for one."""
    batch, length, before, longest = 2, 3, 4, 5
    new = torch.ones(batch, length, dtype=torch.long)
    kind = network.config.head.kind
    if isinstance(network, Encoder) or (isinstance(network, Decoder) and kind in POOLED_KINDS):
        inputs: GraphInputs = {"ids": (new, ("B", "T")), "mask": (new, ("B", "T"))}
        if network.config.stack.token_types:
            inputs["token_type_ids"] = (torch.zeros_like(new), ("B", "T"))
        name = "vectors" if kind in ("none", "embed") else "logits"
        return {"model.onnx": OnnxGraph(SequenceGraph(network), inputs, {name: "what the head says"})}
    stack = network.decoder.config
    sizes = (str(stack.layers), "2", "B", str(stack.kv_heads), "P", str(stack.head_dim))
    past = (torch.zeros(stack.layers, 2, batch, stack.kv_heads, before, stack.head_dim), sizes)
    outputs = {"logits": "what the head says of each token", "grown": "past, T tokens longer"}
    if isinstance(network, Decoder):
        mask = torch.ones(batch, before + length, dtype=torch.long)
        inputs = {"ids": (new, ("B", "T")), "mask": (mask, ("B", "P + T")), "past": past}
        return {"model.onnx": OnnxGraph(DecoderGraph(network), inputs, outputs)}
    source = torch.ones(batch, longest, dtype=torch.long)
    memory = torch.zeros(stack.layers, 2, batch, stack.kv_heads, longest, stack.head_dim)
    seen = (source, ("B", "S"))
    shape = (*sizes[:4], "S", sizes[5])
    return {
        "encoder.onnx": OnnxGraph(EncoderGraph(network), {"source": seen, "mask": seen}, {"memory": str(shape)}),
        "decoder.onnx": OnnxGraph(
            CrossDecoderGraph(network),
            {"target": (new, ("B", "T")), "mask": seen, "memory": (memory, shape), "past": past},
            outputs,
        ),
    }


def _readme(config: Config, graphs: Mapping[str, OnnxGraph]) -> str:
    lines = ["# ONNX graphs", "", "B batch, T new tokens, P tokens before them, S source tokens. ids are int64.", ""]
    for name, graph in graphs.items():
        lines += [f"`{name}`", ""]
        lines += [f"- takes `{key}` ({', '.join(axes)})" for key, (_, axes) in graph.inputs.items()]
        lines += [f"- gives `{key}`: {what}" for key, what in graph.outputs.items()] + [""]
    if any("past" in graph.inputs for graph in graphs.values()):
        lines += ["`past` is empty (P = 0) at first, then what the last call gave as `grown`.", ""]
    special = {"start": config.decoder_start_token_id, "end": config.eos_token_ids or None, "pad": config.pad_token_id}
    lines += [f"- {name}: {value}" for name, value in special.items() if value is not None]
    return "\n".join([*lines, ""])
