"""Decoding with static caches and all state on the device writes what the plain loop writes (here without graphs)."""

import pytest
import torch
from decode_models import END, tiny

from qkv.decode import Options, generate
from qkv.decode import static as module
from qkv.decode.generate import _write_static, start
from qkv.models import Network

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


def test_a_step_sees_its_bucket_alone() -> None:
    """The views that a step is shown share memory with the cache, and end with the bucket."""
    network = tiny("decoder")
    with torch.inference_mode():
        run = start(network, PROMPTS, Options(max_tokens=40))  # type: ignore[arg-type]
        steps = module.Steps(run, (END,), 40)
        seen = module.StaticCache(steps.cache, 16)
    assert seen.length == 16
    assert seen.keys[0].data_ptr() == steps.cache.keys[0].data_ptr()
    assert seen.cursor is steps.cache.cursor


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
