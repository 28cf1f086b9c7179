"""Questions about images: an encoder reads one or two images and a question, and a decoder writes the answer.

One decoder can also do both: it reads the images, the question and the answer in one sequence.
"""

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
    """The encoder of images, questions and answers."""
    texts = EncodeTexts("visual questions", setup.tokenizer, {"source": "question", "target": "answer"})
    return EncodePayloads(texts, {name: (name, format) for name, format in setup.payloads.items()})


def make_examples(setup: ObjectiveSetup, encoded: EncodedExamples) -> Objective:
    """Examples of an encoder-decoder, or of a decoder that reads images and texts in one sequence."""
    if setup.family == "decoder":
        return make_interleaved(setup, encoded, text="target", prompt="source")
    return seq2seq.make_examples(setup, encoded)


SPEC = replace(
    seq2seq.SPEC,
    name="visual_questions",
    families=("seq2seq", "decoder"),
    fields=(
        RecordField("image", (*IMAGE_COLUMNS, "first_image", "image1", "left"), "image"),
        RecordField("second_image", ("image2", "right"), "image", optional=True),
        RecordField("question", ("text", "prompt", "query"), list_meaning="sentences"),
        RecordField("answer", ("label", "target", "response"), list_meaning="alternatives"),
    ),
    aligned_fields=(),
    group_by="image",
    make_encoder=make_encoder,
    make_examples=make_examples,
)
