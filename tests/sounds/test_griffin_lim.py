"""Frames become samples whose frames are nearly the same ones."""

import json

import numpy as np
import pytest
import torch
from sound_files import tone

from qkv.blocks import HeadConfig, StackConfig
from qkv.models import Config, build
from qkv.sounds.config import GriffinLimConfig
from qkv.sounds.griffin_lim import GriffinLim, invert_mel, transform
from qkv.sounds.mel import log_mel, mel_filters
from qkv.store.config_json import parse_config


def vowel(pitch: float, formants: tuple[float, ...], seconds: float = 0.4, rate: int = 16_000) -> np.ndarray:
    """Harmonics of a pitch that falls, louder near the formants, between two silences."""
    time = np.arange(round(seconds * rate)) / rate
    phase = 2 * np.pi * np.cumsum(pitch * (1 - 0.3 * time / seconds)) / rate
    sound = np.zeros(len(time))
    for number in range(1, int(0.45 * rate / pitch)):
        gain = sum(1 / (1 + ((number * pitch - formant) / 100) ** 2) for formant in formants)
        sound += gain * np.sin(number * phase)
    sound *= 0.5 * np.sin(np.pi * time / seconds) / np.abs(sound).max()
    return np.pad(sound, rate // 10).astype(np.float32)


@pytest.mark.parametrize(
    ("sound", "rate", "limit"),
    [
        (tone(440), 16_000, 0.2),
        (vowel(120, (700, 1200)), 16_000, 0.3),
        (vowel(210, (300, 2300), rate=8_000), 8_000, 0.4),
    ],
)
def test_the_spectrogram_of_the_samples_is_that_of_the_frames(sound: np.ndarray, rate: int, limit: float) -> None:
    config = GriffinLimConfig(rate=rate, mels=80 if rate == 16_000 else 40)
    frames = log_mel([sound], config.frames)
    samples = GriffinLim(config)(frames)
    assert len(samples) == len(frames) * config.frames.hop
    assert torch.equal(samples, GriffinLim(config)(frames))
    given = torch.from_numpy(np.pad(sound, (0, len(samples) - len(sound))))
    expected = transform(given, config.frames).abs()

    def convergence(found: torch.Tensor) -> float:
        return float((transform(found, config.frames).abs() - expected).norm() / expected.norm())

    assert convergence(samples) < limit
    assert convergence(GriffinLim(GriffinLimConfig(rate=rate, mels=config.mels, iterations=0))(frames)) > 1.2 * limit
    assert (log_mel([samples.numpy()], config.frames) - frames).abs().mean() < 0.05


def test_the_spectrum_of_a_frame_has_its_bands_and_is_not_negative() -> None:
    config = GriffinLimConfig().frames
    frames = log_mel([vowel(120, (700, 1200))], config)
    powers = invert_mel(frames, config).square()
    assert float(powers.min()) >= 0
    bands = 10 ** (4 * frames - 4)
    assert float((powers @ mel_filters(config) - bands).norm() / bands.norm()) < 0.03


def test_wrong_frames_give_samples_that_can_be_written() -> None:
    back_end = GriffinLim(GriffinLimConfig())
    for frames in (torch.full((3, 80), 50.0), torch.full((3, 80), -50.0), torch.randn(1, 80)):
        samples = back_end(frames)
        assert bool(samples.isfinite().all())
        assert float(samples.abs().max()) <= 1
    assert len(back_end(torch.zeros(0, 80))) == 0


def test_a_model_has_the_back_end_and_its_speakers() -> None:
    given = GriffinLimConfig(first_id=12, speakers=("anna", "ben"))
    stack = StackConfig(vocab_size=given.ids.stop, width=8, layers=1, heads=2, ffn_width=16)
    config = Config(encoder=stack, head=HeadConfig(kind="frames", outputs=80), back_ends=(given,))
    assert parse_config(json.loads(json.dumps(config.to_dict()))) == config
    assert build(config).back_ends["griffin-lim"](torch.zeros(2, 80)).shape == (320,)
    with pytest.raises(ValueError, match=r"multiple of 1,000 Hz"):
        GriffinLimConfig(rate=22_050)
