"""Every claim runs at its smallest size: its machinery works, its picture is drawn, its example runs."""

import math
from dataclasses import asdict
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

from qkv_lab import claims
from qkv_lab.chart import draw_claim
from qkv_lab.claim import CHAPTERS, NOTES, SIZES, Claim
from qkv_lab.claims import ORDER
from qkv_lab.docs_pages import example_code, write_claim
from qkv_lab.registry import all_claims
from qkv_lab.run import ClaimResult, describe_machine, run_seed
from qkv_lab.table import Point

MAX_EXAMPLE_LINES = 20


def mini_points(claim: Claim) -> list[Point]:
    return run_seed(claim, "mini", 0, None, None)


@cache
def first_points(name: str) -> list[Point]:
    """The points of the first run, which several tests look at."""
    return mini_points(all_claims()[name])


@pytest.mark.parametrize("name", list(all_claims()))
def test_a_claim_runs_at_its_smallest_size(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    claim = all_claims()[name]
    for module in claim.requires:
        pytest.importorskip(module)
    claim.example()
    assert capsys.readouterr().out, "an example prints its result"
    if claim.data:
        pytest.skip(f"{name} needs data: {claim.data}")
    points = first_points(name)
    assert all(isinstance(point.value, float) and not math.isnan(point.value) for point in points)
    result = ClaimResult(claim, "mini", asdict(claim.settings["mini"]), {0: points}, made_with=describe_machine())
    checks = result.checks()
    assert checks
    assert all(check.statement and check.found for check in checks)
    assert claim.charts_of(result.table)
    assert claim.optional_data or len(claim.charts_of(result.table)) == len(claim.charts)
    ElementTree.fromstring(draw_claim(claim, result.table))
    assert claim.title in write_claim(result)
    if claim.is_deterministic:
        assert result.verdict() != "does not hold", checks


@pytest.mark.parametrize("name", [name for name, claim in all_claims().items() if claim.is_deterministic])
def test_a_seed_has_one_result(name: str) -> None:
    claim = all_claims()[name]
    first, second = (
        [p for p in points if p.measure not in claim.timed] for points in (first_points(name), mini_points(claim))
    )
    assert first == second


def test_every_claim_is_complete() -> None:
    for claim in all_claims().values():
        assert set(claim.settings) == set(SIZES)
        assert all(quote.source in NOTES for quote in claim.quotes)
        assert claim.question.endswith("?")
        assert claim.limits.endswith(".")
        assert len(example_code(claim.example).splitlines()) <= MAX_EXAMPLE_LINES


def test_every_file_is_listed_and_named_like_its_claim() -> None:
    assert list(ORDER) == list(CHAPTERS)
    folder = Path(claims.__path__[0])
    files = {path.relative_to(folder).as_posix() for path in folder.glob("*/*.py") if path.name != "__init__.py"}
    assert files == {f"{c.chapter}/{c.name.replace('-', '_')}.py" for c in all_claims().values()}
    assert {chapter: [c.name for c in all_claims().values() if c.chapter == chapter] for chapter in CHAPTERS} == {
        chapter: list(names) for chapter, names in ORDER.items()
    }
