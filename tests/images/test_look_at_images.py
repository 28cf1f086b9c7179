"""Looking inside models of images, and the doctor: planted faults are found."""

from pathlib import Path
from typing import Any

import pytest
import torch
from image_files import encode, picture

import qkv
from qkv.blocks import HeadConfig, Payload, StackConfig
from qkv.images.config import PatchesConfig
from qkv.images.patches import Patches
from qkv.inside.doctor.subject import Subject, random_batch
from qkv.inside.doctor.table import run_check
from qkv.models import Config


@pytest.fixture
def classifier(tmp_path: Path) -> tuple[Path, qkv.Model]:
    tokenizer = qkv.Tokenizer.train("special", iter(()), 4, special_tokens=["pad", "cls"])
    stack = StackConfig(vocab_size=2, width=16, layers=2, heads=2, ffn_width=32)
    head = HeadConfig(kind="classify", outputs=2, labels=("a", "b"))
    config = Config(encoder=stack, head=head, front_ends=(PatchesConfig(size=8, patch=4),), pad_token_id=0)
    model = qkv.new(config, tokenizer=tokenizer)
    model.save(tmp_path / "model")
    (tmp_path / "x.png").write_bytes(encode(picture()))
    return tmp_path, model


def test_a_page_shows_attention_between_patches(classifier: tuple[Path, qkv.Model], run_qkv: Any) -> None:
    folder, model = classifier
    found = model.trace(str(folder / "x.png"), sites="*.pattern")
    assert found["encoder.1.pattern"].shape == (2, 5, 5), "[CLS] and four patches"
    other = model.trace(str(folder / "x.png"), sites="logits")["logits"]
    expected = model.classify(folder / "x.png")
    assert other.softmax(-1).max().item() == pytest.approx(expected.probability, abs=1e-5)
    out = folder / "look.html"
    run_qkv(["look", str(folder / "model"), str(folder / "x.png"), "--out", str(out)])
    assert "At placeholders" in out.read_text(encoding="utf-8")


class Blind(Patches):
    """A planted fault: the vectors do not depend on the image."""

    def forward(self, payload: Payload) -> torch.Tensor:
        return super().forward(payload._replace(values=torch.zeros_like(payload.values)))


def test_the_doctor_finds_a_model_that_ignores_the_image(classifier: tuple[Path, qkv.Model]) -> None:
    network = classifier[1].network
    subject = Subject(network, None, random_batch(network.config), has_random_batch=True)
    assert run_check("payload", subject).status == "ok"
    network.front_ends["patches"] = Blind(network.config.front_ends[0], 16)  # type: ignore[arg-type]
    assert run_check("payload", subject).status == "failed"
