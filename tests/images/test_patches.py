"""The front end for images, and random changes of images."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from image_files import encode, picture

from qkv.blocks import HeadConfig, Payload, StackConfig
from qkv.blocks.position import grid_positions, grid_sinusoids
from qkv.data.images import ImageFormat
from qkv.errors import UsageError
from qkv.images.augment import AUGMENTATIONS, augment
from qkv.images.config import PatchesConfig
from qkv.images.files import split_patches
from qkv.images.patches import Patches, join_patches
from qkv.models import Config, build
from qkv.store.config_json import parse_config

SMALL = PatchesConfig(size=8, patch=4)


def payload(images: np.ndarray, config: PatchesConfig) -> Payload:
    values = torch.from_numpy(split_patches(images, config.patch).reshape(-1, config.features))
    rows, columns = config.grid
    count, length = len(images), rows * columns
    return Payload(
        values, torch.arange(count * length), torch.tensor([config.grid] * count), torch.tensor([length] * count)
    )


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
def test_linear_patches_are_a_convolution_with_stride(positions: Any) -> None:
    config = replace(SMALL, positions=positions)
    torch.manual_seed(0)
    front = Patches(config, 16).double()
    images = np.stack([picture(seed=seed) for seed in range(3)])
    pixels = (torch.from_numpy(images).permute(0, 3, 1, 2).double() / 255 - 0.5) / 0.5
    weight = front.project.weight.view(16, 4, 4, 3).permute(0, 3, 1, 2)
    expected = torch.nn.functional.conv2d(pixels, weight, front.project.bias, stride=4).flatten(2).transpose(1, 2)
    if front.position is not None:
        expected = expected + front.position.weight
    elif positions == "sinusoidal":
        expected = expected + grid_sinusoids(grid_positions(2, 2), 16)
    torch.testing.assert_close(front(payload(images, config)), expected.flatten(0, 1))


def test_the_convolutional_stem_reads_whole_images() -> None:
    config = replace(SMALL, stem="conv", positions="none")
    front = Patches(config, 16)
    images = np.stack([picture(seed=seed) for seed in range(2)])
    found = front(payload(images, config))
    pixels = (torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
    torch.testing.assert_close(found, front.project(pixels).flatten(2).transpose(1, 2).flatten(0, 1))
    assert found.shape == (8, 16)


def test_patches_are_joined_to_the_image() -> None:
    images = torch.from_numpy(np.stack([picture(seed=seed) for seed in range(2)]))
    patches = torch.from_numpy(split_patches(images.numpy(), 4))
    assert torch.equal(join_patches(patches, 2, 4), images.permute(0, 3, 1, 2))


def test_a_config_is_kept_in_json() -> None:
    stack = StackConfig(vocab_size=2, width=16, layers=1, heads=2, ffn_width=16)
    config = Config(encoder=stack, head=HeadConfig(kind="classify", outputs=3), front_ends=(SMALL,))
    assert parse_config(config.to_dict()) == config
    assert build(config).front_ends["patches"].config == SMALL


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 30, "patch": 4}, "size = 30 is not a multiple of patch = 4"),
        ({"size": 30, "patch": 6, "stem": "conv"}, "patch must be 2, 4, 8"),
        ({"features": 7}, r"patches have 3 · 4² numbers"),
        ({"std": (0.5, 0.0, 0.5)}, "std must not be 0"),
    ],
)
def test_wrong_configs_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PatchesConfig(**fields)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_change_depends_on_the_key_alone(name: str) -> None:
    images = np.stack([picture(12, 12, seed) for seed in range(40)])
    keys = np.random.default_rng(0).integers(0, 2**64, 40, dtype=np.uint64)
    together = augment(images, [name], keys)
    alone = np.concatenate([augment(images[i : i + 1], [name], keys[i : i + 1]) for i in range(40)])
    assert (together == alone).all()
    changed = (together != images).any(axis=(1, 2, 3)).mean()
    assert changed > 0.1, "some images change"
    assert (augment(images, [name], keys + np.uint64(1)) != together).any()


def test_only_training_images_are_changed() -> None:
    format = ImageFormat(SMALL).configure({}, ["flip", "rand"])
    stored, size = format.store(encode(picture()))
    many = {format.decode(stored, size, key).tobytes() for key in range(20)}
    assert len(many) > 5
    plain = {format.for_evaluation().decode(stored, size, key).tobytes() for key in range(5)}
    assert plain == {split_patches(picture(), 4).tobytes()}
    with pytest.raises(UsageError, match=r"data.augment: 'flop' is unknown; did you mean 'flip'"):
        format.configure({}, ["flop"])
