"""`qkv doctor` finds planted faults, and finds nothing in a healthy model."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.blocks import HeadConfig, StackConfig
from qkv.blocks.cache import SelfCache
from qkv.blocks.mask import Mask, SequenceLayout
from qkv.inside.doctor import CHECKS, Subject, examine, random_batch, run_check
from qkv.models import Config, build
from qkv.text import Tokenizer
from qkv.train.recipe.schema import TrainSection

VOCAB = 40
HEADS = {
    "decoder": HeadConfig(kind="lm", outputs=VOCAB, tied=True),
    "encoder": HeadConfig(kind="mlm", outputs=VOCAB, tied=True, dense="gelu", dense_norm=True),
    "seq2seq": HeadConfig(kind="lm", outputs=VOCAB, tied=True),
}


def make_subject(family: str = "decoder", head: HeadConfig | None = None, lr: float = 1e-3, **choices: Any) -> Subject:
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "width": 32, "layers": 2, "heads": 4, "ffn_width": 64}
    stack = StackConfig(**(sizes | {"position": "rotary"} | choices))
    config = Config(
        encoder=stack if family != "decoder" else None,
        decoder=stack if family != "encoder" else None,
        head=head or HEADS[family],
        share_embeddings=family == "seq2seq",
    )
    torch.manual_seed(0)
    return Subject(build(config), None, random_batch(config), train=TrainSection(lr=lr), is_new=True)


OTHER_HEADS = [
    ("encoder", HeadConfig(kind="classify", labels=("a", "b", "c"), dense="tanh", bias=True)),
    ("decoder", HeadConfig(kind="classify", outputs=1, pool="last")),
    ("encoder", HeadConfig(kind="tag", labels=("a", "b"), bias=True)),
    ("encoder", HeadConfig(kind="span", outputs=2)),
    ("encoder", HeadConfig(kind="embed", pool="mean")),
    ("encoder", HeadConfig(kind="choice", outputs=1)),
    ("encoder", HeadConfig(kind="none")),
]


@pytest.mark.parametrize(
    ("family", "head"), [*HEADS.items(), *OTHER_HEADS], ids=lambda value: getattr(value, "kind", value)
)
def test_a_healthy_model_passes_every_check_and_is_not_changed(family: str, head: HeadConfig) -> None:
    subject = make_subject(family, head)
    before = {name: tensor.clone() for name, tensor in subject.network.state_dict().items()}
    training = subject.network.training
    findings = examine(subject)
    assert {finding.status for finding in findings} <= {"ok", "skipped"}, findings
    assert len(findings) == len(CHECKS)
    assert all(torch.equal(tensor, before[name]) for name, tensor in subject.network.state_dict().items())
    assert all(parameter.grad is None for parameter in subject.network.parameters())
    assert subject.network.training == training


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_a_healthy_recurrent_model_passes_the_checks_that_apply(family: str) -> None:
    subject = make_subject(family, block="gru", heads=0, ffn_width=0, position="none", init="xavier")
    findings = {name: run_check(name, subject) for name in CHECKS if name not in ("overfit", "lr")}
    skipped = {name for name, finding in findings.items() if finding.status == "skipped"}
    assert {"heads", "neurons", "activations"} <= skipped
    assert {finding.status for finding in findings.values()} == {"ok", "skipped"}, findings


@pytest.mark.parametrize(
    "choices", [{"position": "t5"}, {"norm_placement": "post"}, {"feedforward": "swiglu"}], ids=str
)
def test_other_architectures_pass_the_checks_of_structure(choices: dict[str, Any]) -> None:
    subject = make_subject("seq2seq", **choices)
    names = [name for name in CHECKS if name not in ("overfit", "lr")]
    assert {run_check(name, subject).status for name in names} <= {"ok", "skipped"}


# ── Planted faults ──────────────────────────────────────────────────────────────────────────────────────────────


def see_one_too_far(self: Mask, query_ids: Tensor, key_ids: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query_ids == key_ids) & (key_ids != 0) & ((key <= query + 1) | (not self.causal))


def see_other_documents(self: Mask, query_ids: Tensor, key_ids: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query_ids != 0) & (key_ids != 0) & ((key <= query) | (not self.causal))


def see_padding(self: Mask, query_ids: Tensor, key_ids: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return ((query_ids == key_ids) | (key_ids == 0)) & ((key <= query) | (not self.causal))


@pytest.mark.parametrize(
    ("check", "family", "rule"),
    [
        ("future", "decoder", see_one_too_far),
        ("future", "seq2seq", see_one_too_far),
        *(("neighbours", family, see_other_documents) for family in HEADS),
        *(("padding", family, see_padding) for family in HEADS),
    ],
)
def test_a_mask_that_leaks_is_found(
    monkeypatch: pytest.MonkeyPatch, check: str, family: str, rule: Callable[..., Tensor]
) -> None:
    subject = make_subject(family)
    for stack in ("encoder", "decoder"):
        if hasattr(subject.network, stack):
            getattr(subject.network, stack).kernel = "eager"
    monkeypatch.setattr(Mask, "allows", rule)
    monkeypatch.setattr(SequenceLayout, "zero_padding", lambda self, x: x)
    found = run_check(check, subject)
    assert (found.status, bool(found.advice)) == ("failed", True)


class BatchMixer(nn.Module):
    """A norm that mixes in the mean over the batch."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x + 0.01 * x.mean(0, keepdim=True))
        return out


