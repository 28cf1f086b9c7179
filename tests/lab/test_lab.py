"""Running claims: tables, results files, pictures, pages and the command."""

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv import cli
from qkv.errors import QkvError, UsageError
from qkv_lab.chart import draw_claim
from qkv_lab.claim import Chart, Check, Claim
from qkv_lab.claims.uses.tokenizers import spelling_bits
from qkv_lab.docs_pages import markdown_table, write_chapter
from qkv_lab.experiment import Experiment
from qkv_lab.loop import training_steps
from qkv_lab.markov import NUM_STATES, NUM_SUCCESSORS, write_markov_chain
from qkv_lab.registry import find_claim
from qkv_lab.run import ClaimResult, load_result, results_path, run_claim
from qkv_lab.scoring import score_tokens
from qkv_lab.table import Point, Table


@dataclass(frozen=True)
class Settings:
    """Settings of the claim of these tests."""

    offset: float = 1.0


def make_claim(calls: list[int], **changes: object) -> Claim:
    def run(experiment: Experiment) -> list[Point]:
        calls.append(experiment.seed)
        offset = experiment.settings.offset
        return [Point("loss", name, x, offset + experiment.seed + x) for name in ("a", "b") for x in (1, 2)]

    def check(table: Table) -> list[Check]:
        return [Check("grows", table.mean("loss", "a", 2) > table.mean("loss", "a", 1), "it does")]

    base = find_claim("score-scaling")
    settings = {"mini": Settings(), "small": Settings(), "full": Settings()}
    claim = replace(base, name="test", run=run, check=check, settings=settings, charts=(Chart(measure="loss", x="x"),))
    return replace(claim, **changes)  # type: ignore[arg-type]


def test_means_and_intervals_are_over_seeds() -> None:
    table = Table([[Point("m", "a", 1, value)] for value in (1.0, 2.0, 3.0)])
    assert table.mean("m", "a", 1) == 2.0
    assert table.half_interval("m", "a", 1) == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    with pytest.raises(KeyError, match="no series 'b'"):
        table.mean("m", "b", 1)


def test_differences_are_paired_by_seed() -> None:
    table = Table([[Point("m", "a", 1, 10.0 * seed + 1), Point("m", "b", 1, 10.0 * seed)] for seed in range(3)])
    assert table.difference("m", ("a", 1), ("b", 1)) == (1.0, 0.0)
    assert table.half_interval("m", "a", 1) > 1  # unpaired, the difference would be lost in the spread of the seeds


def test_finished_seeds_are_not_run_again(tmp_path: Path) -> None:
    calls: list[int] = []
    claim = make_claim(calls)
    run_claim(claim, seeds=2, folder=tmp_path)
    result = run_claim(claim, seeds=3, folder=tmp_path)
    assert calls == [0, 1, 2]
    assert load_result(claim, results_path(tmp_path, claim, "small")).points == result.points
    run_claim(claim, seeds=1, folder=tmp_path, again=True)
    assert calls == [0, 1, 2, 0]
    changed = make_claim(calls, settings=dict.fromkeys(("mini", "small", "full"), Settings(5.0)))
    run_claim(changed, seeds=1, folder=tmp_path)
    assert calls == [0, 1, 2, 0, 0]


def test_an_interrupted_run_keeps_its_finished_seeds(tmp_path: Path) -> None:
    claim = make_claim([])

    def fail(experiment: Experiment) -> list[Point]:
        if experiment.seed == 1:
            raise KeyboardInterrupt
        return list(claim.run(experiment))

    with pytest.raises(KeyboardInterrupt):
        run_claim(replace(claim, run=fail), seeds=3, folder=tmp_path)
    assert list(load_result(claim, results_path(tmp_path, claim, "small")).points) == [0]


def test_the_verdict_follows_the_first_check() -> None:
    def verdict(*holds: bool) -> str:
        claim = make_claim([], check=lambda table: [Check("a", one, "b") for one in holds])
        return run_claim(claim, seeds=1).verdict()

    assert verdict(True, True) == "holds"
    assert verdict(True, False) == "holds in part"
    assert verdict(False, True) == "does not hold"


def test_a_check_holds_only_if_it_holds_for_every_seed() -> None:
    def result(needs_all_seeds: bool) -> ClaimResult:
        def check(table: Table) -> list[Check]:
            mean = table.mean("loss", "a", 1)  # 2, 3, 4
            return [Check("above 2.5", mean > 2.5, f"{mean:g}", needs_all_seeds)]

        return run_claim(make_claim([], check=check), seeds=3)

    found = result(needs_all_seeds=False)
    assert found.checks() == [Check("above 2.5", False, "3 (in 2 of 3 seeds)", False, (False, True, True))]
    assert found.verdict() == "does not hold"
    assert found.to_dict()["checks"][0]["by_seed"] == (False, True, True)
    assert result(needs_all_seeds=True).verdict() == "holds", "an interval over seeds needs all of them"


