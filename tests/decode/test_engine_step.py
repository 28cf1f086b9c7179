"""The engine's step in frames of fixed shape: what each request alone would get, replayed or not."""

from copy import deepcopy
from random import Random
from typing import Any

import pytest
import torch
from engine_schedules import OPTIONS, PROMPTS, alone, draw_plan, letters, small
from replayed import Replayed
from test_engine_schedules import check
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.decode import Engine, Options, engine_step, generate
from qkv.decode.engine_step import EngineSteps

KINDS = ("decoder", "decoder-learned", "decoder-alibi", "decoder-grouped", "seq2seq", "seq2seq-t5")


@pytest.fixture(params=[False, True], ids=["as it is", "replayed"])
def framed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[EngineSteps]:
    """Engines whose steps run in frames, small ones, so that several are needed."""
    made: list[EngineSteps] = []
    usual = Engine.__init__

    def init(self: Engine, *arguments: Any, **options: Any) -> None:
        usual(self, *arguments, **options)
        self._frames = EngineSteps(self.network, self.pages)  # type: ignore[arg-type]
        self._frames.pool = object() if request.param else None
        made.append(self._frames)

    monkeypatch.setattr(Engine, "__init__", init)
    monkeypatch.setattr(engine_step, "capture", Replayed)
    monkeypatch.setattr(engine_step, "SLOTS", 6)
    monkeypatch.setattr(engine_step, "SOURCE", 3)
    monkeypatch.setattr(engine_step, "PROMPT", 2)
    monkeypatch.setattr(engine_step, "MOST", 16)
    monkeypatch.setattr(Replayed, "made", 0)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_random_schedules_write_what_each_request_alone_gets(kind: str, framed: list[EngineSteps]) -> None:
    random = Random(kind)
    for _ in range(25):
        check(kind, draw_plan(kind, random))
    frames = [frame for steps in framed for frame in steps.frames.values()]
    assert len({frame.table.shape for frame in frames}) > 3, "many shapes"
    assert any(frame.fed.shape[2] > 1 for frame in frames), "prompts too"
    if framed[0].pool is not None:
        assert Replayed.made > 10


def test_frames_are_made_once_for_texts_that_fit_them(framed: list[EngineSteps]) -> None:
    engine = Engine(small("decoder"), letters(), rows=4, pages=60, page_size=2)
    options = Options(max_tokens=9, banned=(2,))
    prompts = [5, 9, 4], [8, 6, 12], [10, 4, 4]
    requests = [engine.submit(prompt, options) for prompt in prompts]
    engine.run()
    assert sorted(framed[0].frames) == [(4, 1, 3, 0), (4, 1, 6, 0), (4, 4, 3, 0)], "rows, tokens, pages, rounded up"
    assert framed[0].frames[4, 4, 3, 0].fed[1].tolist() == [[0, 1, 1, 1]] * 3 + [[0] * 4], "segments, flush right"
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.ids == generate(small("decoder"), [prompt], options, letters())[0].ids
    assert engine.pages.keys[0][0].abs().sum() == 0, "nothing is written to the page that is nobody's"


def test_the_frame_that_was_not_used_for_longest_makes_way(
    framed: list[EngineSteps], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_step, "FRAMES", 2)
    engine = Engine(small("decoder"), letters(), rows=4, pages=60, page_size=2)
    options = Options(max_tokens=9, banned=(2,))
    for prompt in ([5, 9, 4], [8, 6, 12, 5, 6], [8, 6, 12, 4, 4, 9, 9]):
        request = engine.submit(prompt, options)
        engine.run()
        assert request.ids == generate(small("decoder"), [prompt], options, letters())[0].ids
        assert len(framed[0].frames) == 2
        assert list(framed[0].frames)[-1][1] == 1, "the newest is the one of single tokens"


def test_a_text_whose_source_was_longer_leaves_nothing_behind(framed: list[EngineSteps]) -> None:
    """A frame that held other sources shows none of them, not even numbers that are none."""
    network, options = small("seq2seq"), Options(max_tokens=6, banned=(2,))
    engine = Engine(network, letters(), rows=2, pages=20, page_size=4)
    first = [engine.submit(source, options) for source in ([5, 9, 4, 4, 11, 8], [6, 4])]
    engine.run()
    for frame in framed[0].frames.values():
        assert frame.cross is not None
        with torch.inference_mode():
            for tensor in (*frame.cross.keys, *frame.cross.values):
                tensor.fill_(float("nan"))
        frame.holds = engine_step.nothing
    second = [engine.submit(source, options) for source in ([7, 7, 4, 5], [12])]
    engine.run()
    for request, source in zip([*first, *second], ([5, 9, 4, 4, 11, 8], [6, 4], [7, 7, 4, 5], [12]), strict=True):
        assert request.result is not None
        assert request.result.ids == generate(network, [source], options, letters())[0].ids


class FromHost(TorchDispatchMode):
    """Counts tensors that are made of numbers in Python. On a GPU each is a copy, which no graph can hold."""

    seen = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += function is torch.ops.aten.lift_fresh.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_makes_no_tensor_of_numbers_in_python(kind: str, framed: list[EngineSteps]) -> None:
    engine = Engine(small(kind), letters(), rows=2, pages=20, page_size=4)
    request = engine.submit([5, 9, 4, 4], Options(max_tokens=6, banned=(2,)))
    engine.run()
    assert request.result is not None
    with torch.inference_mode(), FromHost() as count:
        torch.tensor([1.0])
        assert count.seen == 1, "it counts"
        for frame in framed[0].frames.values():
            frame._step()
    assert count.seen == 1


def test_on_a_cpu_there_are_none() -> None:
    assert Engine(small("decoder"), letters())._frames is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_steps_are_captured(kind: str) -> None:
    """Real graphs, in float64, against what a CPU writes for each alone; texts come one by one."""
    network = deepcopy(small(kind)).to("cuda")
    engine = Engine(network, letters(), rows=4, pages=60, page_size=4)
    asked = [(prompt, options) for prompt in range(0, len(PROMPTS), 2) for options in (0, 2, 4, 5, 7, 10)]
    requests = []
    for prompt, options in asked:
        requests.append(engine.submit(PROMPTS[prompt], OPTIONS[options]))
        engine.step()
    engine.run()
    for request, ask in zip(requests, asked, strict=True):
        assert request.ids == alone(kind, *ask).ids
    assert engine._frames is not None
    assert any(frame.graph is not None for frame in engine._frames.frames.values())
