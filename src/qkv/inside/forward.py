"""Token ids as the input of a network of any family.

An example of an encoder-only or decoder-only model is a list of token ids. An example of an encoder-decoder is a pair:
the ids of the source, and the ids that its decoder reads, which begin with `decoder_start_token_id`.

B batch, T target length, S source length, V vocabulary
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from qkv.blocks import Inputs
from qkv.blocks.inputs import Prompt
from qkv.decode.runner import start_token
from qkv.errors import UsageError
from qkv.inside.tokens import encode_words
from qkv.inside.trace import Trace
from qkv.models import Network
from qkv.text import Tokenizer
from qkv.text.words import split_words

Example = Sequence[int] | tuple[Sequence[int], Sequence[int]]
"""Token ids, or a `Prompt` with payloads; for an encoder-decoder, of the source and of the decoder's input."""
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
        if network.has_source:
            if isinstance(text, str) or len(text) != 2:
                raise UsageError("texts: a text of an encoder-decoder is a pair, (source, target)")
            target = tokenizer.target.encode(text[1], add_special_tokens=False)
            examples.append((tokenizer.encode(text[0])[:max_length], [start_token(network), *target][:max_length]))
            continue
        if not isinstance(text, str):
            raise UsageError(f"texts: each must be a string, got {str(text)[:80]!r}")
        if tokenizer.hashes_words:
            words = [text[start:end] for start, end in split_words(text)]
            parts = [words[start : start + max_length] for start in range(0, len(words), max_length)]
            examples += [encode_words(tokenizer, part) for part in parts]
            continue
        ids = tokenizer.encode(text)
        examples += [ids[start : start + max_length] for start in range(0, len(ids), max_length)]
    return examples


def make_inputs(
    network: Network, examples: Sequence[Example], token_type_ids: Sequence[Sequence[int]] | None = None
) -> Inputs:
    """Check examples and convert them to a batch on the network's device, padded on the right."""
    config, device = network.config, network.device
    if any(isinstance(part, str) for example in examples for part in (example, *example[:1])):
        raise UsageError("an example has token ids, not texts; encode texts with qkv.inside.encode_examples")
    if network.has_source:
        sources, targets = [], []
        for example in examples:
            if len(example) != 2 or isinstance(example[0], int):
                raise UsageError("an example of an encoder-decoder is a pair: source ids and decoder input ids")
            sources.append(_check_ids(example[0], config.encoder.vocab_size, "source"))  # type: ignore[union-attr]
            targets.append(_check_ids(example[1], config.stack.vocab_size, "target"))
        source = Inputs.from_sequences(sources, device=device)
        return replace(Inputs.from_sequences(targets, device=device), source=source)
    sequences = [_check_ids(example, config.stack.vocab_size, "ids") for example in examples]
    if token_type_ids is not None and not config.stack.token_types:
        raise UsageError("token_type_ids: this model has no token types, so leave them out")
    return Inputs.from_sequences(sequences, token_type_ids=token_type_ids, device=device)


def batched(examples: Iterable[Example], batch_size: int) -> Iterator[list[Example]]:
    """Yield the examples in lists of `batch_size`; the last list may be shorter."""
    remaining = iter(examples)
    while batch := list(islice(remaining, batch_size)):
        yield batch


def repeat_inputs(network: Network, trace: Trace, batch_size: int) -> Inputs:
    """Return the inputs of a trace, repeated `batch_size` times."""
    if any(tokens.positions for tokens in trace.tokens.values()):
        raise UsageError("a trace does not keep the payloads of this text; trace a text without payloads")
    parts = [tokens.ids for tokens in trace.tokens.values()]
    example: Example = parts[0] if len(parts) == 1 else (parts[0], parts[1])
    types = None if trace.token_type_ids is None else [trace.token_type_ids] * batch_size
    return make_inputs(network, [example] * batch_size, types)


def inputs_at(inputs: Inputs, site: str) -> Inputs:
    """Return the inputs of the stack that has a site: of an encoder-decoder, the source for a site of the encoder."""
    return inputs.source if inputs.source is not None and site.startswith("encoder") else inputs


def _check_ids(ids: Any, vocab_size: int, name: str) -> Sequence[int]:
    checked = [int(i) for i in ids]
    if not checked:
        raise UsageError(f"{name}: there is no token; give at least one")
    wrong = [i for i in checked if not 0 <= i < max(vocab_size, 1)]
    if wrong:
        raise UsageError(f"{name}: token id {wrong[0]} is outside this model's vocabulary of {vocab_size}")
    return ids if isinstance(ids, Prompt) else checked
