"""Run a network of any family on token ids, with a tap.

An example of an encoder-only or decoder-only model is a list of token ids. An example of an encoder-decoder is a pair:
the ids of the source, and the ids that its decoder reads, which begin with `decoder_start_token_id`.

B batch, T target length, S source length, V vocabulary
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.blocks import Tap
from qkv.decode.runner import start_token
from qkv.errors import UsageError
from qkv.inside.trace import Trace
from qkv.models import Encoder, Network, Seq2Seq
from qkv.models.runtime.padding import pad_sequences
from qkv.text import Tokenizer

Example = Sequence[int] | tuple[Sequence[int], Sequence[int]]
"""Token ids; for an encoder-decoder, the ids of the source and of the decoder's input."""
MAX_WINDOW_TOKENS = 256


def encode_examples(
    network: Network, tokenizer: Tokenizer, texts: Iterable[str | tuple[str, str]], *, max_length: int | None = None
) -> list[Example]:
    """Encode texts as examples for this network; for an encoder-decoder, a text is a pair of source and target.

    A long text is split into windows of at most `max_length` tokens, so that nothing is left out. A long source or
    target is cut off. By default, `max_length` is 256, or the number of positions of the model if that is smaller.
    """
    if max_length is None:
        max_length = min(MAX_WINDOW_TOKENS, network.config.stack.max_positions)
    if max_length < 1:
        raise UsageError(f"max_length = {max_length} must be at least 1")
    if isinstance(texts, str):
        raise UsageError("texts: give a list of texts, not one text")
    examples: list[Example] = []
    for text in texts:
        if isinstance(network, Seq2Seq):
            if isinstance(text, str) or len(text) != 2:
                raise UsageError("texts: a text of an encoder-decoder is a pair, (source, target)")
            target = tokenizer.target.encode(text[1], add_special_tokens=False)
            examples.append((tokenizer.encode(text[0])[:max_length], [start_token(network), *target][:max_length]))
            continue
        if not isinstance(text, str):
            raise UsageError(f"texts: each must be a string, got {str(text)[:80]!r}")
        ids = tokenizer.encode(text)
        examples += [ids[start : start + max_length] for start in range(0, len(ids), max_length)]
    return examples


@dataclass(frozen=True)
class Inputs:
    """A batch of examples as tensors. Padding is on the right. Document ids are None if there is no padding."""

    ids: Tensor  # (B, T); of an encoder-decoder the source, (B, S)
    document_ids: Tensor | None = None
    target_ids: Tensor | None = None  # encoder-decoder only: the decoder's input, (B, T)
    target_document_ids: Tensor | None = None
    token_type_ids: Tensor | None = None  # encoder with token types only


def make_inputs(
    network: Network, examples: Sequence[Example], token_type_ids: Sequence[Sequence[int]] | None = None
) -> Inputs:
    """Check examples and convert them to tensors on the network's device."""
    config, device = network.config, next(network.parameters()).device
    if any(isinstance(part, str) for example in examples for part in (example, *example[:1])):
        raise UsageError("an example has token ids, not texts; encode texts with qkv.inside.encode_examples")
    if isinstance(network, Seq2Seq):
        sources, targets = [], []
        for example in examples:
            if len(example) != 2 or isinstance(example[0], int):
                raise UsageError("an example of an encoder-decoder is a pair: source ids and decoder input ids")
            sources.append(_check_ids(example[0], config.encoder.vocab_size, "source"))  # type: ignore[union-attr]
            targets.append(_check_ids(example[1], config.stack.vocab_size, "target"))
        return Inputs(*_pad(sources, device), *_pad(targets, device))
    sequences = [_check_ids(example, config.stack.vocab_size, "ids") for example in examples]
    types = None
    if token_type_ids is not None:
        if not (isinstance(network, Encoder) and config.stack.token_types):
            raise UsageError("token_type_ids: this model has no token types, so leave them out")
        types = pad_sequences(token_type_ids, 0).to(device)
    return Inputs(*_pad(sequences, device), token_type_ids=types)


def repeat_inputs(network: Network, trace: Trace, batch_size: int) -> Inputs:
    """Return the inputs of a trace, repeated `batch_size` times."""
    parts = [tokens.ids for tokens in trace.tokens.values()]
    example: Example = parts[0] if len(parts) == 1 else (parts[0], parts[1])
    types = None if trace.token_type_ids is None else [trace.token_type_ids] * batch_size
    return make_inputs(network, [example] * batch_size, types)


def run(network: Network, inputs: Inputs, tap: Tap | None = None, *, with_head: bool = True) -> Tensor:
    """Run the network. Returns the output of the head, or, without it, the hidden states (B, T, C)."""
    if isinstance(network, Seq2Seq):
        assert inputs.target_ids is not None
        memory = network.encode(inputs.ids, inputs.document_ids, tap=tap)
        x, layout = network.hidden(inputs.target_ids, memory, inputs.target_document_ids, tap=tap)
    elif isinstance(network, Encoder):
        x, layout = network.hidden(inputs.ids, inputs.document_ids, None, inputs.token_type_ids, tap=tap)
    else:
        x, layout = network.hidden(inputs.ids, inputs.document_ids, tap=tap)
    if not with_head:
        return x
    out: Tensor = network.head(x, layout)
    return out


def _check_ids(ids: Any, vocab_size: int, name: str) -> list[int]:
    checked = [int(i) for i in ids]
    if not checked:
        raise UsageError(f"{name}: there is no token; give at least one")
    wrong = [i for i in checked if not 0 <= i < vocab_size]
    if wrong:
        raise UsageError(f"{name}: token id {wrong[0]} is outside this model's vocabulary of {vocab_size}")
    return checked


def _pad(sequences: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Return ids padded on the right, and document ids, which are None if nothing is padded."""
    padded = pad_sequences(sequences, -1).to(device)
    is_token = padded >= 0
    return padded.clamp(min=0), None if bool(is_token.all()) else is_token.long()
