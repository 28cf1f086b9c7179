"""A plugin with one row of each kind, as a researcher would write it. `test_walk.py` takes each one through qkv."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from square_files import SquareFiles
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import qkv
from qkv.blocks.block import Block
from qkv.data.modalities import MODALITIES, Modality
from qkv.data.objectives import causal_lm, seq2seq
from qkv.data.objectives.loss import ForwardPass, LossSums
from qkv.data.objectives.table import OBJECTIVES, RecordField
from qkv.data.records import FileLocation, Record
from qkv.decode.backend import EVERY_OPTION, Backend
from qkv.decode.loop import generate_with_runner
from qkv.tasks.metrics import mean_score
from qkv.tasks.starters.starter import Starter
from qkv.tasks.verbs.text_to_text import TranslateTask

__version__ = "1.2"
CALLS: list[str] = []


class Experts(nn.Module):
    """A feed-forward with two gated experts; each token is sent to one of them."""

    def __init__(self, config: Any, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(config.width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, config.width, 2 * config.ffn_width))
        self.down = nn.Parameter(torch.empty(experts, config.ffn_width, config.width))
        self.balance = torch.zeros(())

    def forward(self, x: Tensor, tap: Any = None) -> Tensor:
        weights = self.router(x).softmax(-1)  # (…, E)
        best, chosen = weights.max(-1)
        used = F.one_hot(chosen, weights.shape[-1]).flatten(0, -2).to(x.dtype)
        self.balance = (used.mean(0) * weights.flatten(0, -2).mean(0)).sum()
        gate, value = torch.einsum("...c,ecf->...ef", x, self.up).chunk(2, -1)
        out = torch.einsum("...ef,efc->...ec", F.silu(gate) * value, self.down)
        out = best[..., None] * out.gather(-2, chosen[..., None, None].expand(*chosen.shape, 1, x.shape[-1]))[..., 0, :]
        return tap("routed", out) if tap else out


def init_experts(module: Experts, config: Any) -> None:
    for weight in (module.up, module.down):
        nn.init.normal_(weight, std=0.125)


def cost_experts(config: Any, experts: int) -> qkv.PartCost:
    weights = 3 * config.width * config.ffn_width
    return qkv.PartCost(
        {"mlp": experts * (weights + config.width)}, 2 * (weights + experts * config.width), activations=4
    )


class Decay(nn.Module):
    """Linear attention whose memory of a document decays. Its cache is the memory, whatever the length."""

    def __init__(self, config: Any, *, cross: bool = False) -> None:
        super().__init__()
        self.heads, self.dim = config.heads, config.head_dim
        self.qkv = nn.Linear(config.width, 3 * config.heads * config.head_dim)
        self.out = nn.Linear(config.heads * config.head_dim, config.width)

    def forward(self, x: Tensor, mask: Any, rotary: Any = None, cache: Any = None, tap: Any = None) -> Tensor:
        q, k, v = (one.unflatten(-1, (self.heads, self.dim)) for one in self.qkv(x).chunk(3, -1))  # (B, T, H, D)
        layout = mask.mask.query
        ids = layout.document_ids if layout.document_ids is not None else torch.ones(x.shape[:2], dtype=torch.long)
        zeros = x.new_zeros(len(x), self.heads, self.dim, self.dim)
        memory, last = (zeros, ids[:, 0]) if cache is None else (cache.state["memory"], cache.state["document"].long())
        out = []
        for t in range(x.shape[1]):
            same, real = (ids[:, t] == last), (ids[:, t] != 0)
            added = k[:, t, :, :, None] * v[:, t, :, None, :]
            new = torch.where(same[:, None, None, None], memory, zeros) * 0.9 + added
            memory = torch.where(real[:, None, None, None], new, memory)
            last = torch.where(real, ids[:, t], last)
            out.append((q[:, t, :, None] @ memory)[:, :, 0].flatten(1))
        if cache is not None:
            cache.state["memory"], cache.state["document"] = memory, last.to(x.dtype)
        z = torch.stack(out, 1)
        return self.out(tap("memory_read", z) if tap else z)


class Scale(nn.Module):
    """A norm without a norm."""

    def __init__(self, config: Any, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


class Steps(nn.Module):
    """A position that adds p to the first number of each vector."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.width = config.width

    def forward(self, positions: Tensor) -> Tensor:
        return F.pad(positions[..., None] / 8, (0, self.width - 1))


class Gained(Block):
    """A block with a learned gain."""

    def __init__(self, config: Any, *, cross: bool = False, skip_norm: bool = False) -> None:
        super().__init__(config, cross=cross, skip_norm=skip_norm)
        self.gain = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, *arguments: Any, **named: Any) -> Tensor:
        return super().forward(x, *arguments, **named) * self.gain


class MovingAverageCache:
    """The last averages of each layer, and the number of tokens so far."""

    is_default = False

    def __init__(self, layers: int, batch_size: int, width: int, dtype: torch.dtype) -> None:
        self.averages = torch.zeros(layers, batch_size, width, dtype=dtype)
        self.lengths = torch.zeros(batch_size, dtype=torch.long)

    @property
    def batch_size(self) -> int:
        return len(self.lengths)

    def next_positions(self, ids: Tensor, document_ids: Tensor | None) -> Tensor:
        real = torch.ones_like(ids) if document_ids is None else (document_ids != 0).long()
        return (self.lengths[:, None] + real.cumsum(1) - 1).clamp(min=0)

    def reorder(self, rows: Tensor) -> None:
        self.averages, self.lengths = self.averages[:, rows], self.lengths[rows]


