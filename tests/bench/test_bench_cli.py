"""`qkv bench`: a table, JSON, a picture, and a clear line for each mistake."""

import json
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_runs import tiny as tiny_recipe
from fault_runs import train
from prepare_samples import sample_files
from rich.console import Console

import qkv
from qkv import UsageError, cli
from qkv.blocks import HeadConfig
from qkv.models.tables import presets
from qkv.models.tables.summary import summarise_model
from qkv_bench import display as shown
from qkv_bench.limits import MachineLimits
from qkv_bench.machine import check_memory, choose_device, choose_dtype, free_memory, machine_name
from qkv_bench.throughput import BenchPoint, BenchResult, PrecisionBench
from qkv_bench.training import run_training_bench

machine = sys.modules["qkv_bench.machine"]
CPU = torch.device("cpu")
Make = Callable[..., qkv.Model]


@pytest.fixture(scope="module")
def folder(tiny: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "model"
    tiny("decoder").save(path)
    return path


def says(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, *words: str) -> None:
    assert cli.run_command(["bench", *arguments]) == code
    caught = capsys.readouterr()
    assert "Traceback" not in caught.err
    assert all(word in caught.err for word in words), caught.err
    assert not caught.out


# ── The verb ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("quick")
def test_a_folder_is_measured_and_drawn(folder: Path, tmp_path: Path, run_qkv: Any) -> None:
    picture = tmp_path / "new" / "bench.svg"
    arguments = ["bench", str(folder), "--device", "cpu", "--seconds", "0.3", "--json", "--picture", str(picture)]
    values = json.loads(run_qkv(arguments).out)
    assert values["parameters"] == sum(one.numel() for one in qkv.load(folder).network.parameters())
    assert values["picture"] == str(picture)
    assert {point["kind"] for point in values["points"]} == {"prefill", "decode", "engine"}
    assert [one["precision"] for one in values["precisions"]] == ["float32", "bfloat16", "int8", "int4"]
    sizes = [one["weight_bytes"] for one in values["precisions"]]
    assert sizes[0] == 2 * sizes[1] > sizes[2], "random models of width 16 have no groups of 32: int4 is int8 there"
    assert values["load_seconds"] > 0 < values["first_token_seconds"]
    assert ET.parse(picture).getroot().tag.endswith("svg")


@pytest.mark.usefixtures("quick")
def test_a_preset_is_measured_with_random_weights(run_qkv: Any) -> None:
    out = run_qkv(["bench", "bert-tiny", "--device", "cpu", "--seconds", "0.2", "--int8"]).out
    assert "bert-tiny   encoder-only, 4.4 million parameters" in out
    assert "texts/s" in out
    assert "int8 and float32" in out


@pytest.mark.usefixtures("quick")
def test_the_type_is_that_of_the_weights_unless_another_is_asked_for(
    folder: Path, tmp_path: Path, run_qkv: Any
) -> None:
    double = tmp_path / "double"
    model = qkv.load(folder, dtype="float64")
    model.save(double)
    for more, dtype in (([], "float64"), (["--dtype", "float32"], "float32")):
        captured = run_qkv(["bench", str(double), "--device", "cpu", "--seconds", "0.1", "--json", *more])
        assert json.loads(captured.out)["dtype"] == dtype


@pytest.mark.usefixtures("quick")
def test_a_run_is_measured_before_its_end(tmp_path: Path, run_qkv: Any, caplog: pytest.LogCaptureFixture) -> None:
    sample_files(tmp_path)
    keys = {"steps": 2, "num_workers": 0, "micro_batch_tokens": 0, "ema_decay": 0.0, "save_every": 1, "eval_every": 2}
    recipe = tiny_recipe(tmp_path, "run", "causal_lm", train=keys)
    train(recipe)
    parameters = sum(one.numel() for one in qkv.load(recipe.run).network.parameters())
    for name in ("config.json", "model.safetensors"):  # as if it had been stopped
        (Path(recipe.run) / name).unlink()
    captured = run_qkv(["bench", recipe.run, "--device", "cpu", "--seconds", "0.1", "--json"])
    assert json.loads(captured.out)["parameters"] == parameters
    assert "has not finished" in caplog.text


def test_help_shows_how(run_qkv: Any) -> None:
    assert "qkv bench gpt2" in run_qkv(["bench", "--help"]).out


# ── Mistakes ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_mistakes_are_one_clear_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cpu = ["--device", "cpu"]
    says(capsys, ["gtp2"], 2, "no such folder, preset or bundled model", "did you mean 'gpt2'?")
    says(capsys, [str(tmp_path / "gone")], 2, str(tmp_path / "gone"))
    says(capsys, ["gpt2", "--device", "gpu"], 2, "--device gpu: no such device")
    says(capsys, ["gpt2", "--device", "meta"], 2, "does not support this device")
    says(capsys, ["gpt2", *cpu, "--dtype", "bflot16"], 2, "--dtype bflot16", "did you mean 'bfloat16'?")
    says(capsys, [str(folder), "--seconds", "0"], 2, "--seconds must be > 0, got 0")
    says(capsys, [str(folder), "--seconds", "nan"], 2, "--seconds must be > 0")
    says(capsys, [str(folder), "--picture", "bench.png"], 2, "SVG")
    (tmp_path / "folder.svg").mkdir()
    says(capsys, [str(folder), "--picture", str(tmp_path / "folder.svg")], 2, "this is a folder")
    says(capsys, [], 2, "MODEL")


def test_a_machine_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    says(capsys, ["gpt2", "--device", "cuda"], 2, "torch sees no GPU on this machine", "--device cpu")
    assert choose_device("auto") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    says(capsys, ["gpt2", "--device", "cuda:2"], 2, "torch sees 2 on this machine: cuda:0 to cuda:1")
    assert choose_device("auto").type == "cuda"
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16


def test_a_model_that_does_not_fit_is_refused_before_it_is_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "free_memory", lambda device: 10**10)
    says(
        capsys,
        ["gpt3-175b", "--device", "cpu"],
        1,
        "gpt3-175b needs 698.4 GB of memory in float32",
        "10.0 GB are free on cpu",
    )
    monkeypatch.setattr(machine, "free_memory", lambda device: 100)
    says(capsys, [str(folder), "--device", "cpu"], 1, "are free on cpu", "--dtype bfloat16")