def test_a_claim_runs_with_fresh_seeds(tmp_path: Path) -> None:
    calls: list[int] = []
    claim = make_claim(calls)
    assert sorted(run_claim(claim, seeds=2, first_seed=100, folder=tmp_path).points) == [100, 101]
    assert sorted(run_claim(claim, seeds=3, first_seed=99, folder=tmp_path).points) == [99, 100, 101]
    assert calls == [100, 101, 99]


def test_letters_spell_words_with_fewer_bits_if_they_look_back() -> None:
    texts = ["the cats sat on the mats with the other cats"]
    bits = [spelling_bits(["the", "cat"], texts, order) for order in (0, 1, 4)]
    assert bits[0] > bits[1] > bits[2] > 0
    assert spelling_bits(["xyz"], texts, 4) > spelling_bits(["the"], texts, 4)
    end, letters = spelling_bits([""], texts, 0), set("".join(texts[0].split()))
    total = 2**-end + sum(2 ** -(spelling_bits([letter], texts, 0) - end) for letter in letters)
    seen, kinds = len(texts[0]) + 1, len(letters) + 1
    assert total == pytest.approx(seen / (seen + kinds), abs=1e-3), "the rest of 1 is kept for characters not seen"


def test_a_broken_results_file_is_an_error(tmp_path: Path) -> None:
    claim = make_claim([])
    path = results_path(tmp_path, claim, "small")
    path.write_text('{"points": 3}')
    with pytest.raises(QkvError, match="not a results file of test"):
        run_claim(claim, folder=tmp_path)


def test_missing_data_and_packages_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs data: pairs"):
        run_claim(make_claim([], data="pairs"))
    with pytest.raises(UsageError, match="no such file"):
        run_claim(make_claim([], data="pairs"), data=tmp_path / "none")
    with pytest.raises(UsageError, match="needs no_such_package"):
        run_claim(make_claim([], requires=("no_such_package",)))


def test_optional_data_adds_measures(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a\tb\n")
    calls: list[int] = []
    plain = make_claim(calls)

    def run(experiment: Experiment) -> list[Point]:
        return [*plain.run(experiment), *([Point("BLEU", "a", 1, 9.0)] if experiment.data else [])]

    charts = (*plain.charts, Chart(measure="BLEU", x="x"))
    claim = replace(plain, run=run, charts=charts, optional_data="pairs")
    assert len(claim.charts_of(run_claim(claim, seeds=1, folder=tmp_path).table)) == 1
    assert len(claim.charts_of(run_claim(claim, seeds=1, folder=tmp_path, data=pairs).table)) == 2
    kept = run_claim(claim, seeds=1, folder=tmp_path)  # a run without data does not replace results with data
    assert (kept.data, len(claim.charts_of(kept.table)), calls) == ("pairs.tsv", 2, [0, 0])
    assert "BLEU" not in draw_claim(claim, run_claim(claim, seeds=1).table)
    assert run_claim(plain, seeds=1, data=pairs).data == ""


def test_tables_of_pages_have_all_series() -> None:
    claim = make_claim([])
    result = run_claim(claim, seeds=2)
    assert markdown_table(claim.charts[0], result.table).splitlines()[2].startswith("| a | 2.500 ± ")
    assert "| b |" in write_chapter("Title", [replace(result, made_with={"threads": 1})])
    assert ">a<" in draw_claim(claim, result.table)


def test_training_scores_and_seeds(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "a b c d " * 4}), json.dumps({"text": "d c b a " * 4})]
    losses = []
    for seed in (0, 0, 1):
        folder = tmp_path / str(len(losses))
        folder.mkdir()
        experiment = Experiment(None, seed, folder)
        file = experiment.write_lines("text.jsonl", lines)
        keys = {"data.train": file, "data.valid": file, "tokenizer.kind": "word", "tokenizer.min_frequency": 1}
        keys |= {"objective.kind": "causal_lm", "model.width": 32, "model.layers": 1, "train.steps": 3}
        trained = experiment.train("a run", keys)
        losses.append(trained.run_end.metrics["loss"])
        scores = score_tokens(trained.network, trained.tokenizer, ["a b c d", "b c d a"])  # type: ignore[arg-type]
        assert scores.losses.shape == scores.correct.shape == (2, 4)
        assert experiment.curves("a run").validation["loss"][-1][1] == pytest.approx(losses[-1], abs=1e-3)
    assert losses[0] == losses[1] != losses[2]


