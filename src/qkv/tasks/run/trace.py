"""Trace: run a model on one text and record its activations (`qkv.inside`)."""

from collections.abc import Sequence
from typing import Any

import torch

from qkv.blocks import Inputs
from qkv.blocks.inputs import as_prompt
from qkv.data.modalities import reads_files
from qkv.decode import GenerationOptions, generate
from qkv.decode.runner import start_token
from qkv.errors import UsageError
from qkv.inside import Trace, trace
from qkv.inside.tokens import encode_words
from qkv.models import Config, Network
from qkv.models.runtime import eval_mode
from qkv.tasks.run.generate import limit_new_tokens, prompt_ids
from qkv.tasks.table import find_task
from qkv.tasks.text_model import require_tokenizer
from qkv.text import Tokenizer
from qkv.text.words import split_words

Text = str | tuple[str, str] | Sequence[int] | torch.Tensor | Inputs
"""A text, a pair of texts for an encoder ([CLS] a [SEP] b [SEP]), or token ids."""
MAX_GENERATED_TOKENS = 256


def trace_text(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    text: Text,
    target: str | Sequence[int] | None = None,
    **options: Any,
) -> Trace:
    """Return the trace of a text. `options` are the options of `qkv.inside.trace`.

    An encoder parses special tokens in the text, as in "Paris is [MASK].". For an encoder-decoder, `target` is the text
    that the decoder reads after its start token; by default, the text that the model generates greedily for this
    source.
    """
    if not network.has_source and target is not None:
        raise UsageError(f"a target is for an encoder-decoder; this model is {config.family}-only, so leave it out")
    ids, token_types = encode_text(tokenizer, config, text)
    target_ids = None
    if network.has_source:
        target_ids = [start_token(network), *_encode_target(network, tokenizer, ids, target)]
    return trace(network, ids, target_ids, tokenizer=tokenizer, token_type_ids=token_types, **options)


def encode_text(tokenizer: Tokenizer | None, config: Config, text: Text) -> tuple[Sequence[int], list[int] | None]:
    """Return the ids of a text, and the token types of an encoder that has them."""
    if isinstance(text, Inputs):
        return as_prompt(text), None
    if isinstance(text, torch.Tensor):
        text = text.tolist()
    if not isinstance(text, list) and reads_files(config) and find_task(config).input_modality(config) != "text":
        from qkv.tasks.run.payloads import encode_input

        return encode_input(require_tokenizer(tokenizer), config, text), None
    is_pair = isinstance(text, tuple) and len(text) == 2 and all(isinstance(part, str) for part in text)
    if not isinstance(text, str) and not is_pair:
        if not isinstance(text, Sequence) or not all(isinstance(i, int) for i in text):
            raise UsageError(f"text must be a text, a pair of texts or a list of token ids, got {str(text)[:80]!r}")
        return [int(i) for i in text], None
    tokenizer = require_tokenizer(tokenizer)
    if tokenizer.hashes_words and isinstance(text, str):
        return encode_words(tokenizer, [text[start:end] for start, end in split_words(text)]), None
    if config.family == "encoder":
        first, second = (text, None) if isinstance(text, str) else (str(text[0]), str(text[1]))
        ids, types = tokenizer.encode_with_token_types(first, second, parse_special_tokens=True)
        return ids, types if config.stack.token_types else None
    if is_pair:
        raise UsageError("a pair of texts is for an encoder; give one text, and the target of an encoder-decoder apart")
    return prompt_ids(tokenizer, config, str(text)), None


def _encode_target(
    network: Network, tokenizer: Tokenizer | None, source: Sequence[int], target: str | Sequence[int] | None
) -> list[int]:
    """Return the ids of a target without its start token. None: generate it."""
    if isinstance(target, str):
        return require_tokenizer(tokenizer).target.encode(target, add_special_tokens=False)
    if target is not None:
        return [int(i) for i in target]
    assert network.config.encoder is not None
    if any(not 0 <= token < network.config.encoder.vocab_size for token in source):
        return []  # `trace` raises the error for such a source
    options = GenerationOptions(max_tokens=limit_new_tokens(network.config, MAX_GENERATED_TOKENS))
    with eval_mode(network):
        return generate(network, [source], options, tokenizer)[0].ids
