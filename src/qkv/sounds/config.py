"""The configs of the front end and the back end for sounds: sampling rate, frames and mel bands of the spectrogram."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from qkv.blocks.back_ends import BackEndConfig, BackEndKind
from qkv.blocks.front_ends import FrontEndConfig, FrontEndKind
from qkv.lazy import lazy_function
from qkv.values import Limits

SOUND_FIELD = "audio"
"""The field of a record with a sound. `start` and `end`, in seconds, choose a part of its file."""
WINDOW_SECONDS, HOP_SECONDS = 0.025, 0.010
FRAMES_PER_POSITION = 2  # that a model of speech computes at once: a position is 20 ms


@dataclass(frozen=True, kw_only=True)
class LogMelConfig(FrontEndConfig):
    """A sound becomes a frame of a log-mel spectrogram every 10 ms, and a vector for every `stride` frames."""

    kind: ClassVar[str] = "log-mel"
    features: Annotated[int, Limits(0)] = 0  # follows from `mels`
    rate: Annotated[int, Limits(2000, 192_000)] = 16_000  # samples in a second; other files are resampled
    mels: Annotated[int, Limits(1, 512)] = 80  # bands of the spectrogram
    stride: Literal[2, 4] = 2  # frames of a vector: 2 is 20 ms, as in Whisper
    positions: Literal["sinusoidal", "none"] = "none"  # added to the vectors

    def __post_init__(self) -> None:
        if self.rate % 1000:
            raise ValueError(f"rate = {self.rate} is not a multiple of 1,000 Hz; use 8000, 16000 or 24000")
        if self.features not in (0, self.mels):
            raise ValueError(f"features = {self.features}, but a frame has {self.mels} numbers; leave it out")
        object.__setattr__(self, "features", self.mels)
        super().__post_init__()

    @property
    def window(self) -> int:
        """The samples of a frame."""
        return round(WINDOW_SECONDS * self.rate)

    @property
    def hop(self) -> int:
        """The samples from one frame to the next."""
        return round(HOP_SECONDS * self.rate)

    @property
    def seconds(self) -> float:
        """The time from one vector to the next."""
        return self.stride * HOP_SECONDS

    def count_frames(self, num_samples: int) -> int:
        """The number of frames, at least 1."""
        return max(1, -(-num_samples // self.hop))

    def length(self, size: tuple[int, int]) -> int:
        """The number of vectors of (frames, 1); 0 for any other size, which is not that of a sound."""
        return -(-size[0] // self.stride) if size[1] == 1 else 0


LOG_MEL = FrontEndKind(LogMelConfig, lazy_function("qkv.sounds.front_end:Convolutions"))


@dataclass(frozen=True, kw_only=True)
class GriffinLimConfig(BackEndConfig):
    """The frames of a log-mel spectrogram become samples, by the algorithm of Griffin and Lim."""

    kind: ClassVar[str] = "griffin-lim"
    rate: Annotated[int, Limits(2000, 192_000)] = 16_000  # samples in a second
    mels: Annotated[int, Limits(1, 512)] = 80  # bands of the spectrogram
    iterations: Annotated[int, Limits(0, 10_000)] = 32
    speakers: tuple[str, ...] = ()  # the voices of a model that speaks

    def __post_init__(self) -> None:
        super().__post_init__()
        self.frames  # noqa: B018 — it checks the rate and the bands

    @property
    def frames(self) -> LogMelConfig:
        """How samples become frames."""
        return LogMelConfig(rate=self.rate, mels=self.mels)

    @property
    def outputs(self) -> int:
        """The numbers that a model of speech computes at a position: frames, and the duration of a token."""
        return FRAMES_PER_POSITION * self.mels + 1

    def length(self, size: tuple[int, int]) -> int:
        """The number of frames."""
        return size[0]


GRIFFIN_LIM = BackEndKind(GriffinLimConfig, lazy_function("qkv.sounds.griffin_lim:GriffinLim"))
