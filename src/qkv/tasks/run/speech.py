"""Speak texts: first the duration of each token, then all frames at once, then samples.

B batch, T positions, F numbers of a frame, n frames
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from qkv.data.objectives.base import FlatExamples
from qkv.data.objectives.speech import SpeechVocabulary, SpokenTokens
from qkv.errors import UsageError, shorten, suggest_name
from qkv.models.runtime import eval_mode
from qkv.sounds.config import GriffinLimConfig
from qkv.tasks.run.example_batches import ExampleBatches
from qkv.tasks.text_model import TextModel


class SpokenPiece(NamedTuple):
    """A text, or a part of a text that is too long for the model: the number of the text, its words, and its voice."""

    owner: int
    text: str
    voice: int


def speak_texts(
    model: TextModel, texts: Sequence[str], speakers: Sequence[str | None], speed: float
) -> list[np.ndarray]:
    """The samples of each text in the voice of its speaker; None is the first one. Long texts are spoken in parts."""
    config = find_speech(model)
    known = {name: number for number, name in enumerate(config.speakers)}
    for name in speakers:
        if name is not None and name not in known:
            raise UsageError(f"speaker = {name!r} is not a voice of this model; {suggest_name(name, known)}")
    pieces = [
        SpokenPiece(number, " ".join(text.split()), known[config.speakers[0] if name is None else name])
        for number, (text, name) in enumerate(zip(texts, speakers, strict=True))
    ]
    limit = model.config.stack.max_positions
    while True:
        spoken = predict_durations(model, pieces, speed)
        is_long = [len(one.ids) > limit or one.durations.sum() > limit for one in spoken]
        if not any(is_long):
            break
        pieces = [
            half for piece, long in zip(pieces, is_long, strict=True) for half in (halve(piece) if long else [piece])
        ]
    spread = [one.spread(piece.voice) for one, piece in zip(spoken, pieces, strict=True)]
    found: list[list[np.ndarray]] = [[] for _ in texts]
    with eval_mode(model.network):
        outputs = run_network(model, [ids for ids, _ in spread], [types for _, types in spread])
        for piece, out in zip(pieces, outputs, strict=True):
            frames = torch.from_numpy(out[:, :-1]).reshape(-1, config.mels)
            found[piece.owner].append(model.network.back_ends[config.kind](frames).numpy())
    return [np.concatenate(parts) for parts in found]


def predict_durations(model: TextModel, pieces: Sequence[SpokenPiece], speed: float) -> list[SpokenTokens]:
    """The tokens of each piece, and how long they are spoken. A piece that is too long has no durations."""
    vocabulary, limit = SpeechVocabulary(model.tokenizer), model.config.stack.max_positions
    ids = [vocabulary.wrap(encode_text(model, one.text, one.owner + 1)) for one in pieces]
    spoken = [SpokenTokens(one, np.zeros_like(one)) for one in ids]
    chosen = [number for number, one in enumerate(ids) if len(one) <= limit]
    types = [spoken[number].types(pieces[number].voice) for number in chosen]
    for number, out in zip(chosen, run_network(model, [ids[number] for number in chosen], types), strict=True):
        positions = np.rint(np.expm1(out[:, -1].clip(0, 8)) / speed)
        least = [0, *[1] * (len(ids[number]) - 2), 0]  # a silence may be empty
        spoken[number] = SpokenTokens(ids[number], np.maximum(positions, least).astype(np.int64))
    return spoken


def halve(piece: SpokenPiece) -> list[SpokenPiece]:
    """The first and the second half of the words of a piece."""
    words = piece.text.split()
    if len(words) < 2:
        raise UsageError(
            f"text {piece.owner + 1}: the word {shorten(piece.text, 40)!r} is too long to be spoken; split it"
        )
    middle = len(words) // 2
    return [piece._replace(text=" ".join(part)) for part in (words[:middle], words[middle:])]


def find_speech(model: TextModel) -> GriffinLimConfig:
    """The back end of a model that speaks."""
    return next(one for one in model.config.back_ends if isinstance(one, GriffinLimConfig))


def encode_text(model: TextModel, text: str, number: int) -> Sequence[int]:
    """The tokens of a text; an error for a text without any, or with characters that the model cannot speak."""
    ids = model.tokenizer.encode(text, add_special_tokens=False)
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
    if not ids:
        return []
    lengths = np.array(list(map(len, ids)))
    examples = FlatExamples(lengths, np.concatenate(ids), token_type_ids=np.concatenate(types))
    batches = ExampleBatches(model, examples, model.tokenizer.special_tokens.pad or 0, exact=True)
    found: dict[int, np.ndarray] = {}
    with eval_mode(model.network):
        for chosen in batches.batches():
            for number, out in zip(chosen, batches.outputs(chosen).cpu().numpy(), strict=True):
                found[number] = out[: lengths[number]]
    return [found[number] for number in range(len(ids))]
