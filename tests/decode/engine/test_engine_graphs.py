"""The engine's step in frames of fixed shape: what each request alone would get, replayed or not."""

from copy import deepcopy
from random import Random
from typing import Any

import pytest
import torch
from engine_schedules import OPTIONS, PROMPTS, alone, check, draw_plan, letters, small
from replayed import Replayed
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.decode import Engine, GenerationOptions, generate
from qkv.decode.engine import graphs as engine_step
from qkv.decode.engine.graphs import EngineGraphs

KINDS = ("decoder", "decoder-learned", "decoder-alibi", "decoder-grouped", "seq2seq", "seq2seq-t5")


@pytest.fixture(params=["as it is", "replayed", "replayed, the host one step behind"])
def framed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[EngineGraphs]:
    """Engines whose steps run in frames, small ones, so that several are needed."""
    made: list[EngineGraphs] = []
    usual = Engine.__init__

    def init(self: Engine, *arguments: Any, **options: Any) -> None:
        usual(self, *arguments, **options)
        graphs = self._model.graphs = EngineGraphs(self.network, self.page_pool, self._scheduler.max_sequences)  # type: ignore[arg-type]
        graphs.pool = None if request.param == "as it is" else object()
        self._max_pending_steps = int("behind" in request.param)
        made.append(graphs)

    monkeypatch.setattr(Engine, "__init__", init)
    monkeypatch.setattr(engine_step, "capture", Replayed)
    monkeypatch.setattr(engine_step, "SLOT_MULTIPLE", 6)
    monkeypatch.setattr(engine_step, "SOURCE_MULTIPLE", 3)
    monkeypatch.setattr(engine_step, "PROMPT_MULTIPLE", 2)
    monkeypatch.setattr(engine_step, "MAX_BUCKET_TOKENS", 16)
    monkeypatch.setattr(Replayed, "made", 0)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_random_schedules_write_what_each_request_alone_gets(kind: str, framed: list[EngineGraphs]) -> None:
    random = Random(kind)
    for _ in range(25):
        check(kind, draw_plan(kind, random))
    frames = [frame for steps in framed for frame in steps.buckets.values()]
    assert len({frame.shape for frame in frames}) > 3, "many shapes"
    assert any(frame.shape[1] > 1 for frame in frames), "prompts too"
    if framed[0].pool is not None:
        assert Replayed.made > 10


def test_frames_are_made_once_for_texts_that_fit_them(framed: list[EngineGraphs]) -> None:
    engine = Engine(small("decoder"), letters(), max_sequences=4, num_pages=60, page_size=2)
    options = GenerationOptions(max_tokens=9, suppress_tokens=(2,))
    prompts = [5, 9, 4], [8, 6, 12], [10, 4, 4]
    requests = [engine.submit(prompt, options) for prompt in prompts]
    engine.run()
    assert sorted(framed[0].buckets) == [(4, 1, 3, 0), (4, 1, 6, 0), (4, 4, 3, 0)], "rows, tokens, pages, rounded up"
    document_ids = framed[0].buckets[4, 4, 3, 0].inputs[:, 5:9]
    assert document_ids.tolist() == [[0, 1, 1, 1]] * 3 + [[0] * 4], "document ids, flush right"
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.ids == generate(small("decoder"), [prompt], options, letters())[0].ids
    assert engine.page_pool.keys[0][0].abs().sum() == 0, "nothing is written to the page that is nobody's"


def test_the_frame_that_was_not_used_for_longest_makes_way(
    framed: list[EngineGraphs], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_step, "MAX_BUCKETS", 2)
    engine = Engine(small("decoder"), letters(), max_sequences=4, num_pages=60, page_size=2)
    options = GenerationOptions(max_tokens=9, suppress_tokens=(2,))
    for prompt in ([5, 9, 4], [8, 6, 12, 5, 6], [8, 6, 12, 4, 4, 9, 9]):
        request = engine.submit(prompt, options)
        engine.run()
        assert request.ids == generate(small("decoder"), [prompt], options, letters())[0].ids
        assert len(framed[0].buckets) == 2
        assert list(framed[0].buckets)[-1][1] == 1, "the newest is the one of single tokens"


def test_a_text_whose_source_was_longer_leaves_nothing_behind(framed: list[EngineGraphs]) -> None:
    """A frame that held other sources shows none of them, not even numbers that are none."""
    network, options = small("seq2seq"), GenerationOptions(max_tokens=6, suppress_tokens=(2,))
    engine = Engine(network, letters(), max_sequences=2, num_pages=20, page_size=4)
    first = [engine.submit(source, options) for source in ([5, 9, 4, 4, 11, 8], [6, 4])]
    engine.run()
    for frame in framed[0].buckets.values():
        assert frame.cross_cache is not None
        with torch.inference_mode():
            for tensor in (*frame.cross_cache.keys, *frame.cross_cache.values):
                tensor.fill_(float("nan"))
        frame.current_sources = engine_step.dead_weakref
    second = [engine.submit(source, options) for source in ([7, 7, 4, 5], [12])]
    engine.run()
    for request, source in zip([*first, *second], ([5, 9, 4, 4, 11, 8], [6, 4], [7, 7, 4, 5], [12]), strict=True):
        assert request.result.ids == generate(network, [source], options, letters())[0].ids


class FromHost(TorchDispatchMode):
    """Counts tensors that are made of numbers in Python. On a GPU each is a copy, which no graph can hold."""

    seen = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += function is torch.ops.aten.lift_fresh.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_makes_no_tensor_of_numbers_in_python(kind: str, framed: list[EngineGraphs]) -> None:
    engine = Engine(small(kind), letters(), max_sequences=2, num_pages=20, page_size=4)
    request = engine.submit([5, 9, 4, 4], GenerationOptions(max_tokens=6, suppress_tokens=(2,)))
    engine.run()
    assert request.result is not None
    with torch.inference_mode(), FromHost() as count:
        torch.tensor([1.0])
        assert count.seen == 1, "it counts"
        for frame in framed[0].buckets.values():
            frame._run()
    assert count.seen == 1


def test_on_a_cpu_there_are_none() -> None:
    assert Engine(small("decoder"), letters())._model.graphs is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_steps_are_captured(kind: str) -> None:
    """Real graphs, in float64, against what a CPU writes for each alone; texts come one by one."""
    network = deepcopy(small(kind)).to("cuda")
    engine = Engine(network, letters(), max_sequences=4, num_pages=60, page_size=4)
    asked = [(prompt, options) for prompt in range(0, len(PROMPTS), 2) for options in (0, 2, 4, 5, 7, 10)]
    requests = []
    for prompt, options in asked:
        requests.append(engine.submit(PROMPTS[prompt], OPTIONS[options]))
        engine.step()
    engine.run()
    for request, ask in zip(requests, asked, strict=True):
        assert request.ids == alone(kind, *ask).ids
    assert engine._model.graphs is not None
    assert any(frame.graph is not None for frame in engine._model.graphs.buckets.values())
