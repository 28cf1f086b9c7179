"""Decoding with static caches and all state on the device writes what the plain loop writes (here without graphs)."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from decode_models import END, run_backend, tiny

from qkv.decode import GenerationOptions, generate
from qkv.decode.backend import GPU_GREEDY
from qkv.decode.gpu import graphs as module
from qkv.decode.gpu import greedy as one_row
from qkv.decode.gpu.greedy import GreedyState, MatvecLinear, decode_greedy, replace_linears
from qkv.decode.gpu.static_runner import CacheView, StaticRunner
from qkv.decode.runner import make_runner
from qkv.models import Network
from qkv.text import Tokenizer

PROMPTS = [[3, 4, 5, 6], [7], [8, 9]]


@pytest.mark.parametrize("bucket", [8, 256])
@pytest.mark.parametrize("new", [1, 20])
def test_static_greedy_is_greedy(network: Network, new: int, bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOTS_PER_BUCKET", bucket)
    monkeypatch.setattr(module, "STEPS_BETWEEN_CHECKS", 3)
    options = GenerationOptions(max_tokens=new)
    static = run_backend(GPU_GREEDY, network, PROMPTS, options)
    plain = generate(network, PROMPTS, options)
    assert [(r.ids, r.finish_reason) for r in static] == [(r.ids, r.finish_reason) for r in plain]
    assert [r.score for r in static] == pytest.approx([r.score for r in plain], abs=1e-9)


@pytest.mark.parametrize("stop", [(), ("its own",), ("nowhere",)])
def test_results_are_those_of_the_plain_loop(stop: tuple[str, ...]) -> None:
    """With and without a stop text, which may end a row before its tokens do."""
    tokenizer = Tokenizer.train("byte", iter([]), vocab_size=260, special_tokens=["pad", "eos"])
    network, end = tiny("decoder", vocab=tokenizer.vocab_size, seed=2), (tokenizer.special_tokens.eos,)
    network.config = replace(network.config, eos_token_ids=end)
    stop = (
        (generate(network, PROMPTS, GenerationOptions(max_tokens=20), tokenizer)[1].text[2:4],)
        if stop == ("its own",)
        else stop
    )
    options = GenerationOptions(max_tokens=20, stop=stop)
    static = run_backend(GPU_GREEDY, network, PROMPTS, options, tokenizer=tokenizer)
    plain = generate(network, PROMPTS, options, tokenizer)
    for a, b in zip(static, plain, strict=True):
        assert (a.text, a.ids, a.finish_reason) == (b.text, b.ids, b.finish_reason)
        assert a.score == pytest.approx(b.score, abs=1e-9)
        assert [one.id for one in a.logprobs] == [one.id for one in b.logprobs]
        assert [one.logprob for one in a.logprobs] == pytest.approx([one.logprob for one in b.logprobs], abs=1e-9)
    if stop and stop != ("nowhere",):
        assert "stop" in {result.finish_reason for result in static}


def test_a_step_sees_its_bucket_alone() -> None:
    """The views that a step is shown share memory with the cache, and end with the bucket."""
    network = tiny("decoder")
    with torch.inference_mode():
        run = StaticRunner(make_runner(network, PROMPTS, GenerationOptions(max_tokens=40)), 40)  # type: ignore[arg-type]
        seen = run.view(16)
    assert run.num_slots == 64
    assert [t.shape[2] for t in (*seen.keys, *seen.values, seen.mask)] == [16] * 5
    assert seen.keys[0].data_ptr() == run.keys[0].data_ptr()
    assert seen.mask.data_ptr() == run.mask.data_ptr()


def test_slots_that_are_not_filled_are_not_seen() -> None:
    """Poison what lies ahead: only slots that were written, and no padding, reach a step."""
    network = tiny("decoder")
    with torch.inference_mode():
        run = StaticRunner(make_runner(network, PROMPTS, GenerationOptions(max_tokens=4)), 4)  # type: ignore[arg-type]
        token = torch.tensor([[3], [4], [5]])
        other = StaticRunner(make_runner(network, PROMPTS, GenerationOptions(max_tokens=4)), 4)  # type: ignore[arg-type]
        for tensor in (*other.keys, *other.values):
            tensor.masked_fill_((other.mask == float("-inf"))[..., None], 9.0)  # (N, 1, S, 1)
        assert torch.equal(run.logits(token, run.view(16)), other.logits(token, other.view(16)))


def test_products_as_sums_are_the_same_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiled steps of one row run in place of linear maps, here without the compiler."""
    network = tiny("decoder")
    twin = replace_linears(network, MatvecLinear)
    assert not any(type(part) is torch.nn.Linear for part in twin.modules())
    assert all(a is b for a, b in zip(twin.parameters(), network.parameters(), strict=True)), "no weight is copied"
    for seen in (False, True):
        monkeypatch.setattr(one_row, "is_single_vector", lambda x, seen=seen: seen and x.numel() == x.shape[-1])
        torch.testing.assert_close(twin(torch.tensor([[5]])), network(torch.tensor([[5]])), rtol=0, atol=1e-12)
        torch.testing.assert_close(twin(torch.tensor([[5, 3]])), network(torch.tensor([[5, 3]])), rtol=0, atol=1e-12)


