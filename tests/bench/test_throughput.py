"""Measuring, in its structure: what is measured, beside which limits, and when it stops. No time is looked at."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import qkv
from qkv.decode import GenerationOptions, generate
from qkv_bench.cost import Cost
from qkv_bench.limits import MachineLimits, best_time, measure_limits, time_call
from qkv_bench.throughput import BenchPoint, BenchResult, is_out_of_memory, run_bench, without_eos

CPU = torch.device("cpu")
bench_module = sys.modules["qkv_bench.throughput"]
Make = Callable[..., qkv.Model]


def measured(model: qkv.Model, **more: Any) -> BenchResult:
    return run_bench("tiny", model.network, 123, **{"seconds": 0.4, **more})


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("family", "head", "kinds"),
    [
        ("decoder", "lm", ["prefill", "decode", "engine"]),
        ("seq2seq", "lm", ["prefill", "decode", "search"]),
        ("encoder", "label", ["prefill", "encode"]),
        ("decoder", "label", ["prefill", "encode"]),
    ],
)
@pytest.mark.parametrize("precision", [None, "int8", "int4"])
def test_every_family_is_measured(tiny: Make, family: str, head: str, kinds: list[str], precision: Any) -> None:
    model = tiny(family, head)
    found = measured(model.quantize(precision) if precision else model, precision=precision)
    assert list(dict.fromkeys(point.kind for point in found.points)) == kinds
    assert [point.length for point in found.points_of_kind("prefill")][:1] == [4]
    for kind in kinds[1:]:
        batches = [point.batch for point in found.points if point.kind == kind]
        assert batches == ([8, 32, 128] if kind == "engine" else [1, 2, 4])[: len(batches)]
        assert batches
    for point in found.points:
        assert (
            min(
                point.seconds,
                point.tokens_per_second,
                point.max_tokens_per_second,
                point.fraction_of_limit,
                point.intensity,
            )
            > 0
        )
        assert point.tokens == point.batch * (point.length if point.kind in ("prefill", "encode") else 1)
        assert point.beams == (4 if point.kind == "search" else 1)
    assert (found.family, found.parameters, found.dtype, found.precision) == (family, 123, "float32", precision)
    values = json.loads(json.dumps(found.to_dict()))
    assert values["limits"]["bandwidth"] == max(found.limits.memory_bandwidth, found.limits.weights_bandwidth)
    assert values["points"][0]["fraction_of_limit"] == found.points[0].fraction_of_limit


@pytest.mark.usefixtures("quick")
def test_a_model_with_few_positions_is_measured_within_them(tiny: Make) -> None:
    for family in ("decoder", "seq2seq", "encoder"):
        found = measured(tiny(family, position="learned", max_positions=6))
        assert found.points
        assert all(point.length <= 6 for point in found.points)


@pytest.mark.usefixtures("quick")
def test_it_stops_when_the_time_is_over(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time at all everything is tried once, and what was left out is told."""
    found = measured(tiny("seq2seq"), seconds=1e-9)
    assert [(point.kind, point.batch) for point in found.points] == [("prefill", 1), ("decode", 1), ("search", 1)]
    assert [note.split(":")[0] for note in found.notes] == ["prefill", "decode", "search"]
    assert all("time ran out" in note for note in found.notes)