def test_a_leak_between_sequences_is_found() -> None:
    subject = make_subject()
    block = subject.network.decoder.blocks[0]
    block.ffn_sub.norm = BatchMixer(block.ffn_sub.norm)
    found = run_check("neighbours", subject)
    assert found.status == "failed"
    assert "batch axis" in found.advice


@pytest.mark.parametrize("family", HEADS)
def test_an_untied_head_is_found(family: str) -> None:
    subject = make_subject(family)
    subject.network.head.out.weight = nn.Parameter(subject.network.head.out.weight.detach().clone())
    assert run_check("tied", subject).status == "failed"


def test_an_untied_source_embedding_is_found() -> None:
    subject = make_subject("seq2seq")
    weight = subject.network.source_embedding.token.weight
    subject.network.source_embedding.token = nn.Embedding.from_pretrained(weight.detach().clone(), freeze=False)
    found = run_check("tied", subject)
    assert found.status == "failed"
    assert "source and target" in found.summary


class Detached(nn.Module):
    """A module whose output carries no gradient."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *arguments: Any) -> Tensor:
        out: Tensor = self.inner(*arguments).detach()
        return out


def test_a_detached_part_is_found() -> None:
    subject = make_subject()
    subject.network.decoder.blocks[1].ffn = Detached(subject.network.decoder.blocks[1].ffn)
    found = run_check("gradients", subject)
    assert found.status == "failed"
    assert "decoder.blocks.1.ffn" in found.summary


def test_a_gradient_that_is_not_finite_or_vanishes_is_found() -> None:
    """After a very large residual stream, the norms divide the gradients of the later blocks."""
    subject = make_subject(layers=3)
    with torch.no_grad():
        subject.network.decoder.blocks[0].ffn.down.weight.mul_(1e8)
    assert run_check("gradient_scales", subject).status == "warning"
    assert run_check("activations", subject).status != "ok"
    with torch.no_grad():
        subject.network.decoder.blocks[0].ffn.down.weight[0, 0] = float("nan")
    assert run_check("gradients", subject).status == "failed"
    assert run_check("activations", subject).status == "failed"


def test_a_block_that_does_nothing_is_found() -> None:
    subject = make_subject()
    block = subject.network.decoder.blocks[1]
    for linear in (block.attention.out, block.ffn.down):
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
    found = run_check("activations", subject)
    assert found.status == "failed"
    assert "decoder.1" in found.summary


@pytest.mark.parametrize(("family", "part"), [("seq2seq", "cross"), ("decoder", "attention")])
def test_a_source_or_a_context_that_is_ignored_is_found(family: str, part: str) -> None:
    subject = make_subject(family)
    for block in subject.network.decoder.blocks:
        nn.init.zeros_(getattr(block, part).out.weight)
    assert run_check("source", subject).status == "failed"


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_a_cache_with_wrong_positions_is_found(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    subject = make_subject(family)
    counted = SelfCache.next_positions
    monkeypatch.setattr(
        SelfCache,
        "next_positions",
        lambda self, ids, documents: None if self.filled == 0 else counted(self, ids, documents) - 1,
    )
    assert run_check("cache", subject).status == "failed"


def test_a_tokenizer_that_is_too_large_is_found() -> None:
    tokenizer = Tokenizer.train("byte", iter([]), vocab_size=260, special_tokens=["pad", "eos"])
    found = run_check("tokenizer", replace(make_subject(), tokenizer=tokenizer))
    assert found.status == "failed"
    assert f"{tokenizer.vocab_size}" in found.summary


def test_unknown_tokens_in_the_data_are_reported() -> None:
    tokenizer = Tokenizer.train("char", iter(["ab"]), vocab_size=20, special_tokens=["pad", "unk", "eos"])
    subject = make_subject()
    unknown = torch.full_like(subject.batch.inputs.ids, tokenizer.special_tokens.unk or 0)
    batch = replace(subject.batch, inputs=replace(subject.batch.inputs, ids=unknown))
    found = run_check("tokenizer", replace(subject, tokenizer=tokenizer, batch=batch))
    assert found.status == "warning"


@pytest.mark.parametrize(("fraction", "status"), [(1.0, "failed"), (0.5, "warning"), (0.0, "ok")])
def test_dead_neurons_are_found(fraction: float, status: str) -> None:
    subject = make_subject(feedforward="relu")
    with torch.no_grad():
        subject.network.decoder.blocks[1].ffn.up.bias[: int(64 * fraction)] = -100.0
    found = run_check("neurons", subject)
    assert found.status == status
    assert found.values["dead_fraction"]["decoder.1"] == pytest.approx(fraction, abs=0.03)


@pytest.mark.parametrize("part", ["attention", "cross"])
def test_a_dead_head_is_found(part: str) -> None:
    subject = make_subject("seq2seq")
    with torch.no_grad():
        getattr(subject.network.decoder.blocks[1], part).out.weight[:, 8:16] = 0.0
    found = run_check("heads", subject)
    assert found.status == "warning"
    assert found.values["dead"] == [f"decoder.1 {'cross head' if part == 'cross' else 'head'} 1"]


@pytest.mark.parametrize(("lr", "status"), [(50.0, "failed"), (1e-9, "warning"), (1e-3, "ok")])
def test_an_absurd_learning_rate_is_found(lr: float, status: str) -> None:
    assert run_check("lr", make_subject(lr=lr)).status == status


def test_labels_that_cannot_be_learned_are_found() -> None:
    """Weights that are frozen except for one bias cannot memorise anything."""
    subject = make_subject()
    subject.network.requires_grad_(False)
    subject.network.decoder.norm.bias.requires_grad_(True)
    assert run_check("overfit", subject).status == "failed"


def test_large_initial_weights_are_found() -> None:
    assert run_check("initial_loss", make_subject(init_std=3.0)).status == "warning"


def test_an_error_in_a_check_is_a_failed_check() -> None:
    subject = make_subject()
    subject.batch.inputs.ids[0, 0] = VOCAB  # outside the embedding
    findings = {finding.check: finding for finding in examine(subject)}
    assert any("IndexError" in finding.summary for finding in findings.values())
    assert findings["tied weights are tied"].status == "ok"


# ── The command ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    lines = [f"{'abcdefgh'[n % 8] * 3} {n}\t{'ABCDEFGH'[n % 8] * 3} {n}" for n in range(60)]
    (tmp_path / "pairs.tsv").write_text("source\ttarget\n" + "\n".join(lines) + "\n")
    file = tmp_path / "recipe.toml"
    file.write_text(
        f'[data]\ntrain = "{tmp_path / "pairs.tsv"}"\ncache_dir = "{tmp_path / "cache"}"\nmax_length = 32\n'
        '[tokenizer]\nkind = "char"\nvocab_size = 60\n[model]\nwidth = 32\nlayers = 1\n'
        '[objective]\nkind = "seq2seq"\n[train]\nsteps = 2\nbatch_tokens = 256\nlr = 3e-3\n'
    )
    return file


def test_the_command_examines_a_recipe(recipe: Path, run_qkv: Any) -> None:
    shown = json.loads(run_qkv(["doctor", str(recipe), "--json"]).out)
    assert shown["healthy"]
    assert len(shown["checks"]) == len(CHECKS)
    out = run_qkv(["doctor", str(recipe), "train.lr=100"], 1).out
    assert "✗ learning rate" in out
    assert "too high" in out


def test_the_command_examines_a_model(tmp_path: Path, run_qkv: Any) -> None:
    subject = make_subject()
    qkv.Model(subject.config, subject.network).save(tmp_path / "model")
    assert "random tokens" in run_qkv(["doctor", str(tmp_path / "model")]).out
    assert "is a model" in run_qkv(["doctor", str(tmp_path / "model"), "train.lr=1"], 2).err
    assert "3,492 GB" in (shown := run_qkv(["doctor", "gpt3-175b"], 2).err)
    assert "fewer layers" in shown
    assert "dates" in run_qkv(["doctor", "datse"], 2).err
