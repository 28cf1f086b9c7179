"""Score a decoder: its loss on token ids, or token by token on lines that all have the same number of tokens.

N lines, T tokens
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from qkv import Tap, Tokenizer
from qkv.inside import Edit, EditTap, check_edits
from qkv.models import Network
from qkv.models.runtime import eval_mode

BATCH_SIZE = 64


class TokenScores(NamedTuple):
    """For each token of each line, given the tokens before it: its loss, and whether it was the most probable token."""

    losses: Tensor  # (N, T), in nats
    correct: Tensor  # (N, T), bool


def next_token_loss(network: Network, ids: Tensor, tap: Tap | None = None) -> Tensor:
    """The mean loss of the next token, for ids (N, T)."""
    logits = network(ids[:, :-1], tap=tap)  # (N, T − 1, V)
    return cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def score_tokens(
    network: Network, tokenizer: Tokenizer, lines: Sequence[str], edits: Edit | Iterable[Edit] = ()
) -> TokenScores:
    """Score lines that all have the same number of tokens. Each line is a document, after the BOS token.

    `edits` change activations, for example `qkv.inside.zero_ablate("decoder.1.z", heads=[0])`.
    """
    encoded = encode_lines(tokenizer, lines)
    losses, correct, edits = [], [], check_edits(network.config, edits)
    with eval_mode(network):
        for start in range(0, len(encoded), BATCH_SIZE):
            ids = torch.tensor(encoded[start : start + BATCH_SIZE])
            logprobs = network(ids[:, :-1], tap=EditTap(edits)).log_softmax(dim=-1)  # (B, T, V)
            losses.append(-logprobs.gather(2, ids[:, 1:, None]).squeeze(2))
            correct.append(logprobs.argmax(dim=-1) == ids[:, 1:])
    return TokenScores(torch.cat(losses), torch.cat(correct))


def encode_lines(tokenizer: Tokenizer, lines: Sequence[str]) -> list[list[int]]:
    """The tokens of each line, after the BOS token."""
    bos = tokenizer.special_tokens.bos
    assert bos is not None
    return [[bos, *tokenizer.encode(line, add_special_tokens=False)] for line in lines]