def test_a_step_is_one_graph_to_the_compiler(network: Network) -> None:
    with torch.inference_mode():
        run = StaticRunner(
            make_runner(network, [[3, 4]], GenerationOptions(max_tokens=6)),
            6,
            network=replace_linears(network, MatvecLinear),
        )  # type: ignore[arg-type]
        greedy = GreedyState(run, (END,), 6)
        greedy.choose(run.prefill_logits)
        step = torch.compile(greedy.step, fullgraph=True, dynamic=False, backend="eager")
        module.run_steps(module.GraphedSteps(run, step), 6, greedy.ended)
    torch.compiler.reset()
    result = generate(network, [[3, 4]], GenerationOptions(max_tokens=6))[0]
    assert [token for token in greedy.written[0].tolist() if token not in (END, -1)] == result.ids


def test_a_bucket_runs_once_as_it_is_and_then_as_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does, with a graph that only remembers what it would replay."""
    network = tiny("decoder")
    monkeypatch.setattr(module, "SLOTS_PER_BUCKET", 8)
    told: list[str] = []

    def capture(step: partial[None], pool: object) -> SimpleNamespace:
        seen = step.args[0]
        told.append(f"capture {seen.mask.shape[2]}")
        return SimpleNamespace(replay=lambda: (told.append("replay"), greedy.step(seen)))

    def plainly(seen: CacheView) -> None:
        told.append("plain")
        greedy.step(seen)

    monkeypatch.setattr(module, "capture", capture)
    with torch.inference_mode():
        run = StaticRunner(make_runner(network, [[3, 4, 5, 6]], GenerationOptions(max_tokens=8)), 8)  # type: ignore[arg-type]
        greedy = GreedyState(run, (), 8)
        greedy.choose(run.prefill_logits)
        steps = module.GraphedSteps(run, plainly)
        steps.cuda = True
        module.run_steps(steps, 8, greedy.ended)
    # Four slots hold the prompt, four more fill the first bucket, and three steps are left for the next one.
    assert told == ["plain", "capture 8", "replay", "replay", "replay", "plain", "capture 16", "replay", "replay"]
    network.config = replace(network.config, eos_token_ids=())
    assert greedy.written[0].tolist() == generate(network, [[3, 4, 5, 6]], GenerationOptions(max_tokens=8))[0].ids


def test_rows_that_ended_write_nothing_more() -> None:
    network = tiny("decoder")
    with torch.inference_mode():
        run = make_runner(network, PROMPTS, GenerationOptions(max_tokens=9))  # type: ignore[arg-type]
        first = generate(network, PROMPTS, GenerationOptions(max_tokens=9))[0].ids[2]
        written = decode_greedy(run, (first,), 9)
    row = written.written[0].tolist()
    place = row.index(first)
    assert row[place + 1 :] == [-1] * (8 - place)
    assert not written.logprobs[0, place + 1 :].any()
