"""`generate` generates text, and `score` scores given texts. The rest of the project calls these two functions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch

from qkv.blocks import Inputs, Tap
from qkv.blocks.inputs import Prompt, as_prompt, extend_prompt
from qkv.blocks.kernels.gpu import device_guard
from qkv.decode.backend import REFERENCE, choose_backend
from qkv.decode.loop import GenerationCall
from qkv.decode.options import GenerationOptions
from qkv.decode.result import GenerationResult, TokenLogprob
from qkv.decode.runner import MAX_PREALLOCATED_TOKENS, check_max_length, start_token
from qkv.decode.selection import token_logprobs
from qkv.decode.sequence import OnText
from qkv.errors import QkvError, UsageError
from qkv.lazy import lazy_function
from qkv.models import Network
from qkv.text import Tokenizer

if TYPE_CHECKING:
    from qkv.decode.speculative.draft import Draft

make_draft = lazy_function("qkv.decode.speculative.draft:make_draft")

MAX_CACHE_BYTES = 2**31
"""On a CPU, `generate` runs as many prompts at once as need this much memory for keys and values."""


@torch.inference_mode()
def generate(
    network: Network,
    prompts: Sequence[Sequence[int] | Inputs],
    options: GenerationOptions,
    tokenizer: Tokenizer | None = None,
    on_text: OnText | None = None,
    *,
    draft: "Draft | Network | Literal['lookup'] | None" = None,
) -> list[GenerationResult]:
    """Return one result per prompt, in order. For an encoder-decoder, `prompts` are the sources.

    A prompt is a sequence of token ids, or `Inputs` of one sequence, which may have payloads.

    `draft` turns on speculative decoding. It is a smaller network of the same family and vocabulary, "lookup" for
    prompt look-up decoding, or a `DraftModel` or `PromptLookup` with your own settings.
    """
    options.check(network.config)
    if options.stop and tokenizer is None:
        raise QkvError(
            f"stop = {options.stop!r}: stop strings need a tokenizer, and this model has none; "
            "pass a tokenizer or leave out stop"
        )
    if draft is not None and network.config.keeps_state:
        raise UsageError(
            "a draft needs a Transformer: this model keeps a state, which cannot forget a rejected "
            "token; leave out the draft"
        )
    if options.tap is not None and draft is not None:
        raise UsageError("edits and a draft: speculative decoding cannot change activations; leave out one of them")
    if not prompts:
        return []
    speculation = None if draft is None else make_draft(draft)
    sequences = [as_prompt(prompt) for prompt in prompts]
    has_payloads = any(isinstance(sequence, Prompt) for sequence in sequences)
    if has_payloads and draft is not None:
        raise UsageError("payloads and a draft: speculative decoding reads only token ids; leave out one of them")
    batch_size = max_batch_size(network, max(map(len, sequences)), options)
    results: list[GenerationResult] = []
    for start in range(0, len(sequences), batch_size):
        batch = sequences[start : start + batch_size]
        streams = on_text is not None
        call = GenerationCall(network, batch, options, tokenizer, shift_index(on_text, start), speculation)
        backend = REFERENCE
        if not has_payloads:
            backend = choose_backend(network, options, batch_size=len(batch), streams=streams, draft=speculation)
        with device_guard(network.device):
            results += backend.generate(call)
    return results


def max_batch_size(network: Network, prompt_length: int, options: GenerationOptions) -> int:
    """Return the number of prompts whose KV cache fits into a fixed amount of memory; at least 1."""
    stack, weight = network.config.stack, next(network.parameters())
    num_tokens = prompt_length + min(options.max_tokens, MAX_PREALLOCATED_TOKENS)
    if not stack.has_blocks:
        num_tokens = max(1, prompt_length)  # the activations of the prompt; the state is smaller
    bytes_per_prompt = 2 * stack.layers * stack.kv_heads * stack.head_dim * num_tokens * options.beam * 4
    max_bytes = MAX_CACHE_BYTES
    if weight.device.type == "cuda":
        max_bytes = torch.cuda.mem_get_info(weight.device)[0] // 2
    return max(1, max_bytes // bytes_per_prompt)


def shift_index(on_text: OnText | None, offset: int) -> OnText | None:
    """Return `on_text` for a later batch, whose first prompt has the index `offset`."""
    if on_text is None or offset == 0:
        return on_text
    return lambda index, text: on_text(index + offset, text)


@torch.inference_mode()
def score(
    network: Network,
    prompts: Sequence[Sequence[int] | Inputs],
    targets: Sequence[Sequence[int]],
    *,
    logprobs: int = 0,
    tap: Tap | None = None,
) -> list[list[TokenLogprob]]:
    """Return the log-probability of every token of each target, given its prompt or source. Runs one forward pass.

    `logprobs` is the number of alternative tokens to report for each token. `tap` edits activations in the pass.
    """
    GenerationOptions(max_tokens=1).check(network.config)
    source, sequences = None, [as_prompt(prompt) for prompt in prompts]
    texts: Sequence[Sequence[int]]
    if network.has_source:
        texts = [[start_token(network), *target[:-1]] for target in targets]
        check_max_length(network, texts, sequences, 0)
        source = Inputs.from_sequences(sequences, side="left", always_document_ids=True, device=network.device)
    else:
        texts = [extend_prompt(prompt, target[:-1]) for prompt, target in zip(sequences, targets, strict=True)]
        check_max_length(network, texts, None, 0)
    batch = Inputs.from_sequences(texts, side="left", always_document_ids=True, device=network.device)
    x, _ = network.hidden(replace(batch, source=source), tap=tap)
    scored = []
    for row, target in enumerate(targets):
        logits = network.head.project(x[row, x.shape[1] - len(target) :])
        scored.append(token_logprobs(logits, torch.as_tensor(target, device=network.device), logprobs))
    return scored
