"""Complete: suggest how a text continues while it is being typed.

The last word may be unfinished, and its tokens may be others once it is finished. So the model reads the tokens before
the last word, and the search for continuations must first spell what was typed of it. The keys and values of the
tokens are kept between calls: after a keystroke, the model reads at most a few new tokens.

W hypotheses, V vocabulary
"""

import copy
from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv.blocks import RecurrentCache, SelfCache
from qkv.decode.cache_edits import crop_cache, reorder_cache
from qkv.decode.constrained.token_bytes import TokenBytes
from qkv.decode.runner import next_logits, promote_to_float32
from qkv.errors import UsageError
from qkv.models import Decoder
from qkv.models.runtime.eval_mode import eval_mode
from qkv.tasks.results import Completion, Suggestion
from qkv.tasks.task import TextModel, check_top

MAX_RETYPED_TOKENS = 8
"""At most this number of tokens at the end of the text are spelled again: the tokens of one word, usually."""


@dataclass
class PartialCompletion:
    """A continuation during the search."""

    ids: list[int]
    spelled: bytes  # of all tokens after those that the model has read
    logprob: float
    num_new: int = 0  # tokens that add to what was typed
    is_finished: bool = False


class PromptTokens(NamedTuple):
    """The tokens that the model reads, and the end of the text that the continuation must spell first."""

    ids: list[int]
    typed: bytes
    typed_ids: list[int]  # the tokens of `typed`, as the tokenizer encodes them


