"""Speak texts: first the duration of each token, then all frames at once, then samples.

B batch, T positions, F numbers of a frame, n frames
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from qkv.data.objectives.base import FlatExamples
from qkv.data.objectives.speech import SpeechVocabulary, SpokenTokens
from qkv.errors import UsageError, suggest_name
from qkv.models.runtime import eval_mode
from qkv.sounds.config import FRAMES_PER_POSITION, GriffinLimConfig
from qkv.tasks.run.example_batches import ExampleBatches
from qkv.tasks.text_model import TextModel


class Speech(NamedTuple):
    """A spoken text: its tokens with their durations, and the samples."""

    tokens: SpokenTokens
    samples: np.ndarray


def speak_texts(model: TextModel, texts: Sequence[str], speakers: Sequence[str | None], speed: float) -> list[Speech]:
    """Speak each text with the voice of its speaker; None is the first speaker."""
    config = find_speech(model)
    known = {name: number for number, name in enumerate(config.speakers)}
    for name in speakers:
        if name is not None and name not in known:
            raise UsageError(f"speaker = {name!r} is not a voice of this model; {suggest_name(name, known)}")
    vocabulary = SpeechVocabulary(model.tokenizer)
    voices = [known[config.speakers[0] if name is None else name] for name in speakers]
    ids = [vocabulary.wrap(encode_text(model, text, number)) for number, text in enumerate(texts, start=1)]
    types = [SpokenTokens(one, one).types(voice) for one, voice in zip(ids, voices, strict=True)]
    spoken = []
    for number, (tokens, out) in enumerate(zip(ids, run_network(model, ids, types), strict=True), start=1):
        positions = np.expm1(out[:, -1].clip(0, 8)) / speed
        durations = np.maximum(np.rint(positions), [0, *[1] * (len(tokens) - 2), 0]).astype(np.int64)
        spoken.append(SpokenTokens(tokens, durations))
        if durations.sum() > model.config.stack.max_positions:
            raise UsageError(
                f"text {number} takes {durations.sum() * seconds(config):.0f} seconds, but this model speaks at most "
                f"{model.config.stack.max_positions * seconds(config):.0f}; speak it in parts"
            )
    spread = [one.spread(voice) for one, voice in zip(spoken, voices, strict=True)]
    frames = run_network(model, [ids for ids, _ in spread], [types for _, types in spread])
    back_end = model.network.back_ends[config.kind]
    found = []
    for speech, out in zip(spoken, frames, strict=True):
        with eval_mode(model.network):
            samples = back_end(torch.from_numpy(out[:, :-1]).reshape(-1, config.mels))
        found.append(Speech(speech, samples.numpy()))
    return found


def find_speech(model: TextModel) -> GriffinLimConfig:
    """The back end of a model that speaks."""
    return next(one for one in model.config.back_ends if isinstance(one, GriffinLimConfig))


def seconds(config: GriffinLimConfig) -> float:
    """The time of a position."""
    return FRAMES_PER_POSITION * config.frames.hop / config.rate


def encode_text(model: TextModel, text: str, number: int) -> Sequence[int]:
    """The tokens of a text; an error for a text without any, or with characters that the model cannot speak."""
    ids = model.tokenizer.encode(" ".join(text.split()), add_special_tokens=False)
    if not ids:
        raise UsageError(f"text {number} is empty; give some words to speak")
    unknown, space = model.tokenizer.special_tokens.unk, SpeechVocabulary(model.tokenizer).space
    if unknown is not None:
        encode = model.tokenizer.encode
        letters = dict.fromkeys("".join(text.split()))
        wrong = [one for one in letters if unknown in encode(one, add_special_tokens=False)]
        if wrong:
            raise UsageError(
                f"text {number} has {', '.join(map(repr, wrong))}, which the training data lacks, so the model cannot "
                "speak it; write numbers and abbreviations in words"
            )
    return [space if one == unknown else one for one in ids]


def run_network(model: TextModel, ids: Sequence[np.ndarray], types: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of the head at each token: (T, 2F + 1) for each sequence."""
    lengths = np.array(list(map(len, ids)))
    examples = FlatExamples(lengths, np.concatenate(ids), token_type_ids=np.concatenate(types))
    batches = ExampleBatches(model, examples, model.tokenizer.special_tokens.pad or 0, exact=True)
    found: dict[int, np.ndarray] = {}
    with eval_mode(model.network):
        for chosen in batches.batches():
            for number, out in zip(chosen, batches.outputs(chosen).cpu().numpy(), strict=True):
                found[number] = out[: lengths[number]]
    return [found[number] for number in range(len(ids))]
