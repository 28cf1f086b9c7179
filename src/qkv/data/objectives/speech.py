"""Speech: an encoder computes the spectrogram of a text that a speaker reads, all of it at once.

Each position is 20 ms of speech: two frames. A record gives two kinds of examples, which one network learns:

    silence n i n e silence                      how long each token is spoken: log(1 + positions)
    silence silence n n n i i i i n n e silence  the frames of each position

In the second kind, each token is repeated as long as it is spoken. The token type of a position says how far it is
through its token, and who speaks. The durations in the training data come from the alignment of a recogniser
(`ObjectiveSetup.codec`). Up to three records of one speaker are joined, with a pause that is one space, so
that a model of single words also speaks several.

N records, n examples, J joined records, T positions, F numbers of a frame
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.cache.writer import EncodedRecord, FieldStorage, RecordEncoder
from qkv.data.encode.encoders import EncodeTexts
from qkv.data.labels import label_text
from qkv.data.objectives.base import FlatExamples, Label, TooLongPolicy, check_length, require_token
from qkv.data.objectives.classification import SOUND_FIELDS
from qkv.data.objectives.loss import ForwardPass, LossSums
from qkv.data.objectives.record_objective import RecordObjective
from qkv.data.objectives.table import ObjectiveSetup, ObjectiveSpec, RecordField, RequiredTokens
from qkv.data.problems import InvalidRecord
from qkv.data.ragged import IntArray, ragged_starts
from qkv.data.records import Record
from qkv.data.sounds import SoundFormat
from qkv.data.stream.random_bits import EpochRng, random_bits, to_integers
from qkv.sounds.config import FRAMES_PER_POSITION, GriffinLimConfig
from qkv.text import Tokenizer

if TYPE_CHECKING:
    from qkv.blocks.config import HeadConfig

MAX_JOINED = 3
PAUSE = 5  # positions of silence between joined records, whose own silences may have been cut off
STEPS = 8  # how far a position is through its token
TYPES = 1 + STEPS  # token types of each speaker: of a token whose duration is predicted, and of each step


class SpokenTokens(NamedTuple):
    """The tokens of an utterance with its silences, and the positions of each."""

    ids: np.ndarray  # (L,)
    durations: np.ndarray  # (L,)

    def types(self, speaker: int) -> np.ndarray:
        """The token types of the tokens."""
        return np.full(len(self.ids), TYPES * speaker)

    def spread(self, speaker: int) -> tuple[np.ndarray, np.ndarray]:
        """The token of each position, and its token type.

        >>> [values.tolist() for values in SpokenTokens(np.array([7, 9]), np.array([4, 1])).spread(0)]
        [[7, 7, 7, 7, 9], [2, 4, 6, 8, 5]]
        """
        length = np.repeat(self.durations, self.durations)
        index = np.arange(len(length)) - np.repeat(ragged_starts(self.durations), self.durations)
        step = ((index + 0.5) * STEPS / np.maximum(length, 1)).astype(np.int64)
        return np.repeat(self.ids, self.durations), TYPES * speaker + 1 + step


class SpeechVocabulary:
    """The tokens of utterances: silences around the tokens of a text, and a space between joined utterances."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = tokenizer.special_tokens
        self.start = require_token("bos", special.bos, "speech")
        self.end = require_token("eos", special.eos, "speech")
        space = tokenizer.encode(" ", add_special_tokens=False)
        self.space = space[0] if space and special.unk not in space else self.end  # texts may be single words

    def wrap(self, ids: Any) -> np.ndarray:
        """The tokens of a text with a silence before and after them."""
        return np.concatenate([[self.start], ids, [self.end]]).astype(np.int64)

    def join(self, parts: Sequence[SpokenTokens]) -> SpokenTokens:
        """Utterances with their silences as one; the silences between two of them, and a pause, become a space."""
        ids, durations = [*parts[0].ids], [*parts[0].durations]
        for part in parts[1:]:
            ids[-1:] = [self.space, *part.ids[1:]]
            durations[-1:] = [durations[-1] + PAUSE + part.durations[0], *part.durations[1:]]
        return SpokenTokens(np.array(ids), np.array(durations))


