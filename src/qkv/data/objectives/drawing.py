"""Drawing: an encoder reads a caption, and a decoder writes the codes of the picture, row by row."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from qkv.data.cache.examples import EncodedExamples
from qkv.data.cache.writer import EncodedRecord, RecordEncoder
from qkv.data.encode.encoders import EncodeTexts
from qkv.data.objectives import seq2seq
from qkv.data.objectives.base import FlatExamples
from qkv.data.objectives.classification import IMAGE_COLUMNS
from qkv.data.objectives.table import ObjectiveSetup, RecordField
from qkv.data.problems import InvalidRecord
from qkv.data.ragged import IntArray
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng, to_uniform
from qkv.images.codec import ImageCodes
from qkv.images.config import ImageCodesConfig, PatchesConfig
from qkv.images.files import BadImage, load_image, split_patches


class EncodeDrawing:
    """Encodes captions as `source`, and the codes of pictures as `target`."""

    def __init__(self, setup: ObjectiveSetup) -> None:
        self.codec: ImageCodes = setup.codec
        self.encode_texts = EncodeTexts("drawing", setup.tokenizer, {"source": "caption"})
        self.fields: tuple[str, ...] = ("source", "target")
        self.fingerprint = f"{self.encode_texts.fingerprint} {fingerprint(self.codec)}"

    def __call__(self, records: list[Record]) -> Sequence[EncodedRecord]:
        found: list[EncodedRecord] = []
        for record, encoded in zip(records, self.encode_texts(records), strict=True):
            try:
                example: Any = encoded
                if not isinstance(encoded, InvalidRecord):
                    codes = encode_picture(self.codec, record.fields.get("image"))
                    example = {**encoded, "target": [self.codec.config.first_id + code for code in codes]}
                found.append(example)
            except BadImage as bad:
                found.append(InvalidRecord(bad.reason, bad.category))
        return found


def encode_picture(codec: ImageCodes, value: Any) -> list[int]:
    """The codes of a picture. Raises `BadImage`."""
    if value is None:
        raise BadImage("the record has no picture", "missing field")
    with torch.no_grad():
        codes: list[int] = codec.encode(torch.from_numpy(read_patches(value, codec.config))).tolist()
    return codes


def read_patches(value: Any, config: ImageCodesConfig) -> Any:
    """The patches of a picture, (N, F) in bytes. Raises `BadImage`."""
    pixels = load_image(value, PatchesConfig(size=config.size, patch=config.patch))
    return split_patches(pixels, config.patch)


def fingerprint(codec: ImageCodes) -> str:
    """A hash of the config and the codebook."""
    from hashlib import blake2b

    weights = codec.codebook.weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return blake2b(repr(codec.config).encode() + weights, digest_size=16).hexdigest()


class DrawingObjective(seq2seq.Seq2SeqObjective):
    """Captions and codes. In a fraction of the examples, all tokens of the caption are replaced by EOS."""

    caption_dropout = 0.0

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Captions as sources, and codes as targets for teacher forcing."""
        built = super().build(examples, rng)
        if self.caption_dropout and built.source_ids is not None and built.source_lengths is not None:
            is_dropped = to_uniform(rng.keys("caption dropout", examples)) < self.caption_dropout
            per_token = np.repeat(is_dropped, built.source_lengths)
            built.source_ids = np.where(per_token, self.eos_token_id, built.source_ids)
        return built


def make_examples(setup: ObjectiveSetup, encoded: EncodedExamples) -> DrawingObjective:
    """Captions and codes; validation keeps all captions."""
    objective = seq2seq.make_objective(DrawingObjective, setup, encoded)
    objective.caption_dropout = 0.0 if setup.is_evaluation else setup.options.caption_dropout
    return objective


def make_encoder(setup: ObjectiveSetup) -> RecordEncoder:
    """The encoder of captions and pictures."""
    return EncodeDrawing(setup)


SPEC = replace(
    seq2seq.SPEC,
    name="drawing",
    fields=(
        RecordField("caption", ("text", "description", "prompt", "title", "source"), list_meaning="sentences"),
        RecordField("image", IMAGE_COLUMNS, "image", is_drawn=True),
    ),
    aligned_fields=(),
    group_by="caption",
    reads_payloads=False,
    options=("label_smoothing", "caption_dropout"),
    make_encoder=make_encoder,
    make_examples=make_examples,
)
