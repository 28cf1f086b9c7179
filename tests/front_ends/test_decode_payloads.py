"""Prompts with images: every way to generate gives the tokens of a forward pass without a cache."""

from typing import Any

import pytest
import torch
from squares import image, make_network, row

from qkv.blocks import Inputs
from qkv.blocks.inputs import as_prompt, extend_prompt
from qkv.decode import Engine, GenerationOptions, generate, score
from qkv.decode import runner as model_runner
from qkv.errors import UsageError
from qkv.models import Network

PROMPTS: list[Any] = [
    row(5, image(2, 2), [6, 7]),
    [4, 9, 8],
    row([8, 9], image(1, 3, seed=1), 4, image(2, 2, seed=2)),
]
OPTIONS = GenerationOptions(max_tokens=7)
FAMILIES = ["decoder", "seq2seq"]


def logits(network: Network, prompt: Any, target: list[int]) -> torch.Tensor:
    """The logits of all tokens, in one pass without a cache."""
    if network.has_source:
        source = Inputs.from_sequences([as_prompt(prompt)])
        return network(Inputs(torch.tensor([[0, *target]]), source=source))[0]
    return network(Inputs.from_sequences([extend_prompt(as_prompt(prompt), target)]))[0, -1 - len(target) :]


def greedy(network: Network, prompt: Any, length: int = 7) -> list[int]:
    ids: list[int] = []
    for _ in range(length):
        ids.append(int(logits(network, prompt, ids)[-1].argmax()))
    return ids


@pytest.fixture(params=FAMILIES)
def network(request: pytest.FixtureRequest) -> Network:
    return make_network(request.param, seed=3)


@pytest.mark.parametrize("chunk", [2048, 3])
def test_cached_equals_uncached(network: Network, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "MAX_PREFILL_TOKENS", {"cpu": chunk})
    found = [result.ids for result in generate(network, PROMPTS, OPTIONS)]
    assert found == [greedy(network, prompt) for prompt in PROMPTS]
    other = row(5, image(2, 2, seed=7), [6, 7])
    difference = (logits(network, other, found[0]) - logits(network, PROMPTS[0], found[0])).abs().max()
    assert difference > 0.01, "the image matters"


def test_beams_have_the_scores_of_one_pass(network: Network) -> None:
    options = GenerationOptions(max_tokens=5, beam=3, num_return_sequences=3, length_penalty=0.0)
    for prompt, result in zip(PROMPTS, generate(network, PROMPTS, options), strict=True):
        for found in (result, *result.alternatives):
            logprobs = logits(network, prompt, found.ids)[: len(found.ids)].log_softmax(-1)
            expected = logprobs.gather(1, torch.tensor(found.ids)[:, None]).sum()
            assert found.score == pytest.approx(float(expected), abs=1e-8)


def test_scores_are_those_of_one_pass(network: Network) -> None:
    targets = [[3, 4], [5], [6, 7, 8]]
    for prompt, target, scored in zip(PROMPTS, targets, score(network, PROMPTS, targets), strict=True):
        logprobs = logits(network, prompt, target).log_softmax(-1)
        assert [one.logprob for one in scored] == pytest.approx([float(logprobs[i, t]) for i, t in enumerate(target)])


@pytest.mark.parametrize("sizes", [{}, {"max_prefill_tokens": 4, "page_size": 2}, {"num_pages": 13, "page_size": 3}])
def test_the_engine_writes_the_same(network: Network, sizes: dict[str, int]) -> None:
    """Also in chunks, and if requests are preempted because pages are short."""
    engine = Engine(network, **sizes)
    requests = [engine.submit(prompt, OPTIONS) for prompt in [*PROMPTS, PROMPTS[0]]]
    engine.run()
    expected = [result.ids for result in generate(network, PROMPTS, OPTIONS)]
    assert [request.ids for request in requests] == [*expected, expected[0]]


def test_the_prefix_cache_knows_the_image() -> None:
    network = make_network("decoder", seed=3)
    engine = Engine(network, page_size=2)
    first = row(5, image(2, 2), [6, 7, 8])
    other, longer = row(5, image(2, 2, seed=9), [6, 7, 8]), row(5, image(2, 2), [6, 7, 8, 9])
    for prompt, reused in ((first, 0), (other, 0), (longer, 8)):
        before = engine.stats.reused_tokens
        found = engine.result(engine.submit(prompt, OPTIONS))
        assert found.ids == greedy(network, prompt)
        assert engine.stats.reused_tokens - before == reused
    short = row(5, image(2, 2), 6)  # its last uncached token follows page 2, which ends inside the image
    assert engine.result(engine.submit(short, OPTIONS)).ids == greedy(network, short)


def test_a_draft_declines_payloads(network: Network) -> None:
    with pytest.raises(UsageError, match="payloads and a draft"):
        generate(network, PROMPTS, OPTIONS, draft="lookup")


def test_text_alone_keeps_the_fast_path() -> None:
    from qkv.decode.backend import CPU, choose_backend

    network = make_network("decoder").float()
    assert choose_backend(network, OPTIONS) is CPU
