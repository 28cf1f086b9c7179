"""The routes of the studio: a small page without network, errors as JSON, keys, and no path of a request."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from look_models import make_model
from serving import client

from qkv.serve.http.keys import add_key

MAX_PAGE_BYTES = 300_000


@pytest.fixture(scope="module")
def http() -> Any:
    with client({"decoder": make_model("decoder"), "gone": "/nowhere/model"}) as opened:
        yield opened


def list_loaded(http: Any, path: str = "/studio/studio.js", found: dict[str, str] | None = None) -> dict[str, str]:
    """The scripts that a script loads, with their texts."""
    found = {} if found is None else found
    if path not in found:
        answer = http.get(path)
        assert answer.status_code == 200, path
        found[path] = answer.text
        for name in re.findall(r'^(?:import|export) .*from "\./([\w./]+)";$', answer.text, re.MULTILINE):
            list_loaded(http, f"{path.rpartition('/')[0]}/{name}", found)
    return found


def test_the_page_is_small_and_names_no_address(http: Any) -> None:
    loaded = list_loaded(http)
    assert len(loaded) > 30
    others = {path: http.get(path) for path in ("/", "/studio/studio.css", "/studio/page/style.css")}
    assert all("script-src 'self'" in answer.headers["content-security-policy"] for answer in others.values())
    text = "".join([*loaded.values(), *(answer.text for answer in others.values())])
    assert len(text.encode()) < MAX_PAGE_BYTES
    assert set(re.findall(r"https?://[^\"' ]*", text)) == {
        "http://www.w3.org/2000/svg"
    }  # a name, which nothing fetches
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)


def test_every_script_of_the_page_is_loaded(http: Any) -> None:
    loaded = set(list_loaded(http))
    scripts = {
        file.name for file in files("qkv.serve.studio").joinpath("static").iterdir() if file.name.endswith(".js")
    }
    assert {f"/studio/{name}" for name in scripts} <= loaded


def test_errors_are_json_that_says_what_to_do(http: Any) -> None:
    body = {"model": "decoder", "text": "a"}
    cases = {
        "trace": ({**body, "text": "a" * 9000}, 400, "shorten it"),
        "words": ({**body, "model": "decoderr"}, 404, "did you mean 'decoder'"),
        "examples": ({**body, "site": "decoder.9.mlp_post", "unit": 0}, 400, "no site"),
        "search": ({**body, "beam": 1}, 400, "beam"),
    }
    for path, (sent, status, message) in cases.items():
        answer = http.post(f"/studio/api/{path}", json=sent)
        assert answer.status_code == status
        assert message in answer.json()["error"]["message"]
    gone = http.post("/studio/api/trace", json={**body, "model": "gone"})
    assert gone.status_code == 400
    assert "/nowhere/model" in gone.json()["error"]["message"]
    assert http.get("/studio/api/runs/..%2f..%2fetc%2fpasswd").status_code in (400, 404)
    assert http.get("/studio/..%2fapp.py").status_code == 404


@pytest.mark.parametrize("path", ["trace", "words", "examples", "search"])
def test_odd_requests_are_refused_without_a_failure(http: Any, path: str) -> None:
    """A request is answered, or refused with a reason; it never makes the server fail."""
    good = {"model": "decoder", "text": "the cat"}
    good |= {"examples": {"site": "decoder.0.mlp_post", "unit": 1}, "search": {"max_tokens": 2}}.get(path, {})
    assert http.post(f"/studio/api/{path}", json=good).status_code == 200
    odd: list[Any] = [
        *({"text": text} for text in ("\x00", "\ud800", "\u202e", "a" * 47, "a" * 48, "🏳️‍🌈" * 5, "\t\t", None, 1e400)),
        *({"off": off} for off in (["decoder.0.head.99"], ["decoder.000000"], [None], "decoder.0", [["decoder.0"]])),
        *({"model": name} for name in ("../decoder", "", None, ["decoder"], "gone")),
        *({"layer": layer} for layer in (2, 99, -1, 1.5, 2**70)),
        *({"layer": 0, "head": head} for head in (3, -1, "0")),
        *({"position": position} for position in (7, 2**64, -1)),
        *({"views": views} for views in (["search"], "lens", [3], ["lens"] * 50)),
        *({"target": target} for target in ("le chat", 5)),
        *({"site": site} for site in ("*", "decoder.0.pattern", "decoder.-1.mlp_post", "", None)),
        *({"unit": unit} for unit in (24, 2**20, -1, None)),
        *({"texts": texts} for texts in (["a" * 300], [""] * 401, [1], "abc")),
        *({"beam": beam} for beam in (13, 1, 0, True)),
        *({"max_tokens": count} for count in (0, 65, 64)),
    ]
    statuses = set()
    for change in odd:
        content = json.dumps({**good, **change}).encode()
        answer = http.post(f"/studio/api/{path}", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code in (200, 400, 404), (change, answer.text)
        if answer.status_code != 200:
            assert len(answer.json()["error"]["message"]) > 10
        statuses.add(answer.status_code)
    assert statuses == {200, 400, 404}
    for content in (b"", b"{", b"[" * 5000, b'"a"', b"\xff", b'{"model": NaN}'):
        answer = http.post(f"/studio/api/{path}", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
    assert http.post(f"/studio/api/{path}", content=b"{}").status_code == 415


def test_a_search_arrives_in_lines(http: Any) -> None:
    body = {"model": "decoder", "text": "the cat", "beam": 2, "max_tokens": 4}
    with http.stream("POST", "/studio/api/search", json=body) as answer:
        records = [json.loads(line) for line in answer.iter_lines()]
    assert [set(record) for record in records[:-1]] == [{"step", "hypotheses", "best"}] * (len(records) - 1)
    assert records[-1]["stop_reason"]


def test_with_keys_the_page_is_open_and_its_numbers_are_not(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    key = add_key(file, "me")
    with client({"decoder": make_model("decoder")}, keys=file) as guarded:
        assert guarded.get("/").status_code == 200
        assert guarded.get("/studio/page/dom.js").status_code == 200
        assert guarded.get("/studio/api/models").status_code == 401
        assert guarded.get("/studio/api/runs").status_code == 401
        assert guarded.get("/studio/api/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
