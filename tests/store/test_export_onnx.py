"""ONNX graphs compute the same output as qkv for any batch size and length, with and without a cache."""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.blocks import Inputs
from qkv.errors import QkvError
from qkv.models import Decoder, Encoder, Seq2Seq
from qkv.store.export_onnx import write_onnx
from qkv.text import Tokenizer

pytest.importorskip("onnxscript", reason="onnxscript is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

VOCAB = 30
SIZE: dict[str, Any] = {"vocab_size": VOCAB, "width": 16, "layers": 2, "heads": 4, "ffn_width": 24, "max_positions": 32}
Session = Any


def opened(path: Path) -> Session:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def ids_of(batch_size: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCAB, (batch_size, length), generator=torch.Generator().manual_seed(seed))


def mask_of(*lengths: int, left: bool = False) -> torch.Tensor:
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return mask.flip(1) if left else mask


def far_from_start(config: qkv.Config) -> Any:
    network = qkv.new(config, seed=1).network
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) * 0.3)
    return network


def check_near(theirs: Any, ours: torch.Tensor, where: torch.Tensor | None = None) -> None:
    theirs = torch.from_numpy(theirs)
    if where is not None:
        theirs, ours = theirs[where], ours[where]
    torch.testing.assert_close(theirs, ours.detach(), atol=1e-4, rtol=1e-4)


# ── Encoder ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoder, Session, Path]:
    stack = qkv.StackConfig(
        **{**SIZE, "layers": 1}, position="learned", norm_placement="post", embedding_norm="extra", token_types=2
    )
    head = qkv.HeadConfig(kind="classify", outputs=3, dense="tanh")
    network = far_from_start(qkv.Config(encoder=stack, head=head, pad_token_id=0))
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = Tokenizer.train("byte", iter([]), vocab_size=260)
    assert write_onnx(folder, network.config, network, tokenizer) == "model.onnx"
    return network, opened(folder / "model.onnx"), folder


@pytest.mark.parametrize("lengths", [(5,), (3, 7, 1), (4, 4)])
@pytest.mark.parametrize("left", [False, True])
def test_an_encoder_gives_the_same_output(
    encoder: tuple[Encoder, Session, Path], lengths: tuple[int, ...], left: bool
) -> None:
    network, session, _ = encoder
    mask = mask_of(*lengths, left=left)
    ids = ids_of(*mask.shape)
    types = ids % 2
    (theirs,) = session.run(["logits"], {"ids": ids.numpy(), "mask": mask.numpy(), "token_type_ids": types.numpy()})
    check_near(theirs, network(Inputs(ids, document_ids=mask, token_type_ids=types)))


def test_the_mask_has_an_effect(encoder: tuple[Encoder, Session, Path]) -> None:
    """Negative control: another mask gives another output."""
    _, session, _ = encoder
    ids = ids_of(1, 6)
    zero = np.zeros_like(ids.numpy())
    whole, part = (
        session.run(None, {"ids": ids.numpy(), "mask": mask_of(*lengths)[:1].numpy(), "token_type_ids": zero})[0]
        for lengths in ((6,), (4, 6))
    )
    assert np.abs(whole - part).max() > 1e-3


def test_the_readme_describes_inputs_and_outputs(encoder: tuple[Encoder, Session, Path]) -> None:
    _, session, folder = encoder
    text = (folder / "README.md").read_text(encoding="utf-8")
    for one in (*session.get_inputs(), *session.get_outputs()):
        assert f"`{one.name}`" in text
    assert "pad_token_id: 0" in text
    assert (folder / "tokenizer.json").exists()


# ── Decoder ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, Session]:
    modern = {"position": "rotary", "norm": "rmsnorm", "norm_affine": "gain", "feedforward": "swiglu", "bias": "none"}
    stack = qkv.StackConfig(**SIZE, **modern, kv_heads=2)
    network = far_from_start(qkv.Config(decoder=stack, head=qkv.HeadConfig(kind="lm", outputs=VOCAB)))
    folder = tmp_path_factory.mktemp("decoder")
    write_onnx(folder, network.config, network, None)
    return network, opened(folder / "model.onnx")


