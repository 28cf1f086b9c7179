"""Speculation: guesses change how fast a text is written, never which one, nor how likely it is."""

import sys
from copy import copy, deepcopy
from dataclasses import replace
from functools import cache
from typing import Any, cast

import pytest
import torch
from engine_schedules import LETTERS, OPTIONS, PROMPTS, letters, small
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.blocks import HeadConfig, StackConfig
from qkv.decode import DraftModel, GenerationOptions, PromptLookup, SpeculativeResult, generate, score
from qkv.decode.cache_edits import crop_cache
from qkv.decode.filters import make_filters
from qkv.decode.speculative.draft import Draft
from qkv.decode.speculative.speculate import accept_or_resample, acceptance_probabilities, residual_distribution
from qkv.errors import QkvError, UsageError
from qkv.models import Config, Network, build

PROMPT = list(PROMPTS[-1])


@cache
def near(kind: str) -> Network:
    """A model that often agrees with `small(kind)`."""
    network = deepcopy(small(kind))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def drafts(kind: str) -> dict[str, Draft]:
    """From the best guesser to the worst."""
    return {
        "itself": DraftModel(small(kind)),
        "one like it": DraftModel(near(kind)),
        "another": DraftModel(small(kind + "-learned")),
        "look-up": PromptLookup(),
    }


def speculate(
    network: Network, prompts: list[list[int]], options: GenerationOptions, draft: Draft, **more: Any
) -> list[SpeculativeResult]:
    results = generate(network, prompts, options, draft=draft, **more)
    assert all(isinstance(result, SpeculativeResult) for result in results)
    return cast(list[SpeculativeResult], results)


def same(kind: str, prompt: list[int], options: GenerationOptions, draft: Draft, guesses: int) -> SpeculativeResult:
    heard: list[str] = []
    wanted = generate(small(kind), [prompt], options, letters())[0]
    draft = copy(draft)
    draft.num_draft_tokens = guesses
    more = {"tokenizer": letters(), "on_text": lambda _, piece: heard.append(piece)}
    result = speculate(small(kind), [prompt], options, draft, **more)[0]
    assert result.ids == wanted.ids
    assert (result.text, result.finish_reason) == (wanted.text, wanted.finish_reason)
    assert "".join(heard) == wanted.text
    assert result.score == pytest.approx(wanted.score, abs=1e-9)
    assert [e.id for e in result.logprobs] == [e.id for e in wanted.logprobs]
    assert [list(e.alternatives) for e in result.logprobs] == [list(e.alternatives) for e in wanted.logprobs]
    return result


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(["decoder", "seq2seq"]),
    draft=st.sampled_from(["itself", "one like it", "another", "look-up"]),
    prompt=st.sampled_from(PROMPTS),
    options=st.sampled_from([o for o in OPTIONS if not o.temperature]),
    length=st.integers(1, 20),
    guesses=st.integers(1, 5),
)
def test_the_likeliest_text_is_the_same(
    kind: str, draft: str, prompt: tuple[int, ...], options: GenerationOptions, length: int, guesses: int
) -> None:
    options = replace(options, max_tokens=length, min_tokens=min(options.min_tokens, length))
    same(kind, list(prompt), options, drafts(kind)[draft], guesses)


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(["decoder", "seq2seq"]),
    prompt=st.sampled_from(PROMPTS),
    options=st.sampled_from([o for o in OPTIONS if o.temperature]),
    guesses=st.integers(1, 5),
)
def test_with_look_up_the_same_seed_gives_the_same_text(
    kind: str, prompt: tuple[int, ...], options: GenerationOptions, guesses: int
) -> None:
    same(kind, list(prompt), options, PromptLookup(), guesses)


