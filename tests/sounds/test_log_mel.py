"""The spectrogram equals Whisper's, and the front end reads each sound as if it were alone."""

from typing import Any

import numpy as np
import pytest
import torch
from sound_files import tone

from qkv.blocks import HeadConfig, Payload, StackConfig
from qkv.data.sounds import SoundFormat
from qkv.errors import UsageError
from qkv.models import Config, build
from qkv.sounds.augment import change_samples
from qkv.sounds.config import LogMelConfig
from qkv.sounds.files import to_int16
from qkv.sounds.front_end import Convolutions
from qkv.sounds.mel import log_mel, mel_filters
from qkv.store.config_json import parse_config

LENGTHS = (16_000, 8_123, 700, 3_200)
SOUNDS = [np.random.default_rng(n).normal(0, 0.1, n).astype(np.float32) * np.linspace(0, 1, n) ** 3 for n in LENGTHS]
CONFIG = LogMelConfig()


@pytest.mark.parametrize("mels", [80, 128])
def test_frames_equal_those_of_whisper(mels: int) -> None:
    extractor = pytest.importorskip("transformers").WhisperFeatureExtractor(feature_size=mels)
    config = LogMelConfig(mels=mels)
    np.testing.assert_allclose(mel_filters(config).numpy(), extractor.mel_filters, atol=1e-7)
    for sound in [*SOUNDS, np.zeros(1_600, np.float32), np.sign(tone(440))]:
        sound = np.asarray(sound, np.float32)
        expected = extractor(sound, sampling_rate=16_000, return_tensors="np").input_features[0]  # padded to 30 s
        found = log_mel([sound], config).numpy()
        assert len(found) == -(-len(sound) // 160)
        np.testing.assert_allclose(found, expected.T[: len(found)], atol=1e-5)


def test_a_sound_does_not_depend_on_the_others() -> None:
    together = log_mel(SOUNDS, CONFIG)
    torch.testing.assert_close(together, torch.cat([log_mel([one], CONFIG) for one in SOUNDS]), atol=1e-6, rtol=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(log_mel(SOUNDS, CONFIG), together)
    more = log_mel([SOUNDS[2]], CONFIG, [9])
    torch.testing.assert_close(more[:5], log_mel([SOUNDS[2]], CONFIG))
    assert len(more) == 9


def payload(sounds: list[np.ndarray], config: LogMelConfig) -> Payload:
    sizes = torch.tensor([(config.count_frames(len(one)), 1) for one in sounds])
    lengths = torch.tensor([config.length((int(size[0]), 1)) for size in sizes])
    return Payload(log_mel(sounds, config), torch.arange(int(lengths.sum())), sizes, lengths)


@pytest.mark.parametrize("positions", ["none", "sinusoidal"])
@pytest.mark.parametrize("stride", [2, 4])
def test_the_front_end_is_two_convolutions_of_each_sound(stride: Any, positions: Any) -> None:
    config = LogMelConfig(mels=8, stride=stride, positions=positions)
    torch.manual_seed(0)
    front = Convolutions(config, 16)
    given = payload(SOUNDS, config)
    alone = torch.cat([front(payload([one], config)) for one in SOUNDS])
    found = front(given)
    assert len(found) == int(given.lengths.sum())
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=0)
    if positions == "none":
        x = log_mel(SOUNDS[:1], config).T[None]
        expected = torch.nn.functional.gelu(front.second(torch.nn.functional.gelu(front.first(x))))[0].T
        torch.testing.assert_close(found[: len(expected)], expected, atol=1e-5, rtol=0)
    changed = [*SOUNDS[:-1], 2 * SOUNDS[-1]]
    assert not torch.equal(front(payload([SOUNDS[0] + tone(500, 1.0), *changed[1:]], config)), found)


def test_changes_depend_on_the_key_alone() -> None:
    format = SoundFormat(CONFIG).configure({}, ["speed", "noise", "mask"])
    stored = [to_int16(one) for one in SOUNDS]
    sizes = np.array([(CONFIG.count_frames(len(one)), 1) for one in SOUNDS])
    planned, offsets = format.plan_sizes(sizes), np.cumsum([0, *map(len, stored)])
    assert (planned[:, 0] == np.ceil(sizes[:, 0] / 0.85)).all()
    keys = np.arange(4, dtype=np.uint64) + 2**63
    together = format.decode_all(np.concatenate(stored), offsets, planned, keys)
    assert len(together) == planned[:, 0].sum()
    alone = [
        format.decode(one, (int(size[0]), 1), int(key)) for one, size, key in zip(stored, planned, keys, strict=True)
    ]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-5)
    other = format.decode(stored[0], (int(planned[0, 0]), 1), 1)
    assert np.abs(other - alone[0]).mean() > 0.05
    plain = format.for_evaluation()
    assert (plain.plan_sizes(sizes) == sizes).all()
    np.testing.assert_array_equal(plain.decode(stored[0], (100, 1), 1), plain.decode(stored[0], (100, 1), 2))
    with pytest.raises(UsageError, match=r"data.augment: 'nose' is unknown; did you mean 'noise'"):
        format.configure({}, ["nose"])


def test_noise_has_the_strength_that_it_states() -> None:
    sound, ratios = tone(440, 1.0), []
    for key in range(40):
        added = change_samples(sound, ["noise"], key) - sound
        if added.any():
            ratios.append(10 * np.log10(np.mean(sound**2) / np.mean(added**2)))
    assert 10 < len(ratios) < 30
    assert min(ratios) > 4.9
    assert max(ratios) < 35.1
    faster = np.abs(np.fft.rfft(change_samples(sound, ["speed"], 3)))
    assert 0.8 * 440 < faster.argmax() * 16_000 / (2 * (len(faster) - 1)) < 1.2 * 440


def test_a_config_is_kept_in_json() -> None:
    stack = StackConfig(vocab_size=2, width=16, layers=1, heads=2, ffn_width=16)
    config = Config(encoder=stack, head=HeadConfig(kind="classify", outputs=3), front_ends=(LogMelConfig(mels=8),))
    assert parse_config(config.to_dict()) == config
    assert build(config).front_ends["log-mel"].config.mels == 8


@pytest.mark.parametrize(("fields", "message"), [({"rate": 11_025}, "multiple of 1,000"), ({"features": 3}, "80")])
def test_wrong_configs_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LogMelConfig(**fields)
