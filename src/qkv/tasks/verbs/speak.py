"""Speak: the sound of a text in the voice of a speaker."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

from qkv.data.labels import label_text
from qkv.data.records import Record
from qkv.errors import UsageError
from qkv.files import report_write_errors, to_path, write_atomically
from qkv.models import Config
from qkv.tasks.evaluation import EvaluationOptions, find_bad_file, select_decodable, select_usable
from qkv.tasks.metrics.sounds import correlate_sounds, duration_ratio, mel_correlation
from qkv.tasks.record_task import RecordTask
from qkv.tasks.results import Result
from qkv.tasks.scorer import Metric, Prediction, TaskScorer
from qkv.tasks.starters.starter import Starter
from qkv.tasks.task import TaskOptions
from qkv.tasks.text_model import TextModel
from qkv.train.watch import Sample
from qkv.values import HIDDEN, Limits


@dataclass(frozen=True, kw_only=True)
class SpeakOptions(TaskOptions):
    """Options of `m.speak`."""

    speaker: Annotated[str | None, "The voice, by its name in the training data. Default: the first one."] = None
    speed: Annotated[float, Limits(0.25, 4), "How fast to speak: 2 is twice as fast as the speaker."] = 1.0


@dataclass(frozen=True, repr=False)
class SpokenText(Result):
    """A text that the model has spoken. `samples` are between −1 and 1; `save` writes a file."""

    source: str = field(metadata=HIDDEN)
    rate: Annotated[int, "Samples in a second."]
    duration: Annotated[float, "In seconds."]
    b64_wav: Annotated[str, "The WAV file in base64."]
    samples: Any = field(metadata=HIDDEN, compare=False)

    def encode(self, format: str = "wav") -> bytes:
        """The bytes of a file: wav, flac, ogg, opus, or pcm, which has 16-bit samples without a header."""
        from qkv.sounds.write import encode_sound

        return encode_sound(self.samples, self.rate, format)

    def save(self, path: "str | PathLike[str]") -> Path:
        """Write a file, whose ending names its format: .wav, .flac, .ogg or .opus."""
        target = to_path(path)
        content = self.encode(find_sound_format(target))
        with report_write_errors(target):
            write_atomically(target, content)
        return target

    def summary(self) -> str:
        return f"{self.duration:.2f} seconds of speech"


def find_sound_format(path: Path) -> str:
    """The format that the ending of a file names."""
    from qkv.sounds.write import ENDINGS

    format = path.suffix.lower().removeprefix(".")
    if format not in ENDINGS:
        raise UsageError(
            f"{path}: the ending must be one of .{', .'.join(ENDINGS)}; name it {path.with_suffix('.wav').name}"
        )
    return format


class SpeechScorer(TaskScorer):
    """A text is spoken in the voice of its record, and its spectrogram is compared with the record's."""

    modality, metric, input_fields = "audio", "mel_correlation", ("text", "speaker", "audio")
    metrics: Mapping[str, Metric] = {"mel_correlation": mel_correlation, "duration_ratio": duration_ratio}
    selectable = tuple(metrics)

    def __init__(self, config: Config) -> None:
        self.config: Any = next(one for one in config.back_ends if one.kind == "griffin-lim")

    def is_usable(self, record: Record) -> bool:
        has_both = isinstance(record.fields.get("text"), str) and isinstance(record.fields.get("audio"), bytes)
        return has_both and not find_bad_file(record)

    def expected(self, record: Record) -> Any:
        from qkv.data.sounds import SoundFormat

        frames, _ = SoundFormat(self.config.frames).load(record.fields["audio"])
        return frames

    def predict(self, model: TextModel, records: Sequence[Record], options: Any, notes: list[str]) -> list[Prediction]:
        from qkv.sounds.mel import log_mel
        from qkv.tasks.run.speech import speak_texts

        voices = [self.find_voice(record) for record in records]
        if unknown := sum(one is None for one in voices):
            notes.append(
                f"{unknown:,} records have no speaker that the model knows: spoken by {self.config.speakers[0]!r}"
            )
        spoken = speak_texts(model, [one.fields["text"] for one in records], voices, 1.0)
        return [(log_mel([one], self.config.frames).numpy(), None) for one in spoken]

    def find_voice(self, record: Record) -> str | None:
        """The speaker of a record, if the model knows it."""
        given = record.fields.get("speaker")
        name = None if given in (None, "") else label_text(given)
        return name if name in self.config.speakers else None

    def score_each(self, predicted: Sequence[Any], expected: Sequence[Any]) -> list[float]:
        return [correlate_sounds(ours, theirs) for ours, theirs in zip(predicted, expected, strict=True)]

    def text(self, record: Record) -> str:
        return str(record.fields["text"])

    def make_sample(self, record: Record, predicted: Any, expected: Any) -> Sample:
        return Sample(self.text(record), self.show(predicted), self.show(expected), None)

    def show(self, value: Any, record: Record | None = None) -> str:
        return f"{len(value) / 100:.2f} seconds"


class SpeakTask(RecordTask):
    """Speak a text."""

    name = "speak"
    description = "speaks texts"
    question = "Speak texts."
    title = "Speech"
    objective = "speech"
    inputs, target = ("text",), "audio"
    example_inputs = ("three nine",)
    batch_size = 16
    Options, EvalOptions, results, scorers = SpeakOptions, EvaluationOptions, (SpokenText,), (SpeechScorer,)
    example_data = "a table with the columns audio (paths of files), text and, optionally, speaker, start and end"
    starter = Starter("The sound of a text, in the voice of a speaker.", "clips.tsv", 500, speaks=True)

    def supports(self, config: Config) -> bool:
        """Whether a model was trained to speak."""
        return any(one.kind == "griffin-lim" for one in config.back_ends)

    def decode(self, model: TextModel, texts: Sequence[str], options: SpeakOptions) -> list[SpokenText]:
        """Each text in the voice of one speaker: all frames of a text are computed at once."""
        from qkv.sounds.write import encode_sound
        from qkv.tasks.run.speech import find_speech, speak_texts

        rate = find_speech(model).rate
        found = speak_texts(model, texts, [options.speaker] * len(texts), options.speed)
        return [
            SpokenText(
                source=text,
                rate=rate,
                duration=round(len(one) / rate, 3),
                b64_wav=b64encode(encode_sound(one, rate, "wav")).decode(),
                samples=one,
            )
            for text, one in zip(texts, found, strict=True)
        ]

    def select(self, config: Config, records: Sequence[Record], options: Any, notes: list[str]) -> list[Record]:
        return select_decodable(select_usable(records, notes, text=str, audio=bytes), notes)

    def find_scorer(self, config: Config, records: Sequence[Record]) -> TaskScorer:
        return SpeechScorer(config)


SPEAK = SpeakTask()