@pytest.mark.parametrize("kind", ["decoder", "seq2seq"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_agrees_with_itself_and_runs_seldom(kind: str, temperature: float) -> None:
    options = GenerationOptions(max_tokens=20, suppress_tokens=(2,), temperature=temperature, seed=1)
    result = speculate(small(kind), [PROMPT], options, DraftModel(small(kind)))[0]
    assert result.acceptance_rate == 1.0
    assert len(result.ids) == 20
    assert result.num_forward_passes == 4  # five tokens a run
    assert (result.num_proposed, result.num_accepted) == (16, 16)


def test_look_up_pays_where_a_text_repeats_itself() -> None:
    options = GenerationOptions(
        max_tokens=30, suppress_tokens=tuple(n for n in range(14) if n not in (5, 6))
    )  # two letters, again and again
    result = same("decoder", PROMPT, options, PromptLookup(), 4)
    assert 0 < result.num_accepted <= result.num_proposed
    assert result.num_forward_passes == 30 - result.num_accepted
    assert result.num_forward_passes < 20


def test_look_up_finds_the_latest_and_the_longest() -> None:
    guesser = PromptLookup(max_ngram_size=2).make_proposer(small("decoder"), None, [], None)
    assert guesser.propose([4, 5, 6, 9, 5, 7, 4, 5], 3).ids == [6, 9, 5], "two tokens alike, not the later one alike"
    assert guesser.propose([4, 5, 6, 9, 5, 7, 4, 5, 5], 2).ids == [5], "the latest time, as far as the text goes"
    assert guesser.propose([4, 5, 6, 9, 5, 7, 4, 5, 5, 11], 2).ids == []
    assert guesser.propose([4, 5, 6, 9, 5, 7, 4, 5, 5, 11, 9], 0).ids == []


def test_look_up_reads_a_source_in_the_same_vocabulary() -> None:
    network = small("seq2seq")
    own = replace(network.config, share_embeddings=True)
    shared = build(own, dtype=torch.float64)
    assert PromptLookup().make_proposer(shared, [7, 8, 9], [], None).propose([1, 7], 2).ids == [8, 9]
    assert PromptLookup().make_proposer(network, [7, 8, 9], [], None).propose([1, 7], 2).ids == []


def test_a_draft_with_fewer_positions_stops_guessing_where_they_end() -> None:
    options = GenerationOptions(max_tokens=38, suppress_tokens=(2,))
    network = small("decoder")
    short = small("decoder-learned")  # 40 positions
    result = speculate(network, [PROMPT[:6]], options, DraftModel(short))[0]
    assert result.ids == generate(network, [PROMPT[:6]], options)[0].ids


def test_refused_tokens_that_are_not_taken_back_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    options = GenerationOptions(max_tokens=12, suppress_tokens=(2,), no_repeat_ngram_size=2)
    assert same("decoder", PROMPT, options, DraftModel(near("decoder")), 4).acceptance_rate < 1
    too_few = lambda cache, filled: crop_cache(cache, min(filled + 1, cache.filled))  # noqa: E731
    monkeypatch.setattr("qkv.decode.speculative.speculate.crop_cache", too_few)
    monkeypatch.setattr("qkv.decode.speculative.draft.crop_cache", too_few)
    with pytest.raises((AssertionError, RuntimeError)):
        same("decoder", PROMPT, options, DraftModel(near("decoder")), 4)


# ── Drawing ──────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), vocab=st.integers(2, 9), holes=st.booleans())
def test_what_is_kept_and_what_makes_up_for_the_refused_is_the_model_s_distribution(
    seed: int, vocab: int, holes: bool
) -> None:
    """The rule, exactly: q·kept + (what is refused)·rest = p."""
    torch.manual_seed(seed)
    p, q = torch.randn(2, vocab, dtype=torch.float64).mul(2).softmax(-1)
    if holes:  # as filters leave them
        p, q = (torch.where(torch.rand(vocab) < 0.3, 0.0, t) + 1e-3 * torch.eye(vocab)[0] for t in (p, q))
        p, q = p / p.sum(), q / q.sum()
    stays = q * acceptance_probabilities(p, q)
    over = residual_distribution(p, q)
    torch.testing.assert_close(stays + (1 - stays.sum()) * over / over.sum(), p, rtol=0, atol=1e-12)


def test_equal_distributions_refuse_nothing() -> None:
    p = torch.tensor([0.25, 0.75], dtype=torch.float64)
    assert acceptance_probabilities(p, p).tolist() == [1.0, 1.0]
    assert residual_distribution(p, p).tolist() == p.tolist()


def little(seed: int) -> Network:
    """Four tokens, the first of them the end, and a next token that depends on the last ones."""
    stack = StackConfig(vocab_size=4, width=4, layers=1, heads=1, ffn_width=4, position="rotary", init_std=1.0)
    torch.manual_seed(seed)
    network = build(
        Config(decoder=stack, head=HeadConfig(kind="lm", outputs=4), eos_token_ids=(0,)), dtype=torch.float64
    ).eval()
    with torch.no_grad():
        network.head.out.weight.mul_(1.5)
    return network


OPEN = GenerationOptions(max_tokens=3, temperature=1.3, top_p=0.98)


def chances(network: Network) -> dict[tuple[int, ...], float]:
    """Each text of up to three tokens with the probability that plain sampling gives it, worked out."""
    out: dict[tuple[int, ...], float] = {}
    filters = make_filters(OPEN, (0,), 2)

    def grow(text: tuple[int, ...], chance: float) -> None:
        if len(text) == 3 or (text and text[-1] == 0):
            out[text] = chance
            return
        ids = torch.tensor([[1, 2, *text]])
        with torch.inference_mode():
            logits = network(ids)[:, -1]
            for apply in filters:
                logits = apply(logits, ids)
        for token, share in enumerate(logits[0].softmax(-1).tolist()):
            if share > 0:
                grow((*text, token), chance * share)

    grow((), 1.0)
    return out


def improbability(network: Network, draft: Network, draws: int) -> float:
    """The p-value of many drawn texts under the model's own distribution (chi-square, cells of five and more)."""
    expected = chances(network)
    counts = dict.fromkeys(expected, 0)
    for seed in range(draws):
        result = speculate(network, [[1, 2]], replace(OPEN, seed=seed), DraftModel(draft, num_draft_tokens=2))[0]
        counts[(*result.ids, *([0] if result.finish_reason == "end" else []))] += 1
    cells = [(counts[t], draws * c) for t, c in expected.items() if draws * c >= 5]
    others = draws - sum(count for count, _ in cells)
    rare = draws - sum(mean for _, mean in cells)
    if rare >= 5:
        cells.append((others, rare))
    assert len(cells) > 8
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    half = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def test_drawn_texts_are_as_likely_as_the_model_has_them() -> None:
    assert improbability(little(3), little(0), 600) > 0.01


def accept_all(logits: Tensor, guess: int | None, q: Tensor | None, generator: torch.Generator | None) -> int:
    """Wrong: the draft decides."""
    return accept_or_resample(logits, None, None, generator) if guess is None else guess


def draw_again(logits: Tensor, guess: int | None, q: Tensor | None, generator: torch.Generator | None) -> int:
    """Wrong: a refused guess is made up for from p, instead of from what p has more than q."""
    assert generator is not None
    if guess is not None and q is not None:
        share = acceptance_probabilities(logits[0].softmax(-1), q)[guess]
        if float(torch.rand((), generator=generator)) < float(share):
            return guess
    return accept_or_resample(logits, None, None, generator)


@pytest.mark.parametrize("rule", [accept_all, draw_again])
def test_a_wrong_rule_would_show(rule: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["qkv.decode.speculative.speculate"], "accept_or_resample", rule)
    assert improbability(little(3), little(0), 300) < 1e-6


def test_scores_are_the_model_s_own() -> None:
    """Drawing with a draft model: reported log-probabilities are those of the text that was written."""
    options = GenerationOptions(max_tokens=12, temperature=2.5, seed=3, suppress_tokens=(2,), logprobs=2)
    result = speculate(small("decoder"), [PROMPT], options, DraftModel(near("decoder")))[0]
    again = score(small("decoder"), [PROMPT], [result.ids])[0]
    assert [e.logprob for e in result.logprobs] == pytest.approx([e.logprob for e in again], abs=1e-9)
    assert 0 < result.acceptance_rate < 1
    repeat = speculate(small("decoder"), [PROMPT], options, DraftModel(near("decoder")))[0]
    assert repeat == result, "a seed is a seed"


# ── Refused ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": GenerationOptions(beam=2)}, "beam = 2: speculative decoding has no beam search"),
        ({"draft": DraftModel(little(0))}, "the draft has a vocabulary of 4 tokens, the model one of 14"),
        ({"draft": DraftModel(small("seq2seq"))}, "a seq2seq with a lm head cannot be the draft of a decoder"),
        ({"options": GenerationOptions(max_tokens=500)}, "40 positions"),
    ],
)
def test_what_cannot_be_done_is_refused(change: dict[str, object], message: str) -> None:
    call = {"options": GenerationOptions(max_tokens=3), "draft": PromptLookup()} | change
    with pytest.raises(UsageError, match=message):
        speculate(small("decoder-learned"), [PROMPT], **call)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"), [({"max_ngram_size": 0}, "max_ngram_size = 0"), ({"num_draft_tokens": 0}, "_tokens = 0")]
)
def test_counts_of_a_draft_are_checked(settings: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PromptLookup(**settings)


def test_a_draft_may_be_a_network_or_a_word() -> None:
    """What `generate` and the command line take."""
    options = GenerationOptions(max_tokens=6)
    plain = generate(small("decoder"), [PROMPT], options)[0]
    for draft in (near("decoder"), "lookup"):
        assert generate(small("decoder"), [PROMPT], options, draft=draft)[0].ids == plain.ids  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="draft = 'look'"):
        generate(small("decoder"), [PROMPT], options, draft="look")  # type: ignore[arg-type]


def test_forbidding_everything_is_an_error() -> None:
    with pytest.raises(QkvError, match="every token is forbidden"):
        speculate(small("decoder"), [PROMPT], GenerationOptions(suppress_tokens=tuple(range(14))), PromptLookup())


def test_several_prompts_in_order() -> None:
    results = speculate(
        small("decoder"), [PROMPT, PROMPT[:2]], GenerationOptions(max_tokens=5), PromptLookup(), tokenizer=letters()
    )
    wanted = generate(small("decoder"), [PROMPT, PROMPT[:2]], GenerationOptions(max_tokens=5), letters())
    assert [r.ids for r in results] == [r.ids for r in wanted]
    assert all(set(r.text) <= set(LETTERS) for r in results)
