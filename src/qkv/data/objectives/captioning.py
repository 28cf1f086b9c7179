"""Captioning: an encoder reads an image, and a decoder writes a text about it; or one decoder does both."""

from dataclasses import replace

from qkv.data.cache.examples import EncodedExamples
from qkv.data.cache.writer import RecordEncoder
from qkv.data.encode.encoders import EncodeTexts
from qkv.data.encode.payloads import EncodePayloads
from qkv.data.objectives import seq2seq
from qkv.data.objectives.base import Objective
from qkv.data.objectives.classification import IMAGE_COLUMNS
from qkv.data.objectives.payload_lm import make_interleaved
from qkv.data.objectives.table import ObjectiveSetup, RecordField


def make_encoder(setup: ObjectiveSetup) -> RecordEncoder:
    """The encoder of images and captions."""
    texts = EncodeTexts("caption", setup.tokenizer.target, {"target": "caption"})
    return EncodePayloads(texts, {"image": ("image", setup.payloads["image"])})


def make_examples(setup: ObjectiveSetup, encoded: EncodedExamples) -> Objective:
    """Examples of an encoder-decoder, or of a decoder that reads images and texts in one sequence."""
    if setup.family == "decoder":
        return make_interleaved(setup, encoded, text="target")
    return seq2seq.make_examples(setup, encoded)


SPEC = replace(
    seq2seq.SPEC,
    name="captioning",
    families=("seq2seq", "decoder"),
    fields=(
        RecordField("image", IMAGE_COLUMNS, "image"),
        RecordField("caption", ("description", "text", "title", "sentence", "target"), list_meaning="alternatives"),
    ),
    aligned_fields=(),
    group_by="image",
    make_encoder=make_encoder,
    make_examples=make_examples,
)
