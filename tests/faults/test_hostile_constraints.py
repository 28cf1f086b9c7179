"""Constraints that overflow the stack of the native library, or take its time and memory: refused, in bounded memory.

They run in a process of their own, which a defect would end.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from qkv.decode.constrained.bounds import MAX_PARTS, MAX_REPETITIONS, check_grammar, check_repetitions, check_schema
from qkv.errors import UsageError

pytestmark = pytest.mark.skipif(find_spec("llguidance") is None, reason="llguidance is not installed")
TESTS = Path(__file__).parent.parent
MAX_GROWTH_MIB = 200


def chain_of_rules(count: int) -> str:
    return "start: r0\n" + "".join(f'r{i}: "a" r{i + 1}\n' for i in range(count)) + f'r{count}: "b"\n'


def chain_of_references(count: int) -> dict[str, Any]:
    parts: dict[str, Any] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**parts, f"d{count}": {"type": "integer"}}}


def chain_of_objects(count: int) -> dict[str, Any]:
    """Its references are in bounds, and each takes much of the stack."""
    parts: dict[str, Any] = {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**parts, f"d{count}": {"type": "integer"}}}


def all_of(count: int) -> dict[str, Any]:
    part: dict[str, Any] = {"$ref": "#/$defs/d"}
    return {"allOf": [part] * count, "$defs": {"d": {"type": "object", "properties": {"x": {"type": "integer"}}}}}


def schema_fields(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


HOSTILE = {
    "rules": {"grammar": chain_of_rules(3000)},
    "references": schema_fields(chain_of_references(4000)),
    "objects": schema_fields(chain_of_objects(490)),
    "allOf": schema_fields(all_of(2000)),
    "nested repetitions": {"regex": "(((a{100}){100}){100}){100}"},
    "a long repetition": {"regex": "a{1000000}"},
    "terminals": {"grammar": 'start: T9\nT0: "a"\n' + "".join(f"T{i + 1}: T{i}{{9}}\n" for i in range(9))},
    "a long division": schema_fields({"type": "integer", "multipleOf": 1_000_003}),
}
PROGRAM = """
import json, resource, sys
from serving import client
from task_models import decoder

with client({"text": decoder(max_positions=128)}) as opened:
    body = {"prompt": "the", "max_tokens": 4, "temperature": 0}
    answers = {"before": opened.post("/v1/completions", json={**body, "regex": "a+"})}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, fields in json.load(sys.stdin).items():
        answers[name] = opened.post("/v1/completions", json={**body, "n": 8, **fields})
    answers["after"] = opened.post("/v1/completions", json={**body, "regex": "a+"})
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(json.dumps([growth, {name: [answer.status_code, answer.text] for name, answer in answers.items()}]))
"""


def test_no_constraint_ends_the_server_or_takes_its_memory() -> None:
    folders = [str(TESTS / name) for name in ("serve", "tasks")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, *folders]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(HOSTILE), env=environment, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr[-1000:])
    growth, answers = json.loads(done.stdout)
    assert answers["before"][0] == answers["after"][0] == 200
    for name in HOSTILE:
        status, text = answers[name]
        assert status == 400, (name, status, text)
        assert len(text) < 1500
    assert growth < MAX_GROWTH_MIB


def test_bounds_are_checked_before_the_library_reads_a_constraint() -> None:
    for check, inside, outside in (
        (check_grammar, chain_of_rules(MAX_PARTS - 2), chain_of_rules(MAX_PARTS)),
        (check_schema, chain_of_references(MAX_PARTS - 1), chain_of_references(MAX_PARTS)),
        (check_schema, {"anyOf": [{}] * MAX_PARTS}, {"anyOf": [{}] * (MAX_PARTS + 1)}),
        (check_schema, {"pattern": "a{9}"}, {"items": [{"pattern": "(a{999}){999}"}]}),
        (check_schema, {"patternProperties": {"a": True}}, {"patternProperties": {"(a{999}){999}": True}}),
    ):
        check(inside)
        with pytest.raises(UsageError, match=r"at most 500 are allowed|use smaller counts"):
            check(outside)


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        (r"a{100}", 100),
        (r"(ab{3}){2}", 8),
        (r"[a-z{9}]{7}", 7),
        (r"\({9}\p{Letter}{9}", 18),
        (r"(a|b){2,5}(c{3,})", 13),
        (r"((a{2}){3}){4}", 24),
        (r'"((("{5}', 5),
    ],
)
def test_the_size_of_a_pattern_is_what_its_repetitions_make_of_it(pattern: str, size: int) -> None:
    times = MAX_REPETITIONS // size
    check_repetitions("it", f"({pattern}){{{times}}}")
    with pytest.raises(UsageError, match="20,000 characters"):
        check_repetitions("it", f"({pattern}){{{times + 1}}}")