class EncodeSpeech:
    """Encodes the tokens of a text, their durations, the speaker, and the samples of the sound."""

    def __init__(self, setup: ObjectiveSetup) -> None:
        self.aligner: Any = setup.codec
        config: GriffinLimConfig = self.aligner.config
        self.speakers = {name: number for number, name in enumerate(config.speakers)}
        self.format = SoundFormat(config.frames)
        self.encode_texts = EncodeTexts("speech", setup.tokenizer, {"source": "text"})
        self.fields: tuple[str, ...] = ("source", "durations", "speaker", "audio", "audio_size")
        self.storage = {"audio": FieldStorage("int16")}
        self.fingerprint = f"{self.encode_texts.fingerprint} {self.aligner.fingerprint}"

    def __call__(self, records: list[Record]) -> Sequence[EncodedRecord]:
        found: list[Any] = [*self.encode_texts(records)]
        for number, (record, encoded) in enumerate(zip(records, found, strict=True)):
            if not isinstance(encoded, InvalidRecord):
                try:
                    found[number] = {**encoded, **self.encode_sound(record)}
                except InvalidRecord as invalid:
                    found[number] = invalid
        good = [one for one in found if isinstance(one, dict)]
        aligned = iter(self.aligner.align([(one["audio"], one["source"]) for one in good]))
        for number, one in enumerate(found):
            if isinstance(one, dict):
                durations = next(aligned)
                too_short = InvalidRecord("the sound is too short for its text", "too short")
                found[number] = too_short if durations is None else {**one, "durations": durations}
        return found

    def encode_sound(self, record: Record) -> dict[str, Any]:
        """The samples and the speaker of a record. Raises `InvalidRecord`."""
        if "audio" not in record.fields:
            raise InvalidRecord("the record has no sound", "missing field")
        samples, size = self.format.store(record.fields["audio"])
        speaker = 0
        if "speaker" in record.fields:
            name = label_text(record.fields["speaker"])
            if name not in self.speakers:
                raise InvalidRecord(f"the speaker {name!r} is not in the training data", "unknown speaker")
            speaker = self.speakers[name]
        return {"audio": samples, "audio_size": list(size), "speaker": [speaker]}


