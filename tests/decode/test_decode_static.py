"""Decoding with static caches and all state on the device writes what the plain loop writes (here without graphs)."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from decode_models import END, tiny

from qkv.decode import Options, generate, one_row
from qkv.decode import static as module
from qkv.decode.generate import _write_static, start
from qkv.decode.one_row import OneRowLinear, with_linears
from qkv.decode.static_step import Seen, StaticRun
from qkv.models import Network
from qkv.text import Tokenizer

PROMPTS = [[3, 4, 5, 6], [7], [8, 9]]


@pytest.mark.parametrize("bucket", [8, 256])
@pytest.mark.parametrize("new", [1, 20])
def test_static_greedy_is_greedy(network: Network, new: int, bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUCKET", bucket)
    monkeypatch.setattr(module, "LOOK", 3)
    options = Options(max_tokens=new)
    with torch.inference_mode():
        static = _write_static(start(network, PROMPTS, options), options, (END,), None)  # type: ignore[arg-type]
    plain = generate(network, PROMPTS, options)
    assert [(r.ids, r.reason) for r in static] == [(r.ids, r.reason) for r in plain]
    assert [r.score for r in static] == pytest.approx([r.score for r in plain], abs=1e-9)


@pytest.mark.parametrize("stop", [(), ("its own",), ("nowhere",)])
def test_results_are_those_of_the_plain_loop(stop: tuple[str, ...]) -> None:
    """With and without a stop text, which may end a row before its tokens do."""
    tokenizer = Tokenizer.train("byte", iter([]), size=260, roles=["pad", "end"])
    network, end = tiny("decoder", vocab=tokenizer.size, seed=2), (tokenizer.roles.end,)
    network.config = replace(network.config, end=end)
    stop = (
        (generate(network, PROMPTS, Options(max_tokens=20), tokenizer)[1].text[2:4],) if stop == ("its own",) else stop
    )
    options = Options(max_tokens=20, stop=stop)
    with torch.inference_mode():
        static = _write_static(start(network, PROMPTS, options), options, end, tokenizer)  # type: ignore[arg-type]
    plain = generate(network, PROMPTS, options, tokenizer)
    for a, b in zip(static, plain, strict=True):
        assert (a.text, a.ids, a.reason) == (b.text, b.ids, b.reason)
        assert a.score == pytest.approx(b.score, abs=1e-9)
        assert [one.id for one in a.logprobs] == [one.id for one in b.logprobs]
        assert [one.logprob for one in a.logprobs] == pytest.approx([one.logprob for one in b.logprobs], abs=1e-9)
    if stop and stop != ("nowhere",):
        assert "stop" in {result.reason for result in static}


def test_a_step_sees_its_bucket_alone() -> None:
    """The views that a step is shown share memory with the cache, and end with the bucket."""
    network = tiny("decoder")
    with torch.inference_mode():
        run = StaticRun(start(network, PROMPTS, Options(max_tokens=40)), 40)  # type: ignore[arg-type]
        seen = run.seen(16)
    assert run.length == 64
    assert [t.shape[2] for t in (*seen.keys, *seen.values, seen.sight)] == [16] * 5
    assert seen.keys[0].data_ptr() == run.keys[0].data_ptr()
    assert seen.sight.data_ptr() == run.sight.data_ptr()


def test_slots_that_are_not_filled_are_not_seen() -> None:
    """Poison what lies ahead: only slots that were written, and no padding, reach a step."""
    network = tiny("decoder")
    with torch.inference_mode():
        run = StaticRun(start(network, PROMPTS, Options(max_tokens=4)), 4)  # type: ignore[arg-type]
        token = torch.tensor([[3], [4], [5]])
        other = StaticRun(start(network, PROMPTS, Options(max_tokens=4)), 4)  # type: ignore[arg-type]
        for tensor in (*other.keys, *other.values):
            tensor.masked_fill_((other.sight == float("-inf"))[..., None], 9.0)  # (N, 1, S, 1)
        assert torch.equal(run.logits(token, run.seen(16)), other.logits(token, other.seen(16)))


def test_products_as_sums_are_the_same_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiled steps of one row run in place of linear maps, here without the compiler."""
    network = tiny("decoder")
    twin = with_linears(network, OneRowLinear)
    assert not any(type(part) is torch.nn.Linear for part in twin.modules())
    assert all(a is b for a, b in zip(twin.parameters(), network.parameters(), strict=True)), "no weight is copied"
    for seen in (False, True):
        monkeypatch.setattr(one_row, "one_row", lambda x, seen=seen: seen and x.numel() == x.shape[-1])
        torch.testing.assert_close(twin(torch.tensor([[5]])), network(torch.tensor([[5]])), rtol=0, atol=1e-12)
        torch.testing.assert_close(twin(torch.tensor([[5, 3]])), network(torch.tensor([[5, 3]])), rtol=0, atol=1e-12)


def test_a_step_is_one_graph_to_the_compiler(network: Network) -> None:
    with torch.inference_mode():
        run = StaticRun(start(network, [[3, 4]], Options(max_tokens=6)), 6, network=with_linears(network, OneRowLinear))  # type: ignore[arg-type]
        greedy = module.Greedy(run, (END,), 6)
        greedy.choose(run.first)
        step = torch.compile(greedy.step, fullgraph=True, dynamic=False, backend="eager")
        module.go_on(module.Steps(run, step), 6, greedy.ended)
    torch.compiler.reset()
    result = generate(network, [[3, 4]], Options(max_tokens=6))[0]
    assert [token for token in greedy.written[0].tolist() if token not in (END, -1)] == result.ids


def test_a_bucket_runs_once_as_it_is_and_then_as_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does, with a graph that only remembers what it would replay."""
    network = tiny("decoder")
    monkeypatch.setattr(module, "BUCKET", 8)
    told: list[str] = []

    def capture(step: partial[None], pool: object) -> SimpleNamespace:
        seen = step.args[0]
        told.append(f"capture {seen.sight.shape[2]}")
        return SimpleNamespace(replay=lambda: (told.append("replay"), greedy.step(seen)))

    def plainly(seen: Seen) -> None:
        told.append("plain")
        greedy.step(seen)

    monkeypatch.setattr(module, "capture", capture)
    with torch.inference_mode():
        run = StaticRun(start(network, [[3, 4, 5, 6]], Options(max_tokens=8)), 8)  # type: ignore[arg-type]
        greedy = module.Greedy(run, (), 8)
        greedy.choose(run.first)
        steps = module.Steps(run, plainly)
        steps.cuda = True
        module.go_on(steps, 8, greedy.ended)
    # Four slots hold the prompt, four more fill the first bucket, and three steps are left for the next one.
    assert told == ["plain", "capture 8", "replay", "replay", "replay", "plain", "capture 16", "replay", "replay"]
    network.config = replace(network.config, end=())
    assert greedy.written[0].tolist() == generate(network, [[3, 4, 5, 6]], Options(max_tokens=8))[0].ids


def test_rows_that_ended_write_nothing_more() -> None:
    network = tiny("decoder")
    with torch.inference_mode():
        run = start(network, PROMPTS, Options(max_tokens=9))  # type: ignore[arg-type]
        first = generate(network, PROMPTS, Options(max_tokens=9))[0].ids[2]
        written = module.write_greedy(run, (first,), 9)
    row = written.tokens[0].tolist()
    place = row.index(first)
    assert row[place + 1 :] == [-1] * (8 - place)
    assert not written.logprobs[0, place + 1 :].any()