def nothing_yet(network: Decoder | Seq2Seq, batch_size: int) -> Any:
    stack = network.decoder.config
    return np.zeros((stack.layers, 2, batch_size, stack.kv_heads, 0, stack.head_dim), np.float32)


@pytest.mark.parametrize("lengths", [(5,), (3, 7, 1)])
def test_a_decoder_gives_the_same_logits_for_whole_texts(
    decoder: tuple[Decoder, Session], lengths: tuple[int, ...]
) -> None:
    network, session = decoder
    mask = mask_of(*lengths, left=True)
    ids = ids_of(*mask.shape)
    feed = {"ids": ids.numpy(), "mask": mask.numpy(), "past": nothing_yet(network, len(ids))}
    theirs, past = session.run(["logits", "present"], feed)
    check_near(theirs, network(Inputs(ids, document_ids=mask)), mask.bool())
    assert past.shape[4] == ids.shape[1]


@pytest.mark.parametrize("cuts", [(0, 4, 5, 6, 9), (0, 1, 2, 9), (0, 9)])
def test_a_decoder_gives_the_same_logits_step_by_step(decoder: tuple[Decoder, Session], cuts: tuple[int, ...]) -> None:
    network, session = decoder
    mask = mask_of(9, 8, left=True)  # padding only in the first chunk
    ids = ids_of(*mask.shape)
    past, chunks = nothing_yet(network, 2), []
    for start, end in pairwise(cuts):
        feed = {"ids": ids[:, start:end].numpy(), "mask": mask[:, :end].numpy(), "past": past}
        logits, past = session.run(None, feed)
        chunks.append(logits)
    check_near(np.concatenate(chunks, 1), network(Inputs(ids, document_ids=mask)), mask.bool())


# ── Encoder and decoder ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def seq2seq(tmp_path_factory: pytest.TempPathFactory) -> tuple[Seq2Seq, Session, Session]:
    stack = qkv.StackConfig(**SIZE, norm_placement="post", feedforward="relu", embedding_scale="sqrt")
    head = qkv.HeadConfig(kind="lm", outputs=VOCAB, tied=True, bias=True)
    config = qkv.Config(
        encoder=stack, decoder=stack, head=head, share_embeddings=True, decoder_start_token_id=2, eos_token_ids=(1,)
    )
    network = far_from_start(config)
    folder = tmp_path_factory.mktemp("seq2seq")
    assert write_onnx(folder, config, network, None) == "encoder.onnx, decoder.onnx"
    return network, opened(folder / "encoder.onnx"), opened(folder / "decoder.onnx")


@pytest.mark.parametrize("lengths", [(5,), (3, 7, 1)])
@pytest.mark.parametrize("cuts", [(0, 6), (0, 1, 2, 6)])
def test_an_encoder_decoder_gives_the_same_logits(
    seq2seq: tuple[Seq2Seq, Session, Session], lengths: tuple[int, ...], cuts: tuple[int, ...]
) -> None:
    network, reads, writes = seq2seq
    mask = mask_of(*lengths)
    source, target = ids_of(*mask.shape), ids_of(len(mask), 6, seed=1)
    (memory,) = reads.run(["memory"], {"source": source.numpy(), "mask": mask.numpy()})
    past, chunks = nothing_yet(network, len(mask)), []
    for start, end in pairwise(cuts):
        feed = {"target": target[:, start:end].numpy(), "mask": mask.numpy(), "memory": memory, "past": past}
        logits, past = writes.run(None, feed)
        chunks.append(logits)
    check_near(np.concatenate(chunks, 1), network(Inputs(target, source=Inputs(source, document_ids=mask))))


# ── Refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    network = qkv.new("bert-tiny").network
    with pytest.raises(QkvError, match=r"qkv\[onnx\]"):
        write_onnx(tmp_path / "out", network.config, network, None)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    network = qkv.new("bert-tiny").network
    with pytest.raises(QkvError, match="other files"):
        write_onnx(tmp_path, network.config, network, None)