def test_int8_needs_room_for_both() -> None:
    config = presets.find_preset("bert-tiny")
    size = summarise_model(config).weight_bytes["float32"]
    for free, precision, fits in ((size, None, True), (size, "int8", False), (size * 5 // 4, "int8", True)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(machine, "free_memory", lambda device, free=free: free)
            if fits:
                check_memory("bert-tiny", config, torch.float32, CPU, precision=precision)
            else:
                with pytest.raises(qkv.errors.QkvError, match="and int8"):
                    check_memory("bert-tiny", config, torch.float32, CPU, precision=precision)


def test_a_cpu_that_dies_of_bfloat16_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "supports_bfloat16", lambda: False)
    says(capsys, ["bert-tiny", "--device", "cpu", "--dtype", "bfloat16"], 1, "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16")


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(qkv.errors.QkvError, match=r"cannot be written .*; choose another file"):
        shown.draw_bench(found(), tmp_path / "file" / "bench.svg")


def test_the_machine_tells_its_memory_and_name() -> None:
    free = free_memory(CPU)
    assert free is None or free > 2**20
    assert machine_name(CPU)
    assert free_memory(torch.device("mps")) is None


# ── What is shown ────────────────────────────────────────────────────────────────────────────────────────────────


def point(kind: str, batch: int, seconds: float, beams: int = 1) -> BenchPoint:
    tokens, length = batch, 16
    return BenchPoint(kind, batch, beams, length, seconds, tokens, 10**8, 10**9 * batch, 100.0 * batch, "bandwidth")  # type: ignore[arg-type]


def found(model: str = "mine", family: str = "seq2seq") -> BenchResult:
    points = [point("prefill", 1, 0.05), point("decode", 1, 0.02), point("decode", 2, 0.0205)]
    points.append(point("search", 1, 0.1, beams=4))
    limits = MachineLimits(1e11, 2e10, 3e10)
    return BenchResult(
        model, family, 10**6, 4 * 10**6, "A <CPU> & Co", "cpu", 2, "float32", None, "2.13", limits, points, ["a note"]
    )


def test_the_table_shows_everything_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    shown.print_bench(found(), Console(width=80, force_terminal=False))
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    for words in ("A <CPU> & Co (cpu, 2 threads), float32", "100.0 GFLOP/s, 20.0 GB/s", "beam 4", "a note"):
        assert words in out
    row = next(line for line in out.splitlines() if line.startswith("decode") and " 2 " in line)
    assert row.split()[:7] == ["decode", "2", "16", "97.6", "200", "49", "%"]
    assert "…" not in out


def test_precisions_have_a_table_of_their_own_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    result = found()
    result.precisions = [
        PrecisionBench(name, size, point("decode", 1, 0.02), point("prefill", 1, 0.05))  # type: ignore[arg-type]
        for name, size in (("float32", 538_000_000), ("int4", 95_000_000))
    ]
    result.load_seconds = 1.25
    shown.print_bench(result, Console(width=80, force_terminal=False))
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    row = next(line for line in out.splitlines() if line.startswith("int4"))
    assert row.split() == ["int4", "95.0", "MB", "50.0", "100", "50", "%", "20.0", "100", "20", "%"]
    assert "first answer: 1.25 s to load the model, 50.0 ms to the first token" in out


def test_a_name_does_nothing_to_the_terminal_or_the_picture(capsys: pytest.CaptureFixture[str]) -> None:
    odd = found(model="</svg>\x1b[31m[bold]")
    shown.print_bench(odd, Console(width=80, force_terminal=False))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[bold]" in out
    ET.fromstring(shown.bench_svg(odd))


def test_the_picture_holds_every_point_twice_where_it_has_a_batch() -> None:
    root = ET.fromstring(shown.bench_svg(found()))
    circles = root.findall(".//{http://www.w3.org/2000/svg}circle")
    kinds = 3  # in the legend
    assert len(circles) == kinds + 4 + 3
    words = " ".join(text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text"))
    assert all(one in words for one in ("mine", "FLOP/s", "tokens/s", "memory 30.0 GB/s", "beam 4", "batch"))
    for circle in circles:
        assert 0 < float(circle.attrib["cx"]) < shown.WIDTH
        assert 0 < float(circle.attrib["cy"]) < shown.HEIGHT


def test_a_single_point_is_drawn() -> None:
    one = found()
    del one.points[1:]
    ET.fromstring(shown.bench_svg(one))


# ── Training steps ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("family", "head", "objective"),
    [
        ("decoder", "lm", "causal_lm"),
        ("seq2seq", "lm", "seq2seq"),
        ("encoder", "mlm", "masked_lm"),
        ("encoder", "classify", "classification"),
        ("encoder", "tag", "tagging"),
        ("encoder", "embed", "contrastive"),
    ],
)
def test_training_steps_are_measured(tiny: Make, family: str, head: str, objective: str) -> None:
    config = tiny(family).config
    outputs = {"classify": 3, "tag": 3}.get(head, next(iter(config.stacks.values())).vocab_size)
    config = replace(config, head=HeadConfig(kind=head, outputs=outputs))  # type: ignore[arg-type]
    result = run_training_bench("tiny", qkv.new(config).network, 0.01)
    assert (result.objective, result.precision) == (objective, "float32")
    assert result.tokens_per_second > 0 < result.flops_per_step
    assert sum(result.profile.values()) == pytest.approx(1)
    assert result.profile["matrix products"] > 0


def test_a_training_bench_is_printed(folder: Path, run_qkv: Any) -> None:
    arguments = ["bench", str(folder), "--train", "--device", "cpu", "--seconds", "0.01"]
    out = run_qkv(arguments).out
    assert "tokens/s" in out
    assert "where the time goes" in out
    values = json.loads(
        run_qkv(["bench", str(folder), "--train", "--seconds", "0.01", "--device", "cpu", "--json"]).out
    )
    assert values["fraction_of_limit"] == pytest.approx(
        values["flops_per_step"] / values["step_seconds"] / values["max_flops_per_second"]
    )


def test_a_training_bench_refuses_what_it_cannot_measure(
    tiny: Make, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    says(capsys, [str(folder), "--train", "--int8"], 2, "--train takes no --int8")
    config = replace(tiny("encoder").config, head=HeadConfig(kind="span", outputs=2))
    with pytest.raises(UsageError, match="this one has span"):
        run_training_bench("tiny", qkv.new(config).network, 0.01)
