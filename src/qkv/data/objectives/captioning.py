"""Captioning: an encoder reads an image, and a decoder writes a text about it."""

from dataclasses import replace

from qkv.data.cache.writer import RecordEncoder
from qkv.data.encode.encoders import EncodeTexts
from qkv.data.encode.payloads import EncodePayloads
from qkv.data.objectives import seq2seq
from qkv.data.objectives.classification import IMAGE_COLUMNS
from qkv.data.objectives.table import ObjectiveSetup, RecordField


def make_encoder(setup: ObjectiveSetup) -> RecordEncoder:
    """The encoder of images and captions."""
    texts = EncodeTexts("caption", setup.tokenizer.target, {"target": "caption"})
    return EncodePayloads(texts, {"image": ("image", setup.payloads["image"])})


SPEC = replace(
    seq2seq.SPEC,
    name="captioning",
    fields=(
        RecordField("image", IMAGE_COLUMNS, "image"),
        RecordField("caption", ("description", "text", "title", "sentence", "target"), list_meaning="alternatives"),
    ),
    aligned_fields=(),
    group_by="image",
    make_encoder=make_encoder,
)
