"""Decoding with captured steps and choices on the host writes what the plain loop writes (here without graphs)."""

from typing import Any

import pytest
import torch
from decode_models import tiny
from replayed import Replayed

from qkv.decode import GenerationOptions
from qkv.decode.filters import has_stateless_filters
from qkv.decode.gpu import graph_runner as graph_run
from qkv.decode.gpu import graphs as module
from qkv.decode.gpu.graph_runner import GraphRunner
from qkv.decode.loop import GenerationCall, decode_loop
from qkv.decode.result import GenerationResult
from qkv.decode.runner import make_runner
from qkv.models import Network

PROMPTS = [[3, 4, 5, 6], [7], [8, 9]]


@pytest.fixture(autouse=True)
def replaying(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (module, graph_run):
        monkeypatch.setattr(name, "capture", Replayed)
    monkeypatch.setattr(Replayed, "made", 0)


def results(
    network: Any, options: GenerationOptions, captured: bool, prompts: list[list[int]] = PROMPTS
) -> list[GenerationResult]:
    with torch.inference_mode():
        run: Any = make_runner(network, prompts, options)
        if captured:
            run = GraphRunner(run, options.max_tokens)
            run.steps.cuda = True
        return decode_loop(run, GenerationCall(network, prompts, options))


@pytest.mark.parametrize("bucket", [8, 256])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 1.3, "seed": 5},
        {"temperature": 0.9, "top_k": 4, "seed": 2, "logprobs": 2},
        {"temperature": 1.1, "top_p": 0.8, "min_p": 0.02, "suppress_tokens": (4, 7), "seed": 3},
        {"repetition_penalty": 1.7, "no_repeat_ngram_size": 2, "min_tokens": 3},
        {"temperature": 1.0, "repetition_penalty": 1.2, "seed": 1},
        {"max_tokens": 1},
    ],
)
def test_captured_steps_write_what_plain_ones_write(
    network: Network, asked: dict[str, Any], bucket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLOTS_PER_BUCKET", bucket)
    options = GenerationOptions(**{"max_tokens": 20, **asked})
    plain, captured = (results(network, options, way) for way in (False, True))
    assert (Replayed.made > 0) == (max(len(r.ids) for r in captured) > 2)
    assert [(r.ids, r.finish_reason) for r in captured] == [(r.ids, r.finish_reason) for r in plain]
    assert [r.score for r in captured] == pytest.approx([r.score for r in plain], abs=1e-9)
    for mine, theirs in zip(captured, plain, strict=True):
        assert [one.id for one in mine.logprobs] == [one.id for one in theirs.logprobs]
        assert [list(one.alternatives) for one in mine.logprobs] == [list(one.alternatives) for one in theirs.logprobs]


@pytest.mark.parametrize(
    ("asked", "same"),
    [({"temperature": 0.7, "top_k": 3, "top_p": 0.9, "suppress_tokens": (3,)}, True),
     ({"no_repeat_ngram_size": 2}, False), ({"min_tokens": 2}, False), ({"repetition_penalty": 1.1}, False),
     ({"logits_processors": (lambda x, tokens: x + 0 * tokens.view(-1)[0],)}, False)],
)  # fmt: skip
def test_choices_are_captured_where_filters_look_at_logits_alone(asked: dict[str, Any], same: bool) -> None:
    network, run = tiny("decoder"), None
    options = GenerationOptions(max_tokens=9, **{"temperature": 1.0, "seed": 1, **asked})
    with torch.inference_mode():
        run = GraphRunner(make_runner(network, PROMPTS, options), 9)
        run.steps.cuda = True
        decode_loop(run, GenerationCall(network, PROMPTS, options))
    assert has_stateless_filters(options) == same
    assert (run.selection_graph is not None) == same


def test_rows_that_end_leave_the_others_as_they_are() -> None:
    """Some end at different steps, some not: those that stay are written as if alone."""
    network, options = tiny("decoder", seed=2), GenerationOptions(max_tokens=30, temperature=5.0, seed=3)
    together = results(network, options, True)
    lengths = {len(r.ids) for r in together}
    assert len(lengths) > 1
    assert [r.ids for r in together] == [r.ids for r in results(network, options, False)]
    assert together[0].ids == results(network, options, True, PROMPTS[:1])[0].ids
