"""Score a trained decoder token by token, on lines that all have the same number of tokens.

N lines, T tokens
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.models import Decoder
from qkv.models.runtime.eval_mode import eval_mode
from qkv.text import Tokenizer

BATCH_SIZE = 64


class TokenScores(NamedTuple):
    """For each token of each line, given the tokens before it: its loss, and whether it was the most probable token."""

    losses: Tensor  # (N, T), in nats
    correct: Tensor  # (N, T), bool


@torch.no_grad()
def score_tokens(network: Decoder, tokenizer: Tokenizer, lines: Sequence[str]) -> TokenScores:
    """Score lines that all have the same number of tokens. Each line is a document, after the BOS token."""
    bos = tokenizer.special_tokens.bos
    encoded = [[bos, *tokenizer.encode(line, add_special_tokens=False)] for line in lines]
    losses, correct = [], []
    with eval_mode(network):
        for start in range(0, len(encoded), BATCH_SIZE):
            ids = torch.tensor(encoded[start : start + BATCH_SIZE])
            logprobs = network(ids[:, :-1]).log_softmax(dim=-1)  # (B, T, V)
            losses.append(-logprobs.gather(2, ids[:, 1:, None]).squeeze(2))
            correct.append(logprobs.argmax(dim=-1) == ids[:, 1:])
    return TokenScores(torch.cat(losses), torch.cat(correct))
