"""What each process of the scaling tests does: train tiny models over a world, and write down what came of it.

The tests import the first half, to do the same in one process; `python parallel_worker.py PLAN` is one rank.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import init_device_mesh

from qkv.blocks import HeadConfig, Inputs, StackConfig
from qkv.data.load.batch import Batch
from qkv.data.objectives.base import IGNORE_INDEX, TOKEN_LABELS
from qkv.models import Config, Seq2Seq, build
from qkv.train.loss.training_module import TrainingModule, make_labelled_batch
from qkv.train.optim.optimizers import make_optimizer, optimizer_tensors
from qkv.train.parallel import parallelize as wrapping
from qkv.train.parallel.parallelize import parallelize
from qkv.train.parallel.shards import gather_tensors, load_slices, local_slices, scatter_weights
from qkv.train.parallel.world import World, init_world
from qkv.train.recipe.schema import ObjectiveSection, TrainSection

VOCAB, ROWS, LENGTH = 30, 8, 12
SIZES: dict[str, Any] = {"vocab_size": VOCAB, "width": 16, "layers": 2, "heads": 4, "ffn_width": 24, "init_std": 0.1}


def config_of(case: str) -> Config:
    """One model of each family, and between them every kind of part that is cut in its own way."""
    lm = HeadConfig(kind="lm", outputs=VOCAB, tied=True)
    if case == "decoder":  # grouped keys, gated, no biases, queries and keys normed
        rotary = StackConfig(
            **SIZES, kv_heads=2, position="rotary", feedforward="swiglu", norm="rmsnorm", bias="none", qk_norm="head"
        )
        return Config(decoder=rotary, head=lm)
    if case == "encoder":  # BERT's parts
        learned = StackConfig(**SIZES, position="learned", norm_placement="post", embedding_norm="extra", token_types=2)
        mlm = HeadConfig(kind="mlm", outputs=VOCAB, tied=True, dense="gelu", dense_norm=True, bias=True)
        return Config(encoder=learned, head=replace(mlm, next_sentence_classes=2))  # nothing trains the second head
    if case == "seq2seq":  # T5's
        t5 = StackConfig(
            **SIZES, position="t5", relative_buckets=8, relative_max_distance=16, feedforward="geglu", norm="rmsnorm"
        )
        return Config(encoder=replace(t5, layers=1, num_layer_groups=1), decoder=t5, head=lm, share_embeddings=True)
    if case == "recurrent":
        lstm = StackConfig(vocab_size=VOCAB, width=16, layers=2, block="lstm", init_std=0.1)
        return Config(encoder=lstm, decoder=lstm, head=lm, share_embeddings=True)
    # one block that all layers share, a head of its own, sizes that two processes do not share evenly
    odd = {**SIZES, "width": 15, "head_dim": 6, "vocab_size": 29, "init_std": 0.1}
    alibi = StackConfig(**odd, position="alibi", num_layer_groups=1, residual="parallel")
    return Config(decoder=alibi, head=HeadConfig(kind="lm", outputs=29))


FAMILIES = ("decoder", "encoder", "seq2seq")
STEPS = 5  # a mistake in one of them moves weights by about the learning rate, far beyond all tolerances
STEPS_OF = {"decoder": STEPS, "encoder": STEPS, "seq2seq": STEPS, "odd": 3, "recurrent": 3}
CASES = tuple(STEPS_OF)


def batch_of(config: Config, step: int) -> Batch:
    """Rows with two texts each and some padding; how many labels a row has differs much."""
    draw = np.random.default_rng(step)
    vocab = config.stack.vocab_size

    def tokens() -> Tensor:
        return torch.from_numpy(draw.integers(0, vocab, (ROWS, LENGTH)))

    segment = torch.from_numpy(np.repeat([[1] * 5 + [2] * 5 + [0] * 2], ROWS, axis=0))
    position = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 0]]).expand(ROWS, -1)
    labels = tokens()
    for row in range(ROWS):
        labels[row, 2 + row :] = IGNORE_INDEX
    labels[segment == 0] = IGNORE_INDEX
    layout = {"document_ids": segment, "positions": position, "max_documents": 2}
    source = Inputs(tokens(), **layout) if config.family == "seq2seq" else None
    nothing = np.zeros(0, dtype=np.int64)
    return Batch(
        objective="causal_lm",
        inputs=Inputs(tokens(), **layout, source=source),
        labels={"tokens": labels},
        declared=(TOKEN_LABELS,),
        epoch=0,
        tokens_per_sequence=(segment != 0).sum(1).numpy(),
        token_labels_per_sequence=(labels != IGNORE_INDEX).sum(1).numpy(),
        document_labels_per_sequence=np.zeros(ROWS, dtype=np.int64),
        example_ids=nothing,
        example_sequences=nothing,
        example_epochs=nothing,
    )


class Run:
    """A learner spread over a world, and an optimizer: everything that the loop would have."""

    def __init__(self, case: str, world: World, section: TrainSection, *, meta: bool = False) -> None:
        self.world, self.section = world, section
        self.config = config_of(case)
        torch.manual_seed(world.rank)  # only process 0 starts with what one process would start with
        whole = build(self.config)
        network = build(self.config, device="meta") if meta else whole
        for stack in ("encoder", "decoder"):
            if case == "odd" and hasattr(network, stack):
                getattr(network, stack).gradient_checkpointing = True
        if section.precision == "auto":
            whole, network = whole.to(torch.float64), network.to(torch.float64)
        self.network = network
        if case == "odd":
            for name, parameter in network.named_parameters():
                parameter.requires_grad_(not name.endswith(("ffn.up.bias", "embedding.token.weight")))
        self.module = parallelize(TrainingModule(network, ObjectiveSection(kind="causal_lm")).train(), world, section)
        if meta:
            scatter_weights(network, whole if world.rank == 0 else None, world)
        self.named = list(network.named_parameters())
        self.optimizer = make_optimizer(self.named, section)  # of those that are not frozen

    def step(self, number: int, micro_batches: int = 2) -> float:
        """One step; returns the norm of its gradient. Before the third, an evaluation and other weights."""
        world = self.world
        if number == 2:
            self.evaluate_and_shrink()
        batch = batch_of(self.config, number)
        share = ROWS // world.data_size
        mine = batch._slice(world.data_rank * share, (world.data_rank + 1) * share)
        per_label = torch.tensor(1 / world.sum_scalar(mine.num_token_labels), dtype=self.named[0][1].dtype)
        for part, rows in enumerate(mine.split(micro_batches)):
            with world.gradient_sync(self.module, last=part == micro_batches - 1):
                self.module(make_labelled_batch(rows, world.device), per_label, per_label).backward()
        norm = world.clip_gradients([p for _, p in self.named], self.section.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm)

    @torch.no_grad()
    def evaluate_and_shrink(self) -> None:
        """A forward pass without a backward pass, after which weights are changed in place, as averages do it."""
        one = torch.ones((), dtype=self.named[0][1].dtype)
        self.module(make_labelled_batch(batch_of(self.config, 99), self.world.device), one, one)
        assert all(
            one is other for (_, one), (_, other) in zip(self.named, self.network.named_parameters(), strict=True)
        )
        for _, parameter in self.named:
            parameter.mul_(0.9)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        kept = {f"model.{name}": p.detach() for name, p in self.named}
        return kept | {f"optimizer.{n}": t for n, t in optimizer_tensors(self.optimizer, self.named).items()}

    def whole(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in gather_tensors(self.tensors().items(), self.world)}


def section_of(shard: str, tensor: int, exact: bool) -> TrainSection:
    """AdamW with clipping that bites now and then. `exact` computes in float64 ("auto" stands for it here)."""
    return TrainSection(
        parallel=shard,  # type: ignore[arg-type]
        tensor_parallel=tensor,
        lr=3e-4,
        max_grad_norm=1.5,
        eps=1e-5,  # a key's bias moves no weight of attention: its gradient is noise, which a small eps would blow up
        precision="auto" if exact else "float32",
        device="cpu",
    )


def do(job: dict[str, Any], world: World, folder: Path) -> None:
    """One job of a plan: train, and let process 0 write the weights, all of them their pieces."""
    section = section_of(job["shard"], job["tensor"], job["exact"])
    world = replace(world, parallel=section.parallel, row_orders={})
    if "mean" in job:  # what torch would do by itself
        wrapping._sum_gradients, fsdp.fully_shard = mean_over_processes, sharded_with_means
    run = Run(job["case"], world, section, meta=job.get("meta", False))
    if "from" in job:
        saved = FakeCheckpoint(load_file(job["from"]))
        for name, tensor in run.tensors().items():
            load_slices(tensor, saved, name, world)
    norms = []
    for number in range(job["first"], job["last"]):
        norms.append(run.step(number))
        if number == 0:
            save_whole(run, folder / f"{job['name']}.first.safetensors")
    if world.rank == 0:
        tied = run.network.head.out.weight is table_of(run.network).weight
        (folder / f"{job['name']}.json").write_text(json.dumps({"norms": norms, "tied": tied}))
    pieces = {
        f"{name}|{list(piece.offset)}|{list(piece.shape)}": piece.values.contiguous().clone()
        for name, tensor in run.tensors().items()
        for piece in local_slices(name, tensor, world)
    }
    save_file(pieces, folder / f"{job['name']}.pieces{world.rank}.safetensors")
    save_whole(run, folder / f"{job['name']}.safetensors")


def save_whole(run: Run, path: Path) -> None:
    whole = run.whole()
    if run.world.rank == 0:
        save_file(whole, path)


def mean_over_processes(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work: Any = dist.all_reduce(bucket.buffer().div_(group.size()), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


fully_shard = fsdp.fully_shard


def sharded_with_means(module: nn.Module, **options: Any) -> nn.Module:
    sharded = fully_shard(module, **options)
    sharded.set_gradient_divide_factor = lambda factor: None  # type: ignore[method-assign]
    return sharded


def table_of(network: nn.Module) -> nn.Embedding:
    table = network.source_embedding if isinstance(network, Seq2Seq) else network.embedding
    return table.token  # type: ignore[union-attr, return-value]


class FakeCheckpoint:
    """Stands in for a checkpoint: whole tensors in memory, from which boxes are cut."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def read_tensor(self, name: str) -> Tensor:
        return self.tensors[name]

    def read_slice(self, name: str, offset: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
        return self.tensors[name][tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))]


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    world = init_world(section_of("fsdp", 1, True))
    grids = {1: world}
    for job in plan["jobs"]:
        tensor = job["tensor"]
        if tensor not in grids:  # the same processes in another grid
            shape = (world.size // tensor, tensor)
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
            grids[tensor] = replace(world, tensor_size=tensor, mesh=mesh)
        do(job, grids[tensor], Path(plan["folder"]))
    world.leave()


if __name__ == "__main__":
    main()
