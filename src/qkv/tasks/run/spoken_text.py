"""Transcribe sounds with an encoder-decoder such as Whisper, which reads windows of 30 seconds.

A window is padded with zeros to the length that the encoder was trained on. The decoder starts with tokens that name
the language, the task and that there are no timestamps, if the vocabulary has them.
"""

import re
from collections.abc import Sequence

import numpy as np
import torch

from qkv.blocks import Inputs
from qkv.blocks.inputs import Prompt
from qkv.data.sounds import SoundFormat
from qkv.decode import GenerationOptions
from qkv.errors import UsageError, suggest_name
from qkv.models.runtime import eval_mode
from qkv.sounds.windows import SoundWindow
from qkv.tasks.run.generate import generate_batched
from qkv.tasks.run.payloads import join_parts, make_item
from qkv.tasks.text_model import TextModel
from qkv.text import Tokenizer

MAX_TOKENS = 224  # of a window, as in Whisper
LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")


def generate_texts(
    model: TextModel, format: SoundFormat, windows: Sequence[SoundWindow], beam: int, language: str = ""
) -> list[str]:
    """The text of each window. Without a `language`, the most likely one is chosen for each window."""
    assert model.config.encoder is not None
    front_end = format.front_end
    size = model.config.encoder.max_positions * front_end.stride * front_end.hop
    padded = [np.pad(window.samples, (0, max(0, size - len(window.samples)))) for window in windows]
    prompts = [join_parts([make_item(format, one, "the sound")]) for one in padded]
    languages = find_languages(model.tokenizer.target)
    if language and language not in languages:
        raise UsageError(
            f"language = {language!r} is not a language of this model; {suggest_name(language, languages)}"
        )
    chosen = [language] * len(prompts) if language or not languages else choose_languages(model, prompts, languages)
    texts = [""] * len(prompts)
    for name in dict.fromkeys(chosen):
        prefix = start_tokens(model.tokenizer.target, name)
        room = min(MAX_TOKENS, model.config.stack.max_positions - 1 - len(prefix))
        options = GenerationOptions(max_tokens=max(1, room), beam=beam, prefix=prefix)
        numbers = [number for number, one in enumerate(chosen) if one == name]
        found = generate_batched(model, [prompts[number] for number in numbers], options)
        for number, result in zip(numbers, found, strict=True):
            texts[number] = result.text.strip()
    return texts


def find_languages(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of the tokens that name languages, such as <|en|>."""
    tokens = ((token_id, tokenizer.id_to_token(token_id) or "") for token_id in sorted(tokenizer.special_ids))
    return {match[1]: token_id for token_id, token in tokens if (match := LANGUAGE.fullmatch(token))}


def start_tokens(tokenizer: Tokenizer, language: str) -> tuple[int, ...]:
    """The tokens after the first one of the decoder: the language, the task, and that there are no timestamps."""
    wanted = [f"<|{language}|>", "<|transcribe|>"] if language else []
    ids = {tokenizer.id_to_token(token_id): token_id for token_id in tokenizer.special_ids}
    return tuple(ids[token] for token in (*wanted, "<|notimestamps|>") if token in ids)


def choose_languages(model: TextModel, prompts: Sequence[Prompt], languages: dict[str, int]) -> list[str]:
    """The most likely language of each sound: the first token of the decoder."""
    start, names = model.config.decoder_start_token_id, list(languages)
    ids = torch.full((len(prompts), 1), start or 0, device=model.network.device)
    source = Inputs.from_sequences(prompts, device=model.network.device)
    with eval_mode(model.network):
        logits = model.network(Inputs(ids, source=source))[:, -1, list(languages.values())]
    return [names[number] for number in logits.argmax(-1).tolist()]
