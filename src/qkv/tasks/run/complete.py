"""Complete: suggest how a text continues while it is being typed.

The last word may be unfinished, and the finished word may have different tokens. So the model reads the tokens before
the last word, and the search for continuations must first spell the typed part of the last word. The keys and values of
the tokens are kept between calls: after a keystroke, the model reads at most a few new tokens.

W hypotheses, V vocabulary
"""

import copy
import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv.blocks import Inputs, SelfCache
from qkv.decode.cache_edits import crop_cache, reorder_cache
from qkv.decode.constrained.token_bytes import TokenBytes
from qkv.decode.runner import next_logits, promote_to_float32
from qkv.errors import UsageError
from qkv.models import Network
from qkv.models.runtime import eval_mode
from qkv.tasks.text_model import TextModel

MAX_RETYPED_TOKENS = 8
"""At most this number of tokens at the end of the text are spelled again. Usually they are the tokens of one word."""


MIN_BEAM = 16
"""The search keeps this number of hypotheses, or 1.5 · `top` if that is more. So it is the same up to `top` = 10."""


@dataclass
class PartialCompletion:
    """A continuation during the search."""

    token: int  # the last one
    spelled: bytes  # the bytes of all tokens after the prompt
    logprob: float
    num_new: int = 0  # tokens after the typed text


class PromptTokens(NamedTuple):
    """The tokens that the model reads, and the end of the text that the continuation must spell first."""

    ids: list[int]
    typed: bytes
    typed_ids: list[int]  # the tokens of `typed`, as the tokenizer encodes them


