"""The codec of a run that learns to draw or speak: fitted to the training data, and cached like a tokenizer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from qkv.data import Problems
from qkv.data.objectives.drawing import read_patches
from qkv.data.objectives.table import OBJECTIVES
from qkv.errors import QkvError
from qkv.images.codec import ImageCodes, fit_codebook, used_fraction
from qkv.images.config import ImageCodesConfig
from qkv.images.files import BadImage
from qkv.progress import OnStage
from qkv.tasks.prepare.sources import DataSource, digest
from qkv.text import Tokenizer
from qkv.train.recipe.schema import Recipe
from qkv.train.run.load import load_model

if TYPE_CHECKING:
    from qkv.tasks.prepare.aligner import SpeechAligner

VERSION = 1
MAX_PICTURES = 2000  # of the training data
FOLDER = "codecs"


def load_or_fit_codec(
    recipe: Recipe,
    sources: Sequence[DataSource],
    root: Path,
    tokenizer: Tokenizer,
    speakers: Sequence[str],
    progress: OnStage | None,
) -> "tuple[ImageCodes | SpeechAligner | None, str]":
    """The codec of a run and a note on it; None if the run does not learn to draw or speak."""
    drawn = [one.modality for one in OBJECTIVES[recipe.objective.kind].fields if one.is_drawn]
    if "audio" in drawn:
        from qkv.tasks.prepare.aligner import load_or_train_aligner

        return load_or_train_aligner(recipe, sources, root, tokenizer, speakers, progress)
    if "image" not in drawn:
        return None, ""
    if recipe.model.from_:
        found = load_model(recipe.model.from_, device="cpu", unfinished=False).network.back_ends
        codec = next((one for one in found.values() if isinstance(one, ImageCodes)), None)
        if codec is None:
            raise QkvError(f"{recipe.model.from_} draws no pictures; leave model.from out, or name a model that does")
        codec.config = replace(codec.config, caption_dropout=recipe.objective.caption_dropout)
        return codec, f"the codes of pictures of {recipe.model.from_}"
    given = recipe.model.overrides.get("image", {})
    shape = {name: given[name] for name in ("size", "patch") if name in given}
    config = ImageCodesConfig(
        first_id=tokenizer.target.vocab_size,
        num_codes=recipe.tokenizer.image_codes,
        caption_dropout=recipe.objective.caption_dropout,
        **shape,
    )
    made_from = [VERSION, [one.identity(root) for one in sources], config.size, config.patch, config.num_codes]
    path = root / FOLDER / f"{digest(made_from)}.safetensors"
    codec = ImageCodes(config).requires_grad_(False)
    patches = np.concatenate([*sample_patches(sources, config)])
    if path.is_file():
        codec.load_state_dict(load_file(path))
    else:
        codec.codebook.weight.copy_(fit_codebook(patches, config.num_codes))
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(codec.state_dict(), path)
    return codec, describe_codec(codec, patches)


def sample_patches(sources: Sequence[DataSource], config: ImageCodesConfig) -> Iterator[np.ndarray]:
    """The patches of the first pictures of each source that can be decoded."""
    count = 0
    for source in sources:
        for record in islice(source.records(Problems(max_invalid_fraction=1)), MAX_PICTURES // len(sources)):
            try:
                yield read_patches(record.fields["image"], config)
                count += 1
            except (BadImage, KeyError):
                continue
    if not count:
        raise QkvError("no picture of the training data can be decoded, so there are no codes; qkv data lists problems")


def describe_codec(codec: ImageCodes, patches: np.ndarray) -> str:
    """How many codes pictures use, and how well they are drawn from them."""
    values = torch.from_numpy(patches)
    codes = codec.encode(values)
    error = (codec.codebook.weight[codes] - values.float() / 255).square().mean().item()
    return (
        f"{codec.config.num_codes} codes of {codec.config.patch} × {codec.config.patch} pixels draw a picture; the "
        f"training pictures use {used_fraction(codes, codec.config.num_codes):.0%} of them, and differ from their "
        f"drawings by {error**0.5:.3f} (root mean square of colours from 0 to 1)"
    )
