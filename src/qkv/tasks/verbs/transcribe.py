"""Transcribe: the text of a sound, with the times of its words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from qkv.data.records import Record
from qkv.errors import UsageError
from qkv.models import Config
from qkv.tasks import metrics
from qkv.tasks.baselines import predict_most_frequent
from qkv.tasks.evaluation import EvaluationOptions, find_bad_file, select_decodable, select_usable
from qkv.tasks.record_task import RecordTask
from qkv.tasks.results import Result, Row
from qkv.tasks.scorer import Baseline, Metric, Prediction, TaskScorer
from qkv.tasks.starters.starter import Starter
from qkv.tasks.task import TaskOptions
from qkv.tasks.text_model import TextModel
from qkv.values import Limits

SERVED_RATE = 16_000  # of sounds on their way to the model
CAPTION_SECONDS, CAPTION_PAUSE = 6.0, 1.0
"""A caption has words of at most this time, and no pause that is longer."""


@dataclass(frozen=True, kw_only=True)
class TranscribeOptions(TaskOptions):
    """Options of `m.transcribe`."""

    beam: Annotated[int, Limits(1, 1024), "The number of prefixes that the search keeps; 1 takes the best path."] = 1
    rate: Annotated[
        int | None, Limits(1, 768_000), "Samples in a second of an array. Default: the rate of the model."
    ] = None
    language: Annotated[
        str, "The language that a model such as Whisper writes, as in en. Default: the most likely."
    ] = ""


@dataclass(frozen=True, kw_only=True)
class TranscribeEvaluation(EvaluationOptions):
    """Options of an evaluation of transcripts."""

    beam: int = 1


@dataclass(frozen=True)
class SpokenWord:
    """A word of a transcript."""

    word: str
    start: Annotated[float, "In seconds."]
    end: Annotated[float, "In seconds."]


@dataclass(frozen=True)
class Caption:
    """Some words of a transcript that are spoken together."""

    start: Annotated[float, "In seconds."]
    end: Annotated[float, "In seconds."]
    text: str


@dataclass(frozen=True, repr=False)
class Transcript(Result):
    """The text of a sound, and when each word is spoken."""

    text: str
    words: list[SpokenWord]
    duration: Annotated[float, "Of the sound, in seconds."]

    def summary(self) -> str:
        return self.text

    def rows(self) -> list[Row]:
        return [(one.word, f"{one.start:.2f}–{one.end:.2f} s") for one in self.words]

    def captions(self) -> list[Caption]:
        """The words in groups that can be read at once."""
        groups: list[list[SpokenWord]] = []
        for word in self.words:
            is_next = groups and word.start - groups[-1][-1].end <= CAPTION_PAUSE
            if is_next and word.end - groups[-1][0].start <= CAPTION_SECONDS:
                groups[-1].append(word)
            else:
                groups.append([word])
        return [Caption(one[0].start, one[-1].end, " ".join(word.word for word in one)) for one in groups]

    def to_srt(self) -> str:
        """The captions as SubRip subtitles."""
        return "\n".join(
            f"{number}\n{srt_time(one.start)} --> {srt_time(one.end)}\n{one.text}\n"
            for number, one in enumerate(self.captions(), start=1)
        )


def srt_time(seconds: float) -> str:
    """A time as SubRip files have it.

    >>> srt_time(3723.5)
    '01:02:03,500'
    """
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02},{rest % 1000:03}"


def measure_texts(measure: Callable[..., float], predicted: Sequence[str], expected: Sequence[str]) -> float:
    """A metric of texts with one reference each."""
    return measure(predicted, [[reference] for reference in expected])


def check_duration(content: bytes) -> Any:
    """The samples of a file that a server was sent; an error if it is not a sound, or too long."""
    from qkv.sounds.files import BadSound, Samples, read_samples

    try:
        return Samples(read_samples(content, SERVED_RATE), SERVED_RATE)
    except BadSound as bad:
        raise UsageError(f"audio: {bad.reason}") from None


class TranscriptScorer(TaskScorer):
    """The words of each transcript, compared with the words of the record."""

    modality, metric, input_fields = "text", "word_accuracy", ("audio",)
    metrics: Mapping[str, Metric] = {
        name: partial(measure_texts, getattr(metrics, name))
        for name in ("word_accuracy", "word_error_rate", "character_error_rate", "exact_match")
    }
    selectable = ("word_accuracy", "exact_match")
    baselines: Mapping[str, Baseline] = {
        "most frequent transcript": Baseline(predict_most_frequent, is_cheap=True),
    }

    def is_usable(self, record: Record) -> bool:
        has_both = isinstance(record.fields.get("audio"), bytes) and isinstance(record.fields.get("text"), str)
        return has_both and not find_bad_file(record)

    def expected(self, record: Record) -> str:
        return " ".join(str(record.fields["text"]).split())

    def predict(self, model: TextModel, records: Sequence[Record], options: Any, notes: list[str]) -> list[Prediction]:
        from qkv.tasks.run.transcripts import transcribe_sounds

        found = transcribe_sounds(model, [one.fields["audio"] for one in records], getattr(options, "beam", 1))
        return [(" ".join(one.text.split()), None) for one in found]

    def score_each(self, predicted: Sequence[str], expected: Sequence[str]) -> list[float]:
        pairs = zip(predicted, expected, strict=True)
        return [max(0.0, metrics.word_accuracy([ours], [[theirs]])) for ours, theirs in pairs]


class TranscribeTask(RecordTask):
    """Write down what is said in a sound."""

    name = "transcribe"
    description = "transcribes sounds"
    question = "Transcribe sounds."
    title = "Transcript"
    objective = "transcription"
    inputs, target = ("audio",), "text"
    example_inputs = ("clip.wav",)
    example_data = "a table with the columns audio (paths of files) and text"
    calls = ()
    generates = True
    max_samples = 8
    Options, EvalOptions, results, scorers = TranscribeOptions, TranscribeEvaluation, (Transcript,), (TranscriptScorer,)
    starter = Starter("The text of a sound.", "clips.tsv", 500, reads_sounds=True)

    def supports(self, config: Config) -> bool:
        """Whether a model reads sounds, and has a CTC head, or a decoder that writes texts."""
        writes_text = config.family == "seq2seq" and config.head.kind == "lm"
        reads_sounds = any(front_end.kind == "log-mel" for front_end in config.front_ends)
        return reads_sounds and (writes_text or super().supports(config))

    def decode(self, model: TextModel, texts: Sequence[Any], options: TranscribeOptions) -> list[Transcript]:
        """The transcript of each sound: a path, the bytes of a file, or an array of samples.

        A long sound is read in windows, which are cut where it is quiet. A model of Whisper gives no times of words.
        """
        from qkv.tasks.run.transcripts import transcribe_sounds

        found = transcribe_sounds(model, texts, options.beam, options.rate, options.language)
        return [Transcript(one.text, [SpokenWord(*word) for word in one.words], one.seconds) for one in found]

    def map_payloads(self, value: Any, function: Callable[[Any], Any]) -> Any:
        return check_duration(function(value))

    def select(self, config: Config, records: Sequence[Record], options: Any, notes: list[str]) -> list[Record]:
        return select_decodable(select_usable(records, notes, audio=bytes, text=str), notes)


TRANSCRIBE = TranscribeTask()