class MovingAverages(nn.Module):
    """A whole stack without attention: each layer adds a map of the moving average of a document's vectors."""

    def __init__(self, config: Any, *, name: str, causal: bool, cross: bool = False, decay: float = 0.5) -> None:
        super().__init__()
        self.config, self.name, self.causal, self.decay = config, name, causal, decay
        self.norm, self.gradient_checkpointing = None, False
        self.maps = nn.ModuleList(nn.Linear(config.width, config.width) for _ in range(config.layers))

    def forward(
        self,
        x: Tensor,
        layout: Any,
        cache: Any = None,
        memory: Any = None,
        tap: Any = None,
        *,
        selected: Tensor | None = None,
        hints: Any = None,
    ) -> Tensor:
        ids = layout.document_ids
        ids = torch.ones(x.shape[:2], dtype=torch.long) if ids is None else ids.expand(len(x), -1)
        for layer, linear in enumerate(self.maps):
            average = torch.zeros_like(x[:, 0]) if cache is None else cache.averages[layer]
            out = []
            for t in range(x.shape[1]):
                starts = (ids[:, t] != ids[:, t - 1])[:, None] if t and cache is None else torch.tensor(False)
                new = self.decay * average.masked_fill(starts, 0.0) + x[:, t]
                average = torch.where((ids[:, t] != 0)[:, None], new, average)
                out.append(average)
            if cache is not None:
                cache.averages[layer] = average
            averages = torch.stack(out, 1)
            x = x + linear(tap(f"{self.name}.{layer}.average", averages) if tap else averages).relu()
        if cache is not None:
            cache.lengths += (ids != 0).sum(1)
        x = tap(f"{self.name}.final", x) if tap else x
        return x if selected is None else x.flatten(0, 1)[selected.flatten()]

    def new_cache(self, batch_size: int, capacity: int) -> MovingAverageCache:
        return MovingAverageCache(self.config.layers, batch_size, self.config.width, self.maps[0].weight.dtype)  # type: ignore[arg-type]


class Lion(Optimizer):
    """Chen et al. 2023. Its state exists before the first step."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    momentum = self.state[p]["momentum"]
                    update = momentum.lerp(p.grad, 0.1).sign() + group["weight_decay"] * p
                    p.sub_(group["lr"] * update)
                    momentum.lerp_(p.grad, 0.01)


def make_lion(setup: Any) -> Optimizer:
    return Lion(setup.parameter_groups(), {"lr": setup.lr})


def lion_state(group: Mapping[str, Any], parameter: Tensor) -> dict[str, Tensor]:
    return {"momentum": torch.zeros_like(parameter)}


def triangle(section: Any, step: int, fraction_done: float) -> float:
    return 1.0 - fraction_done


def z_loss(run: ForwardPass) -> LossSums:
    """The next token, and a penalty of the logits' sizes."""
    x, _ = run.hidden()
    sizes = run.head.project(x[:, -1]).logsumexp(-1).square().sum()
    return run.token_losses(x) + 1e-4 * sizes, None


def same_length(predicted: Any, expected: Any) -> float:
    return mean_score([float(len(ours) == len(theirs)) for ours, theirs in zip(predicted, expected, strict=True)])


def read_notes(group: Any, context: Any) -> Iterator[Record]:
    """The sequences of a file, without their names."""
    for number, line in enumerate(group.paths[0].read_text(encoding="utf-8").splitlines(), start=1):
        context.problems.num_seen += 1
        if not line.startswith(">"):
            yield Record({"text": line}, FileLocation(str(group.paths[0]), number))


def generate_and_note(call: Any) -> Any:
    CALLS.append("generate")
    return generate_with_runner(call)


class ShoutTask(TranslateTask):
    """A task of its own on pairs of texts."""

    name, objective = "shout", "shouted"
    starter_name = ""
    description, title, question = "writes texts in capitals", "Capitals", "Write texts in capitals."
    starter = Starter("Texts in capitals.", "pairs.tsv", 64)


qkv.register_part(
    "feedforward",
    "experts2",
    build=Experts,
    options={"experts": 2},
    cost=cost_experts,
    init=init_experts,
    sites=["routed"],
    gated=True,
    aux_loss=lambda module: module.balance,
)
qkv.register_part(
    "attention",
    "decay",
    build=Decay,
    sites=["memory_read"],
    cache=lambda config: {"memory": (config.heads, config.head_dim, config.head_dim), "document": ()},
)
qkv.register_part("norm", "scale", build=Scale)
qkv.register_part("position", "steps", build=Steps, place="embedding")
qkv.register_part("block", "gained", build=Gained, sites=["resid_pre", "attn_out", "mlp_out", "resid_post"])
qkv.register_part("block", "averages", build=MovingAverages, sites=["average"], is_stack=True)
qkv.register("optimizer", "lion", make_lion, lion_state)
qkv.register("schedule", "triangle", triangle)
qkv.register("objective", "z_loss", replace(causal_lm.SPEC, name="z_loss", loss=z_loss))
qkv.register("metric", "same_length", same_length, tasks="translate")
qkv.register("reader", "notes", read_notes, extensions=(".notes",))
qkv.register("decoding backend", "noting", Backend("noting", generate_and_note, EVERY_OPTION))
qkv.register("objective", "shouted", replace(seq2seq.SPEC, name="shouted"))
qkv.register("task", "shout", ShoutTask())

# A front end has a format of its files, and an objective with a field for them.
MODALITIES.register("squares", Modality(check=lambda value: "", show=str, payload=SquareFiles()), replace=True)
SPEC = OBJECTIVES["causal_lm"]
IMAGE = (RecordField("image", ("squares",), "squares"), next(one for one in SPEC.fields if one.name == "text"))
qkv.register(
    "objective",
    "captions",
    replace(SPEC, name="captions", fields=IMAGE, group_by="", alternatives=(), reads_documents=False),
)
