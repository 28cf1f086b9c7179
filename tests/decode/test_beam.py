"""Beam search against brute force: with room for every path it finds the best one, for any sign of the penalty."""

import pytest
import torch
from decode_models import END, run_backend, tiny

from qkv.blocks import SelfCache
from qkv.decode import GenerationOptions, generate, score
from qkv.decode.backend import CPU, REFERENCE
from qkv.decode.beam import BeamState, Hypothesis, _is_done, beam_search
from qkv.decode.cache_edits import reorder_cache
from qkv.decode.cpu.beam_slots import BeamSlots
from qkv.decode.loop import GenerationCall, search_results
from qkv.decode.options import length_divisor
from qkv.decode.result import SearchStep
from qkv.models import Network

VOCAB = 5
PROMPT = [3, 4, 2]


def all_hypotheses(network: Network, options: GenerationOptions) -> list[tuple[float, list[int]]]:
    """Every sequence that ends within two tokens, or is as long as that, with its worth, best first."""
    others = [t for t in range(VOCAB) if t != END]
    sequences = [[END]] + [[t, END] for t in others] + [[t, u] for t in others for u in others]
    scored = score(network, [PROMPT] * len(sequences), sequences)
    worths = [sum(t.logprob for t in tokens) / length_divisor(options, len(tokens)) for tokens in scored]
    return sorted(zip(worths, sequences, strict=True), reverse=True)


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
@pytest.mark.parametrize("penalty", ["power", "gnmt"])
@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.6, 2.0])
def test_a_beam_with_room_for_every_path_finds_the_best_of_all(family: str, alpha: float, penalty: str) -> None:
    """Traps 14 and 15: a beam as wide as the vocabulary prunes nothing within two tokens."""
    network = tiny(family, vocab=VOCAB, seed=3, spread=0.5)
    options = GenerationOptions(
        max_tokens=2, beam=VOCAB, length_penalty=alpha, length_penalty_kind=penalty, num_return_sequences=VOCAB
    )  # type: ignore[arg-type]
    found = generate(network, [PROMPT], options)[0]
    best = all_hypotheses(network, options)
    assert [found.score, *(r.score for r in found.alternatives)] == pytest.approx(
        [w for w, _ in best[:VOCAB]], abs=1e-9
    )
    assert found.ids + ([END] if found.finish_reason == "end" else []) == best[0][1]


