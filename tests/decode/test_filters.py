"""Filters against what their names say, and sampling against the distribution that they leave."""

import itertools
import math

import pytest
import torch
from decode_models import END, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.decode import GenerationOptions, filters, generate
from qkv.decode.sampling import make_generators, sample
from qkv.errors import QkvError
from qkv.models import Network

NONE = torch.full((1, 1), -1)
logit_rows = st.lists(st.floats(-8, 8), min_size=2, max_size=9).map(
    lambda row: torch.tensor([row], dtype=torch.float64)
)


def allowed(logits: torch.Tensor) -> set[int]:
    return {i for i, value in enumerate(logits[0].tolist()) if value > float("-inf")}


@settings(max_examples=60, deadline=None)
@given(logit_rows, st.integers(1, 9))
def test_top_k_keeps_the_likeliest(logits: torch.Tensor, k: int) -> None:
    kept = allowed(filters.top_k(k)(logits, NONE))
    least = sorted(logits[0].tolist(), reverse=True)[min(k, logits.shape[1]) - 1]
    assert kept == {i for i, value in enumerate(logits[0].tolist()) if value >= least}


@settings(max_examples=60, deadline=None)
@given(logit_rows, st.floats(0.01, 0.99))
def test_top_p_keeps_the_fewest_that_reach_p(logits: torch.Tensor, p: float) -> None:
    kept = allowed(filters.top_p(p)(logits, NONE))
    shares = logits.softmax(-1)[0].tolist()
    order = sorted(range(len(shares)), key=lambda i: -shares[i])
    total, expected = 0.0, 0
    for i in order:
        if total >= p - 1e-12:
            break
        total += shares[i]
        expected += 1
    assert order[0] in kept or shares[order[0]] == pytest.approx(max(shares[i] for i in kept))
    assert len(kept) == expected


@settings(max_examples=60, deadline=None)
@given(logit_rows, st.floats(0.01, 0.99))
def test_min_p_is_relative_to_the_likeliest(logits: torch.Tensor, p: float) -> None:
    kept = allowed(filters.min_p(p)(logits, NONE))
    shares = logits.softmax(-1)[0].tolist()
    sure = {i for i, share in enumerate(shares) if share > max(shares) * p * (1 + 1e-6)}
    out = {i for i, share in enumerate(shares) if share < max(shares) * p * (1 - 1e-6)}
    assert sure <= kept
    assert not out & kept


def test_repetition_counts_real_tokens_only() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.5]])
    out = filters.repetition_penalty(2.0)(logits, torch.tensor([[-1, 1, 2, 1]]))
    assert out.tolist() == [[2.0, -4.0, 0.5, 0.5]]


def test_no_repeat_bans_what_would_close_a_second_ngram() -> None:
    tokens = torch.tensor([[5, 6, 7, 5, 6], [-1, -1, 5, 6, 1]])
    out = filters.no_repeat_ngram(3)(torch.zeros(2, 9), tokens)
    assert set(range(9)) - {i for i in range(9) if out[0, i] > float("-inf")} == {7}
    assert bool((out[1] == 0).all())


def test_no_repeat_holds_in_a_text(network: Network) -> None:
    ids = generate(network, [[3, 4]], GenerationOptions(max_tokens=20, no_repeat_ngram_size=2, suppress_tokens=(END,)))[
        0
    ].ids
    pairs = list(itertools.pairwise(ids))
    assert len(pairs) == len(set(pairs))
    free = generate(network, [[3, 4]], GenerationOptions(max_tokens=20, suppress_tokens=(END,)))[0].ids
    free_pairs = list(itertools.pairwise(free))
    assert len(free_pairs) > len(set(free_pairs)), "without the filter it does repeat"


def test_banned_tokens_never_come(network: Network) -> None:
    first = generate(network, [[3, 4]], GenerationOptions(max_tokens=6))[0].ids[0]
    assert first not in generate(network, [[3, 4]], GenerationOptions(max_tokens=6, suppress_tokens=(first,)))[0].ids


def test_no_end_before_the_minimum() -> None:
    network = tiny("decoder")
    with torch.no_grad():
        first = generate(network, [[3]], GenerationOptions(max_tokens=1))[0].ids[0]
        network.head.out.weight[END] = 2 * network.head.out.weight[first]  # where it said that, it now ends
    ended = [r for r in generate(network, [[a] for a in range(3, 12)], GenerationOptions(max_tokens=9)) if not r.ids]
    assert ended, "some text must want to end at once"
    longer = generate(network, [[a] for a in range(3, 12)], GenerationOptions(max_tokens=9, min_tokens=4))
    assert all(len(r.logprobs) > 4 for r in longer)


def test_a_filter_of_ones_own(network: Network) -> None:
    def only_seven(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        out = torch.full_like(logits, float("-inf"))
        out[:, 7] = 0.0
        return out

    assert generate(network, [[3]], GenerationOptions(max_tokens=3, logits_processors=(only_seven,)))[0].ids == [
        7,
        7,
        7,
    ]


def test_draws_follow_the_distribution() -> None:
    """Chi-square over 20,000 draws; a wrong distribution fails the same check."""
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0, float("-inf")]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    draws = torch.cat([sample(logits.expand(100, -1), [generator] * 100) for _ in range(200)])
    counts = torch.bincount(draws, minlength=5).double()
    assert counts[4] == 0

    def chi(expected: torch.Tensor) -> float:
        return float(((counts[:4] - expected) ** 2 / expected).sum())

    assert chi(20_000 * logits[0, :4].softmax(-1)) < 16.3  # 0.1 % of right samplers fail
    assert chi(20_000 * (0.9 * logits[0, :4]).softmax(-1)) > 16.3


def test_a_seed_is_the_same_text_whatever_else_is_in_the_batch(network: Network) -> None:
    options = GenerationOptions(max_tokens=10, temperature=1.5, seed=11)
    alone = generate(network, [[3, 4]], options)[0].ids
    with_others = generate(network, [[5], [3, 4], [6, 7, 8]], options)[1].ids
    assert alone == with_others
    texts = {
        tuple(generate(network, [[3, 4]], GenerationOptions(max_tokens=10, temperature=1.5, seed=s))[0].ids)
        for s in range(8)
    }
    assert len(texts) > 1


def test_without_a_seed_torchs_own_generator_decides(network: Network) -> None:
    options = GenerationOptions(max_tokens=10, temperature=1.5)
    torch.manual_seed(3)
    first = generate(network, [[3, 4]], options)[0].ids
    torch.manual_seed(3)
    assert generate(network, [[3, 4]], options)[0].ids == first


def test_low_temperature_is_greedy(network: Network) -> None:
    cold = generate(network, [[3, 4]], GenerationOptions(max_tokens=8, temperature=1e-4, seed=1))[0]
    assert cold.ids == generate(network, [[3, 4]], GenerationOptions(max_tokens=8))[0].ids


def test_all_tokens_forbidden_is_an_error() -> None:
    with pytest.raises(QkvError, match="forbidden"):
        sample(torch.full((1, 4), -math.inf), make_generators(1, 1))