@pytest.mark.usefixtures("quick")
def test_a_batch_that_does_not_fit_ends_the_sweep(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    real = bench_module.Bencher._fits_memory
    monkeypatch.setattr(
        bench_module.Bencher, "_fits_memory", lambda self, batch, kind: batch < 2 and real(self, batch, kind)
    )
    found = measured(tiny("decoder"), seconds=5.0)
    assert [point.batch for point in found.points_of_kind("decode")] == [1]
    assert "decode: a batch of 2 does not fit into memory" in found.notes


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
def test_memory_that_runs_out_ends_the_sweep(tiny: Make, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    real = bench_module.generate

    def failing(network: Any, prompts: Any, options: Any) -> Any:
        if len(prompts) > 1:
            raise error
        return real(network, prompts, options)

    monkeypatch.setattr(bench_module, "generate", failing)
    found = measured(tiny("decoder"), seconds=5.0)
    assert [point.batch for point in found.points_of_kind("decode")] == [1]
    assert "decode: a batch of 2 does not fit into memory" in found.notes


@pytest.mark.usefixtures("quick")
def test_any_other_error_is_not_swallowed(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(bench_module, "generate", failing)
    with pytest.raises(RuntimeError, match="shapes"):
        measured(tiny("decoder"))
    assert not is_out_of_memory(RuntimeError("shapes"))


@pytest.mark.usefixtures("quick")
def test_what_is_going_on_is_told(tiny: Make) -> None:
    told: list[tuple[str, int, int]] = []
    measured(tiny("decoder"), report=lambda *one: told.append(one))
    assert [what for what, _, _ in told][:2] == ["limits of the machine", "prefill of 4 tokens"]
    assert any(what == "decode, batch 1" for what, _, _ in told)
    assert all(0 <= done < total for _, done, total in told)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_step_is_told_from_the_noise_of_reading(tiny: Make, noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where reading the prompts takes as long as fifty steps, so many are written that its noise counts little."""
    asked: list[int] = []
    monkeypatch.setattr(bench_module, "generate", lambda network, ids, options: asked.append(options.max_tokens))

    def timed(work: Callable[[], object], device: torch.device) -> float:
        work()
        slow = noise if asked[-1] == bench_module.SHORT_RUN_TOKENS else 0.0  # each of the shorter runs is disturbed
        return 0.1 + slow + 0.002 * asked[-1]

    monkeypatch.setattr(bench_module, "time_call", timed)
    model = tiny("decoder", max_positions=512)
    bench = measured(tiny("decoder"), seconds=1e-9)
    subject = bench_module.Bencher(without_eos(model.network), bench, lambda *_: None)
    subject.measure_decode(8, 1, 0.0)
    assert max(asked) > 50
    assert bench.points[-1].seconds == pytest.approx(0.002 - noise / bench_module.MAX_EXTRA_TOKENS)


@pytest.mark.usefixtures("quick")
def test_more_than_the_limit_is_told(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = MachineLimits(flops_per_second=1.0, memory_bandwidth=1.0, weights_bandwidth=1.0)
    monkeypatch.setattr(bench_module, "measure_limits", lambda *_, **__: slow)
    found = measured(tiny("decoder"), seconds=0.1)
    assert all(point.exceeds_limit for point in found.points)
    assert [note for note in found.notes if note.startswith("above 100 %")] == [bench_module.ABOVE_LIMIT_NOTE]
    monkeypatch.setattr(bench_module, "measure_limits", lambda *_, **__: MachineLimits(1e18, 1e18, 1e18))
    assert bench_module.ABOVE_LIMIT_NOTE not in measured(tiny("decoder"), seconds=0.1).notes


def test_a_text_never_ends_by_itself_while_it_is_measured(tiny: Make) -> None:
    model = tiny("decoder")
    assert model.network.head.out is not None
    with torch.no_grad():
        model.network.head.out.weight.zero_()
        model.network.head.out.weight[1] = 100.0 * torch.ones(16)
    options = GenerationOptions(max_tokens=5, suppress_tokens=())
    ended = [
        len(generate(network, [[n]], options)[0].ids)
        for network in (model.network, without_eos(model.network))
        for n in (3, 4, 5, 6)
    ]
    assert min(ended[:4]) < 5, "this model ends its texts"
    assert ended[4:] == [5] * 4
    assert model.network.config.eos_token_ids == (1,)
    assert without_eos(model.network).head is model.network.head


def test_a_decoder_without_a_start_token_can_begin(tiny: Make) -> None:
    assert without_eos(tiny("seq2seq").network).config.decoder_start_token_id == 0


# ── Limits ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_slower_of_reading_and_computing_is_the_limit() -> None:
    limits = MachineLimits(flops_per_second=100.0, memory_bandwidth=10.0, weights_bandwidth=5.0)
    assert limits.bandwidth == 10.0
    assert limits.ridge_point == 10.0
    assert limits.min_seconds(Cost(bytes=40, flops=100)) == (4.0, "bandwidth")
    assert limits.min_seconds(Cost(bytes=40, flops=900)) == (9.0, "arithmetic")
    assert MachineLimits(100.0, 10.0, 20.0).min_seconds(Cost(40, 100)) == (2.0, "bandwidth"), (
        "a cache is faster than memory"
    )


def test_a_point_tells_its_share() -> None:
    point = BenchPoint("decode", 4, 1, 16, 0.5, 4, 100, 300, 32.0, "bandwidth")
    assert (point.tokens_per_second, point.fraction_of_limit, point.intensity) == (8.0, 0.25, 3.0)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("dtype", "precision"),
    [(torch.float32, None), (torch.float64, None), (torch.float32, "int8"), (torch.float32, "int4")],
)
def test_limits_are_measured(dtype: torch.dtype, precision: Any) -> None:
    limits = measure_limits(CPU, dtype, precision=precision, weight_bytes=1000, seconds=0.02)
    assert min(limits.flops_per_second, limits.memory_bandwidth, limits.weights_bandwidth) > 0


def test_work_is_warmed_up_and_tried_twice() -> None:
    done: list[int] = []
    assert best_time(lambda: done.append(1), CPU, 0.0) > 0
    assert len(done) == 3
    assert time_call(lambda: None, CPU) > 0


def test_a_gpu_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is handed its work and does it later: its time counts only between two waits."""
    order: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: order.append("wait"))
    time_call(lambda: order.append("work"), torch.device("cuda"))
    assert order == ["wait", "work", "wait"]
