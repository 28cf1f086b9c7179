"""Looking inside models of images, and the doctor: planted faults are found."""

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_files import Image, encode, picture

import qkv
from qkv.blocks import HeadConfig, Payload, StackConfig
from qkv.images.config import PatchesConfig
from qkv.images.files import load_image
from qkv.images.patches import Patches
from qkv.inside.doctor.orientation import flip_rows
from qkv.inside.doctor.subject import Subject, random_batch
from qkv.inside.doctor.table import run_check
from qkv.models import Config
from qkv.page.packing import unpack
from qkv.tasks.doctor import open_subject


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


def test_attention_on_the_picture_and_its_effect(classifier: tuple[Path, qkv.Model]) -> None:
    folder, model = classifier
    shown = model.look(str(folder / "x.png")).document["picture"]
    pattern = model.trace(str(folder / "x.png"), sites="*.pattern")["encoder.1.pattern"].mean(0)[0, 1:]
    weights = unpack(shown["pictures"][0]["weights"])
    assert weights.shape == (3, 1, 4), "two layers and rollout, [CLS], four patches"
    assert np.abs(weights[1, 0] - (pattern / pattern.max()).numpy()).max() < 0.01
    assert shown["pictures"][0]["share"][1][0] == pytest.approx(pattern.sum().item(), abs=1e-5)
    content = base64.b64decode(shown["pictures"][0]["png"].partition(",")[2])
    assert (np.asarray(Image.open(BytesIO(content))) == load_image(folder / "x.png", PatchesConfig(size=8))).all()
    assert shown["effects"]["looked"] != [0.0]
    (folder / "grey.png").write_bytes(encode(np.full((8, 8, 3), 90, np.uint8)))
    same = model.look(str(folder / "grey.png")).document["picture"]["effects"]
    assert (same["looked"], same["random"]) == ([0.0], [0.0]), "the mean of a grey picture is the picture"


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


class UpsideDown(Patches):
    """A planted fault: images are upside down."""

    def forward(self, payload: Payload) -> torch.Tensor:
        pixels = payload.values.view(-1, *self.config.grid, 4, 4, 3)
        return super().forward(payload._replace(values=flip_rows(pixels).reshape(payload.values.shape)))


class Swapped(Patches):
    """A planted fault: blue, green, red."""

    def forward(self, payload: Payload) -> torch.Tensor:
        return super().forward(
            payload._replace(values=payload.values.view(len(payload.values), -1, 3).flip(2).flatten(1))
        )


def test_the_doctor_finds_images_that_are_read_in_another_way(tmp_path: Path) -> None:
    colours = {"red": (200, 60, 60), "blue": (60, 60, 200)}
    for name, colour in colours.items():
        for half in ("top", "bottom"):
            (tmp_path / "data" / f"{name} {half}").mkdir(parents=True)
            for number in range(10):
                pixels = picture(8, 8, number) // 8
                pixels[slice(0, 4) if half == "top" else slice(4, 8)] += np.array(colour, np.uint8)
                (tmp_path / "data" / f"{name} {half}" / f"{number}.png").write_bytes(encode(pixels))
    recipe = f'run = "{tmp_path}/run"\n[data]\ntrain = "{tmp_path}/data"\nmax_length = 16\n'
    recipe += f'valid_fraction = 0.2\ncache_dir = "{tmp_path}/cache"\n[model]\nwidth = 16\nlayers = 1\nheads = 2\n'
    recipe += "ffn_width = 64\ndropout = 0.0\n[model.image]\nsize = 8\npatch = 4\n"
    recipe += '[objective]\nkind = "classification"\n[train]\nsteps = 160\nbatch_tokens = 256\nlr = 0.03\n'
    (tmp_path / "recipe.toml").write_text(recipe + 'device = "cpu"\nnum_threads = 1\n', encoding="utf-8")
    qkv.train(tmp_path / "recipe.toml")
    subject, _ = open_subject(str(tmp_path / "run"), (), None)
    assert run_check("orientation", subject).status == "ok"
    own = subject.network.front_ends["patches"]
    for fault, message in ((UpsideDown, "upside down"), (Swapped, "red and blue swapped")):
        broken = fault(subject.config.front_ends[0], 16)  # type: ignore[arg-type]
        broken.load_state_dict(own.state_dict())
        subject.network.front_ends["patches"] = broken
        found = run_check("orientation", subject)
        assert (found.status, message in found.summary) == ("failed", True), found