class Completer:
    """Suggests continuations, and keeps the keys and values of the text between calls."""

    def __init__(self, model: TextModel) -> None:
        assert isinstance(model.network, Decoder)
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

    def complete(self, text: str, *, top: int = 3, max_tokens: int = 8) -> Completion:
        """The `top` most likely continuations of at most `max_tokens` tokens; they end before a line break."""
        check_top(top)
        if max_tokens < 1:
            raise UsageError(f"max_tokens = {max_tokens}: must be at least 1")
        prompt = self.split_prompt(text, max_tokens + MAX_RETYPED_TOKENS)
        if not prompt.ids:  # an empty text, and a tokenizer without BOS
            return Completion(text, [])
        with torch.inference_mode(), eval_mode(self.network):
            hypotheses = self.search(self.read(prompt.ids), prompt.typed, top, max_tokens)
            if not hypotheses and prompt.typed:  # the vocabulary cannot spell it, so the model reads its tokens
                prompt = PromptTokens([*prompt.ids, *prompt.typed_ids], b"", [])
                hypotheses = self.search(self.read(prompt.ids), b"", top, max_tokens)
        suggestions: list[Suggestion] = []
        for one in hypotheses:
            added = one.spelled[len(prompt.typed) :].decode("utf-8", "ignore").split("\n")[0]
            if added and added not in [other.text for other in suggestions]:
                suggestions.append(Suggestion(added, float(torch.tensor(one.logprob, dtype=torch.float64).exp())))
        return Completion(text, suggestions[:top])

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
        """The logits (1, V) after the tokens. Only tokens that differ from those of the last call are computed."""
        cache, self.cache = self.cache, None  # an interrupted call leaves none
        known = 0
        if cache is not None:
            pairs = zip(ids[:-1], self.cached_ids, strict=False)  # the last token is always computed, for its logits
            known = next(
                (i for i, (new, old) in enumerate(pairs) if new != old), min(len(ids) - 1, len(self.cached_ids))
            )
            if isinstance(cache, RecurrentCache):  # its state cannot be taken back
                known = known if known == len(self.cached_ids) else 0
            else:
                crop_cache(cache, known)
        if cache is None or known == 0:
            cache = self.network.new_cache(1, len(ids) + 64)
        new = torch.tensor([ids[known:]], device=next(self.network.parameters()).device)
        logits = next_logits(self.network, new, None, cache=cache, cross_cache=None)
        self.cache, self.cached_ids = cache, list(ids)
        return promote_to_float32(logits)

    def search(self, logits: Tensor, typed: bytes, width: int, max_tokens: int) -> list[PartialCompletion]:
        """A beam search whose hypotheses begin with the bytes `typed`; the most likely first."""
        assert self.cache is not None
        cache = copy_cache(self.network, self.cache, max_tokens + MAX_RETYPED_TOKENS)
        beams, finished = [PartialCompletion([], b"", 0.0)], list[PartialCompletion]()
        for _ in range(max_tokens + MAX_RETYPED_TOKENS):
            grown = [
                (row, new)
                for row, beam in enumerate(beams)
                for new in self.extend(beam, logits[row], typed, width, max_tokens)
            ]
            grown.sort(key=lambda pair: -pair[1].logprob)
            finished += [one for _, one in grown[:width] if one.is_finished]
            kept = [(row, one) for row, one in grown[:width] if not one.is_finished]
            if not kept:
                break
            beams = [one for _, one in kept]
            reorder_cache(cache, torch.tensor([row for row, _ in kept], device=logits.device))
            new = torch.tensor([[one.ids[-1]] for one in beams], device=logits.device)
            logits = promote_to_float32(next_logits(self.network, new, None, cache=cache, cross_cache=None))
        found = [one for one in finished if one.spelled.startswith(typed)]
        return sorted(found, key=lambda one: -one.logprob)[:width]

    def extend(
        self, beam: PartialCompletion, logits: Tensor, typed: bytes, width: int, max_tokens: int
    ) -> list[PartialCompletion]:
        """The most likely continuations of a hypothesis by one token."""
        rest = typed[len(beam.spelled) :]
        if rest:  # among the tokens that agree with what was typed
            allowed = torch.tensor(self.matching_tokens(rest), dtype=torch.long, device=logits.device)
            if not len(allowed):
                return []
            logits = logits[allowed]
        best = logits.log_softmax(-1).topk(min(width, len(logits)))
        tokens = (allowed[best.indices] if rest else best.indices).tolist()
        extended = []
        for token, logprob in zip(tokens, best.values.tolist(), strict=True):
            text = self.token_bytes.later_bytes[token]
            spelled = beam.spelled + text
            num_new = beam.num_new + (len(spelled) > len(typed))
            ends = (
                not text or b"\n" in spelled[len(typed) :] or num_new == max_tokens
            )  # a special token, such as EOS, has no text
            extended.append(PartialCompletion([*beam.ids, token], spelled, beam.logprob + logprob, num_new, ends))
        return extended

    def matching_tokens(self, rest: bytes) -> list[int]:
        """The tokens that begin with `rest`, and those that `rest` begins with."""
        first = bisect_left(self.sorted_bytes, rest)
        last = bisect_left(self.sorted_bytes, rest + b"\xff" * 64, lo=first)
        shorter = [token for end in range(1, len(rest)) for token in self.by_bytes.get(rest[:end], ())]
        return [*self.sorted_ids[first:last], *shorter]


def last_word_start(text: str) -> int:
    """Where the last word of a text begins, with the white space before it, if there is some.

    >>> [last_word_start(text) for text in ("one two", "one ", "one", "")]
    [3, 3, 0, 0]
    """
    words = text.rsplit(maxsplit=1)
    if not text or text[-1].isspace():
        return max(0, len(text) - 1)
    return max(0, len(text) - len(words[-1]) - 1)


def copy_cache(network: Decoder, source: SelfCache, num_new: int) -> SelfCache:
    """Return a copy of a cache of one sequence, with room for `num_new` more tokens."""
    if isinstance(source, RecurrentCache):
        return copy.deepcopy(source)
    count = source.filled
    target = network.new_cache(1, count + num_new)
    for old, new in zip((*source.keys, *source.values), (*target.keys, *target.values), strict=True):
        new[:, :, :count] = old[:, :, :count]
    target.document_ids[:, :count], target.positions[:, :count] = (
        source.document_ids[:, :count],
        source.positions[:, :count],
    )
    target.filled, target.no_padding = count, source.no_padding
    return target


def weights_version(network: nn.Module) -> tuple[int, torch.dtype, torch.device]:
    """What changes when weights are changed or moved, because keys and values are then out of date."""
    parameters = list(network.parameters())
    return sum(one._version for one in parameters), parameters[0].dtype, parameters[0].device