def test_a_markov_chain_has_few_successors_and_depends_on_the_seed(tmp_path: Path) -> None:
    files = []
    for seed in (0, 0, 1):
        keys = write_markov_chain(Experiment(None, seed, tmp_path), num_walks=400, num_tokens=20)
        files.append(Path(str(keys["data.train"])).read_text() + Path(str(keys["data.valid"])).read_text())
    assert files[0] == files[1] != files[2]
    walks = [json.loads(line)["text"].split() for line in files[0].splitlines()]
    pairs = {pair for walk in walks for pair in pairwise(walk)}
    assert {len(walk) for walk in walks} == {20}
    assert len(pairs) == NUM_STATES * NUM_SUCCESSORS


def test_a_plain_loop_trains_and_reports_each_step() -> None:
    torch.manual_seed(0)
    network, x = torch.nn.Linear(4, 1), torch.randn(64, 4)

    def compute_loss() -> torch.Tensor:
        return (network(x) - x.sum(dim=1, keepdim=True)).square().mean()

    before = compute_loss().item()
    assert list(training_steps(network, compute_loss, 100, lr=0.1)) == list(range(1, 101))
    assert compute_loss().item() < before / 100
    assert not network.training


def test_the_command_lists_runs_and_reports(tmp_path: Path, run_qkv: Any) -> None:
    assert "score-scaling" in run_qkv(["lab"]).out
    arguments = ["lab", "score-scaling", "--size", "mini", "--out", str(tmp_path)]
    printed = run_qkv(arguments)
    assert "The claim holds" in printed.out
    assert "✓" in printed.out
    assert (tmp_path / "score-scaling.svg").exists()
    assert json.loads(run_qkv([*arguments, "--json"]).out)[0]["verdict"] == "holds"
    assert "score-scaling" in run_qkv(["lab", "score-scalin"], 2).err
    assert cli.run_command(["lab", "score-scaling", "--size", "huge"]) == 2
    assert cli.run_command(["lab", "score-scaling", "--all"]) == 2


def test_running_everything_again_keeps_results_that_were_made_with_data(
    tmp_path: Path, run_qkv: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    plain = make_claim(calls, name="plain")
    with_data = make_claim(calls, name="with-data", optional_data="a file")
    monkeypatch.setattr("qkv_lab.registry.all_claims", lambda: {claim.name: claim for claim in (plain, with_data)})
    (tmp_path / "lines.txt").write_text("a\n")
    run_claim(with_data, "mini", seeds=1, folder=tmp_path, data=tmp_path / "lines.txt")
    arguments = ["lab", "--all", "--size", "mini", "--seeds", "1", "--out", str(tmp_path)]
    captured = run_qkv([*arguments, "--again"])
    assert "with-data is left out: its results were made with --data lines.txt" in captured.err
    assert load_result(with_data, results_path(tmp_path, with_data, "mini")).data == "lines.txt"
    assert calls == [0, 0]
    assert cli.run_command([*arguments, "--again", "--data", str(tmp_path / "lines.txt")]) == 0
    assert calls == [0, 0, 0, 0], "a control: with --data, it is run again"


OWN_CLAIM = """
from dataclasses import dataclass
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.table import Point

@dataclass(frozen=True)
class Settings:
    steps: int = 2

def run(experiment):
    yield Point("loss", "mine", 1, experiment.seed + 1.0)

def check(table):
    return [Check("it is above 0", table.mean("loss", "mine", 1) > 0, "it is")]

CLAIM = Claim(
    name="mine", chapter="training", title="Mine", quotes=(Quote("It is so.", "Me 2026"),), question="Is it?",
    method="It is measured.", lesson="It is.", limits="None.",
    settings=dict.fromkeys(("mini", "small", "full"), Settings()),
    run=run, check=check, charts=(Chart(measure="loss", x="x"),), example=lambda: None,
)
"""


def test_a_claim_of_ones_own_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_claim.py").write_text(OWN_CLAIM)
    arguments = ["lab", str(tmp_path / "my_claim.py"), "--size", "mini", "--seeds", "2", "--out", str(tmp_path)]
    assert cli.run_command([*arguments, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["points"]["1"]) == ("holds", [["loss", "mine", 1, 2.0]])
    assert cli.run_command(arguments) == 0
    assert "Me 2026" in capsys.readouterr().out
    for name, message in (("no.py", "no such file"), ("empty.py", "has no CLAIM")):
        (tmp_path / "empty.py").write_text("")
        with pytest.raises(UsageError, match=message):
            find_claim(str(tmp_path / name))