class Completer:
    """Suggests continuations, and keeps the keys and values of the text between calls."""

    def __init__(self, model: TextModel) -> None:
        self.network, self.tokenizer, self.config = model.network, model.tokenizer, model.config
        self.version = weights_version(model.network)
        self.token_bytes = TokenBytes(model.tokenizer, model.config.stack.vocab_size)
        spelled = sorted((text, token) for token, text in enumerate(self.token_bytes.later_bytes) if text)
        self.sorted_bytes, self.sorted_ids = [text for text, _ in spelled], [token for _, token in spelled]
        self.by_bytes: dict[bytes, list[int]] = {}
        for text, token in spelled:
            self.by_bytes.setdefault(text, []).append(token)
        self.cache: SelfCache | None = None
        self.cached_ids: list[int] = []  # the tokens whose keys and values are in the cache

    def complete(self, text: str, *, top: int = 3, max_tokens: int = 8) -> list[tuple[str, float]]:
        """The `top` most likely continuations of at most `max_tokens` tokens, with their probabilities.

        A continuation ends before a line break.
        """
        prompt = self.split_prompt(text, max_tokens + MAX_RETYPED_TOKENS)
        if not prompt.ids:  # an empty text, and a tokenizer without BOS
            return []
        width = max(MIN_BEAM, 3 * top // 2)
        with torch.inference_mode(), eval_mode(self.network):
            found = self.search(self.read(prompt.ids), prompt.typed, width, max_tokens)
            if not found and prompt.typed:  # the vocabulary cannot spell it, so the model reads its tokens
                found = self.search(self.read([*prompt.ids, *prompt.typed_ids]), b"", width, max_tokens)
        best = sorted(found.items(), key=lambda item: -item[1])[:top]
        return [(added, math.exp(min(0.0, logprob))) for added, logprob in best]

    def split_prompt(self, text: str, num_reserved: int) -> PromptTokens:
        """Split a text before its last word, and drop the beginning of a text that is too long."""
        ids, offsets = self.tokenizer.encode_with_offsets(text, add_special_tokens=True)
        while len(ids) > 1 and ids[-1] in self.config.eos_token_ids:
            ids, offsets = ids[:-1], offsets[:-1]
        start = last_word_start(text)
        num_read = sum(end <= start for _, end in offsets)
        num_read = max(min(1, len(ids)), num_read, len(ids) - MAX_RETYPED_TOKENS)
        read_chars = max((end for _, end in offsets[:num_read]), default=0)
        max_positions = self.config.stack.max_positions
        limit = max_positions - num_reserved
        if limit < 1:
            raise UsageError(f"max_tokens is too large for this model, which has {max_positions} positions; lower it")
        step = max(1, limit // 4)  # the window moves in steps, so that most calls can use the cache
        dropped = -(-max(0, num_read - limit) // step) * step
        typed = text[read_chars:].encode("utf-8", "surrogatepass")
        return PromptTokens(ids[dropped:num_read], typed, ids[num_read:])

    def read(self, ids: list[int]) -> Tensor:
        """The logits (1, V) after the tokens. Only tokens that differ from the tokens of the last call are computed."""
        cache, self.cache = self.cache, None  # an interrupted call leaves none
        known = 0
        if cache is not None:
            pairs = zip(ids[:-1], self.cached_ids, strict=False)  # the last token is always computed, for its logits
            known = next(
                (i for i, (new, old) in enumerate(pairs) if new != old), min(len(ids) - 1, len(self.cached_ids))
            )
            if self.network.config.keeps_state:  # a state cannot be cropped
                known = known if known == len(self.cached_ids) else 0
            else:
                crop_cache(cache, known)
        if cache is None or known == 0:
            cache = self.network.new_cache(1, len(ids) + 64)
        new = Inputs(torch.tensor([ids[known:]], device=self.network.device))
        logits = next_logits(self.network, new, cache=cache)
        self.cache, self.cached_ids = cache, list(ids)
        return promote_to_float32(logits)

    def search(self, logits: Tensor, typed: bytes, width: int, max_tokens: int) -> dict[str, float]:
        """A beam search: continuation → its log-probability, given that the text begins with the bytes `typed`.

        During the search, a log-probability includes the tokens that spell `typed`, so that rare spellings score low.
        At the end, probabilities are divided by the probability of `typed`, which is the sum over its spellings.
        """
        assert self.cache is not None
        cache = copy_cache(self.network, self.cache, max_tokens + MAX_RETYPED_TOKENS)
        beams, found = [PartialCompletion(0, b"", 0.0)], dict[str, float]()
        typed_logprob = -math.inf if typed else 0.0
        for _ in range(max_tokens + MAX_RETYPED_TOKENS):
            logprobs = logits.log_softmax(-1) + logits.new_tensor([[beam.logprob] for beam in beams])  # (W, V)
            for row, beam in enumerate(beams):
                if rest := typed[len(beam.spelled) :]:
                    longer, shorter = self.matching_tokens(rest)
                    typed_logprob = add_logprobs(typed_logprob, float(logprobs[row, longer].logsumexp(-1)))
                    allowed = [*longer, *shorter]
                    only_allowed = torch.full_like(logprobs[row], -math.inf)
                    only_allowed[allowed] = logprobs[row, allowed]
                    logprobs[row] = only_allowed
            best = logprobs.flatten().topk(min(2 * width, logprobs.numel()))
            kept: list[tuple[int, PartialCompletion]] = []
            for index, logprob in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                if logprob == -math.inf:
                    break
                row, token = divmod(index, logprobs.shape[-1])
                text = self.token_bytes.later_bytes[token]
                spelled = beams[row].spelled + text
                added = spelled[len(typed) :]
                num_new = beams[row].num_new + bool(added)
                if text and b"\n" not in added and num_new < max_tokens:
                    kept.append((row, PartialCompletion(token, spelled, logprob, num_new)))
                elif suggestion := added.decode("utf-8", "ignore").split("\n")[0]:  # a special token has no text
                    found[suggestion] = add_logprobs(found.get(suggestion, -math.inf), logprob)
            worst = sorted(found.values())[-width] if len(found) >= width else -math.inf
            kept = [(row, one) for row, one in kept[:width] if one.logprob > worst]
            if not kept:
                break
            beams = [one for _, one in kept]
            reorder_cache(cache, torch.tensor([row for row, _ in kept], device=logits.device), len(self.cached_ids))
            new = Inputs(torch.tensor([[one.token] for one in beams], device=logits.device))
            logits = promote_to_float32(next_logits(self.network, new, cache=cache))
        return {text: logprob - typed_logprob for text, logprob in found.items()}

    def matching_tokens(self, rest: bytes) -> tuple[list[int], list[int]]:
        """The tokens that begin with `rest`, and the shorter ones that `rest` begins with."""
        first = bisect_left(self.sorted_bytes, rest)
        last = bisect_left(self.sorted_bytes, rest + b"\xff" * 64, lo=first)
        shorter = [token for end in range(1, len(rest)) for token in self.by_bytes.get(rest[:end], ())]
        return self.sorted_ids[first:last], shorter


def add_logprobs(first: float, second: float) -> float:
    """The log-probability that one of two mutually exclusive events occurs.

    >>> round(math.exp(add_logprobs(math.log(0.2), math.log(0.3))), 6), add_logprobs(-math.inf, -math.inf)
    (0.5, -inf)
    """
    low, high = sorted((first, second))
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def last_word_start(text: str) -> int:
    """The index at which the last word of a text begins, including one white space before it.

    >>> [last_word_start(text) for text in ("one two", "one ", "one", "")]
    [3, 3, 0, 0]
    """
    words = text.rsplit(maxsplit=1)
    if not text or text[-1].isspace():
        return max(0, len(text) - 1)
    return max(0, len(text) - len(words[-1]) - 1)


def copy_cache(network: Network, source: SelfCache, num_new: int) -> SelfCache:
    """Return a copy of a cache of one sequence, with room for `num_new` more tokens."""
    if not isinstance(source, SelfCache):  # the cache of a stack that is one part
        return copy.deepcopy(source)
    count = source.filled
    target = network.new_cache(1, count + num_new)
    for old, new in zip((*source.keys, *source.values), (*target.keys, *target.values), strict=True):
        new[:, :, :count] = old[:, :, :count]
    target.document_ids[:, :count], target.positions[:, :count] = (
        source.document_ids[:, :count],
        source.positions[:, :count],
    )
    target.filled, target.is_default = count, source.is_default
    target.states = [{name: state.clone() for name, state in states.items()} for states in source.states]
    return target


def weights_version(network: nn.Module) -> tuple[int, torch.dtype, torch.device]:
    """A value that changes when weights are changed or moved, because keys and values are then out of date."""
    parameters = list(network.parameters())
    return sum(parameter._version for parameter in parameters), parameters[0].dtype, parameters[0].device