class SpeechObjective(RecordObjective):
    """Records with the tokens of a text, their durations, and a sound. Example i + N is the text of example i."""

    name = "speech"
    has_token_types = True

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        config: GriffinLimConfig,
        *,
        max_length: int,
        too_long: TooLongPolicy = "skip",
    ) -> None:
        super().__init__(examples, tokenizer, "source", "durations", "speaker", "audio", "audio_size")
        check_length("max_length", max_length, 4)
        self.vocabulary, self.config, self.format = SpeechVocabulary(tokenizer), config, SoundFormat(config.frames)
        self.labels = (Label("frames", "token", "float32", width=config.outputs),)
        self.too_long, self.max_lengths, self.num_special_tokens = too_long, (max_length,), 0
        everything = np.arange(len(examples))
        flat, offsets = examples.gather("durations", everything)
        self.positions = np.add.reduceat(flat, offsets[:-1]).astype(np.int64) if len(flat) else np.zeros(0, np.int64)
        self.tokens = np.diff(offsets)
        self.speakers = np.asarray(examples.gather("speaker", everything)[0], np.int64)
        sizes, _ = examples.gather("audio_size", everything)
        self.sizes = np.asarray(sizes, np.int64).reshape(-1, 2)
        self.by_speaker = np.argsort(self.speakers, kind="stable")  # records, speaker by speaker
        self.num_records = np.bincount(self.speakers, minlength=len(config.speakers) or 1)
        self.count_records()
        self.counts.examples *= 2

    def required_lengths(self, examples: IntArray | slice) -> IntArray:
        """The positions of records: (n, 1)."""
        return self.positions[examples][:, None]

    def num_examples(self, rng: EpochRng) -> int:
        """Two for each record."""
        return 2 * len(self.examples)

    def origin(self, example: int, rng: EpochRng) -> str:
        """The record, for messages."""
        return super().origin(example % len(self.examples), rng)

    def choose_joined(self, examples: IntArray, rng: EpochRng) -> tuple[IntArray, np.ndarray]:
        """The records of each example, (n, J), and which of them are joined."""
        records = np.asarray(examples) % max(1, len(self.examples))
        draws = random_bits(rng.keys("join", np.asarray(examples))[:, None], np.arange(MAX_JOINED))
        speakers = self.speakers[records]
        first = ragged_starts(self.num_records)[speakers]
        others = self.by_speaker[first[:, None] + to_integers(draws[:, 1:], self.num_records[speakers][:, None])]
        joined = np.concatenate([records[:, None], others], axis=1)
        fits = np.cumsum(self.positions[joined] + PAUSE, axis=1) - PAUSE <= self.max_lengths[0]
        is_joined = fits & (np.arange(MAX_JOINED) <= to_integers(draws[:, :1], MAX_JOINED))
        is_joined[:, 0] = True
        return joined, is_joined

    def lengths(self, examples: IntArray, rng: EpochRng) -> IntArray:
        """The lengths of the examples: (n, 1). Skipped records have length 0."""
        joined, is_joined = self.choose_joined(examples, rng)
        positions = ((self.positions[joined] + PAUSE) * is_joined).sum(1) - PAUSE
        tokens = (self.tokens[joined] * is_joined).sum(1) - is_joined.sum(1) + 1
        lengths = np.where(np.asarray(examples) < len(self.examples), positions, tokens)
        is_long = super().lengths(joined[:, 0], rng)[:, 0] == 0
        return np.where(is_long, 0, np.minimum(lengths, self.max_lengths[0]))[:, None]

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Texts with the durations of their tokens, and repeated tokens with their frames."""
        lengths = self.lengths(examples, rng)[:, 0]
        ids, types = np.zeros(int(lengths.sum()), np.int64), np.zeros(int(lengths.sum()), np.int64)
        labels = np.full((len(ids), self.config.outputs), np.nan, np.float32)
        joined, is_joined = self.choose_joined(examples, rng)
        for number, start in enumerate(ragged_starts(lengths)):
            records = joined[number][is_joined[number]]
            spoken = self.vocabulary.join([self.read_tokens(record) for record in records.tolist()])
            place, speaker = slice(start, start + int(lengths[number])), int(self.speakers[records[0]])
            if examples[number] < len(self.examples):
                ids[place], types[place] = spoken.spread(speaker)
                labels[place, :-1] = self.read_frames(records)
            else:
                ids[place], types[place] = spoken.ids, spoken.types(speaker)
                labels[place, -1] = np.log1p(spoken.durations)
        return FlatExamples(lengths, ids.astype(np.int32), {"frames": labels}, token_type_ids=types.astype(np.int32))

    def read_tokens(self, record: int) -> SpokenTokens:
        """The tokens of a record."""
        row = self.examples[record]
        return SpokenTokens(self.vocabulary.wrap(row["source"]), np.asarray(row["durations"], np.int64))

    def read_frames(self, records: IntArray) -> np.ndarray:
        """The frames of joined records, two for each position: (T, 2F); NaN after an odd number of frames.

        A pause has the quietest value of the record before it.
        """
        stored, offsets = self.examples.gather("audio", records)
        sizes = self.sizes[records]
        frames = self.format.decode_all(stored, offsets, sizes, np.zeros(len(records), np.uint64))
        parts = np.split(frames, np.cumsum(sizes[:-1, 0]))
        padding = [FRAMES_PER_POSITION * int(self.positions[one]) for one in records]
        whole = [
            np.pad(part, ((0, count - len(part)), (0, 0)), constant_values=np.nan)
            for part, count in zip(parts, padding, strict=True)
        ]
        pauses = [np.full((FRAMES_PER_POSITION * PAUSE, self.config.mels), part.min()) for part in parts]
        joined = [one for both in zip(whole, pauses, strict=True) for one in both][:-1]
        return np.concatenate(joined).astype(np.float32).reshape(-1, FRAMES_PER_POSITION * self.config.mels)

    def describe_labels(
        self, ids: IntArray, labels: Mapping[str, np.ndarray], decode: Callable[[Any], str], classes: Sequence[str]
    ) -> dict[str, str]:
        """The durations, or the number of frames."""
        durations = labels["frames"][:, -1]
        if np.isfinite(durations).any():
            return {"target": "positions: " + " ".join(f"{one:.0f}" for one in np.expm1(durations))}
        return {"target": f"{FRAMES_PER_POSITION * len(durations):,} frames of {self.config.mels} numbers"}


def speech_loss(run: ForwardPass) -> LossSums:
    """The mean absolute error of the frames of a position, or the absolute error of log(1 + duration)."""
    expected = run.labels["frames"]  # (B, T, 2F + 1)
    is_known = expected.isfinite()
    errors = (run.head.project(run.hidden()[0]).float() - expected.nan_to_num()).abs() * is_known
    return LossSums(tokens=(errors.sum(-1) / is_known.sum(-1).clamp(min=1)).sum())


def frame_labels(head: "HeadConfig") -> tuple[Label, ...]:
    """Vectors with a number for each output of the head."""
    return (Label("frames", "token", "float32", width=head.outputs),)


def make_encoder(setup: ObjectiveSetup) -> RecordEncoder:
    """The encoder of texts and sounds."""
    return EncodeSpeech(setup)


SPEC = ObjectiveSpec(
    name="speech",
    families=("encoder",),
    head="frames",
    fields=(
        RecordField("text", ("transcript", "transcription", "sentence", "words", "normalized_text")),
        replace(SOUND_FIELDS[0], is_drawn=True),
        *SOUND_FIELDS[1:],
        RecordField("speaker", ("speaker_id", "voice", "client_id"), "label", optional=True),
    ),
    class_field="speaker",
    group_by="audio",
    required_tokens=lambda options: RequiredTokens(("pad", "bos", "eos"), "none"),
    too_long_policies=("skip", "error"),
    options=(),
    token_types=TYPES,
    make_encoder=make_encoder,
    make_examples=lambda setup, encoded: SpeechObjective(
        encoded, setup.tokenizer, setup.codec.config, **setup.sequence_kwargs
    ),
    loss=speech_loss,
    labels=frame_labels,
)