@pytest.mark.parametrize(("family", "seed"), [("decoder", 5), ("seq2seq", 41)])
@pytest.mark.parametrize("alpha", [-0.7, 0.0, 1.0])
def test_stopping_early_loses_nothing(family: str, seed: int, alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that may stop early finds what one that never stops finds; one that stops too early does not."""
    network = tiny(family, vocab=8, seed=seed, spread=0.7)
    options = GenerationOptions(max_tokens=14, beam=3, length_penalty=alpha, return_search_steps=True)

    def search() -> tuple[list[tuple[list[int], float]], int]:
        results = generate(network, [PROMPT, [5, 6]], options)
        return [(r.ids, round(r.score, 9)) for r in results], min(len(r.search_steps) for r in results)

    early, num_steps = search()
    assert num_steps < options.max_tokens, "a control: a search does stop early"
    monkeypatch.setattr("qkv.decode.beam._is_done", lambda *_: False)
    assert search() == (early, options.max_tokens)
    monkeypatch.setattr("qkv.decode.beam._is_done", lambda state, *_: bool(state.finished))
    assert search()[0] != early


@pytest.mark.parametrize(
    ("alpha", "penalty", "last_score"),
    [
        (0.0, "power", -1.0),  # the bound is the log-probability itself
        (1.0, "power", -10.0),  # divided by the largest length, 10
        (-1.0, "power", -1 / 5),  # divided by 1 / the next length, 5
        (1.0, "gnmt", -2.5),  # (5 + 10) / 6
        (-1.0, "gnmt", -0.6),  # (5 + 5) / 6
    ],
)
def test_a_search_stops_when_no_running_hypothesis_can_win(alpha: float, penalty: str, last_score: float) -> None:
    """After 4 of at most 10 tokens, the worse of two finished hypotheses has the score −1."""
    options = GenerationOptions(max_tokens=10, beam=2, length_penalty=alpha, length_penalty_kind=penalty)  # type: ignore[arg-type]
    state = BeamState([[3], [4]], finished=[Hypothesis([3], -0.5, True), Hypothesis([4], -1.0, True)])
    assert _is_done(state, options, 4, last_score * (1 + 1e-9))
    assert not _is_done(state, options, 4, last_score * (1 - 1e-3))
    del state.finished[1]
    assert not _is_done(state, options, 4, 10 * last_score), "there is room for one more"


def test_beam_one_is_greedy(network: Network) -> None:
    prompts = [[3, 4, 5], [6, 7]]
    greedy = generate(network, prompts, GenerationOptions(max_tokens=8))
    call = GenerationCall(network, prompts, GenerationOptions(max_tokens=8, beam=1))  # type: ignore[arg-type]
    with torch.inference_mode():
        runner, call = call.prepare_batch()
        searched = search_results(call, beam_search(runner, call.options, (END,)))
    assert [r.ids for r in searched] == [r.ids for r in greedy]


def test_the_recorded_score_is_the_rescored_one(network: Network) -> None:
    options = GenerationOptions(max_tokens=6, beam=3, length_penalty=0.8, num_return_sequences=3)
    for result in generate(network, [[3, 4, 5], [6, 7]], options)[0:1]:
        for hypothesis in (result, *result.alternatives):
            ids = hypothesis.ids + ([END] if hypothesis.finish_reason == "end" else [])
            again = sum(t.logprob for t in score(network, [[3, 4, 5]], [ids])[0])
            assert hypothesis.score == pytest.approx(again / length_divisor(options, len(ids)), abs=1e-6)


def test_hypotheses_come_best_first_and_differ(network: Network) -> None:
    result = generate(network, [[3, 4]], GenerationOptions(max_tokens=5, beam=4, num_return_sequences=4))[0]
    scores = [result.score, *(r.score for r in result.alternatives)]
    assert scores == sorted(scores, reverse=True)
    assert len({tuple(r.ids) for r in (result, *result.alternatives)}) == len(scores)


def test_a_recorded_search_explains_its_result(network: Network) -> None:
    result = generate(network, [[3, 4]], GenerationOptions(max_tokens=5, beam=3, return_search_steps=True))[0]
    assert 1 <= len(result.search_steps) <= 5
    for step in result.search_steps:
        scores = [candidate.score for candidate in step.candidates]
        assert scores == sorted(scores, reverse=True)
        assert sum(c.kept and not c.ended for c in step.candidates) <= 3
    reported: list[SearchStep] = []
    options = GenerationOptions(max_tokens=5, beam=3, on_search_step=reported.append)
    assert not generate(network, [[3, 4]], options)[0].search_steps
    assert reported == result.search_steps


def test_a_batch_of_unequal_prompts_is_each_alone(network: Network) -> None:
    prompts = [[3, 4, 5, 6], [7], [8, 9]]
    options = GenerationOptions(max_tokens=7, beam=3)
    together = generate(network, prompts, options)
    alone = [generate(network, [prompt], options)[0] for prompt in prompts]
    assert [(r.ids, r.finish_reason) for r in together] == [(r.ids, r.finish_reason) for r in alone]
    assert [r.score for r in together] == pytest.approx([r.score for r in alone], abs=1e-9)


@pytest.mark.parametrize("fast", [True, False])
def test_the_reorder_of_the_cache_matters(network: Network, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control for trap 14: a search whose cache is not reordered finds something else."""
    options = GenerationOptions(max_tokens=8, beam=4, num_return_sequences=4)
    backend = CPU if fast else REFERENCE
    right = run_backend(backend, network, [[3, 4, 5]], options)[0]

    def first_only(cache: SelfCache, rows: torch.Tensor, start: int = 0) -> None:
        if len(rows) != cache.batch_size:  # the prompt's row becoming several
            reorder_cache(cache, rows)

    if fast:
        monkeypatch.setattr(BeamSlots, "reorder", lambda self, rows: None)
    else:
        monkeypatch.setattr("qkv.decode.runner.reorder_cache", first_only)
    wrong = run_backend(backend, network, [[3, 4, 5]], options)[0]
    assert [r.score for r in (right, *right.alternatives)] != [r.score for r in (wrong, *wrong.alternatives)]
