"""Transcription: an encoder reads a sound, and a CTC head predicts a token or the blank for each of its vectors."""

from dataclasses import replace

from qkv.data.cache.writer import RecordEncoder
from qkv.data.encode.encoders import EncodeTexts
from qkv.data.encode.payloads import EncodePayloads
from qkv.data.objectives.classification import SOUND_FIELDS
from qkv.data.objectives.ctc import SPEC as CTC_SPEC
from qkv.data.objectives.ctc import CTCObjective
from qkv.data.objectives.table import ObjectiveSetup, RecordField


class TranscriptionObjective(CTCObjective):
    """Records with `source`, a sound, and `target`, the tokens of its transcript."""

    name = "transcription"


def make_encoder(setup: ObjectiveSetup) -> RecordEncoder:
    """The encoder of sounds and their transcripts."""
    texts = EncodeTexts("target", setup.tokenizer, {"target": "text"})
    return EncodePayloads(texts, {"source": ("audio", setup.payloads["audio"])})


SPEC = replace(
    CTC_SPEC,
    name="transcription",
    fields=(
        *SOUND_FIELDS,
        RecordField("text", ("transcript", "transcription", "sentence", "words", "normalized_text")),
    ),
    group_by="audio",
    make_encoder=make_encoder,
    make_examples=lambda setup, encoded: TranscriptionObjective(
        encoded, setup.tokenizer, **setup.sequence_kwargs, source_format=setup.payloads["audio"]
    ),
)
