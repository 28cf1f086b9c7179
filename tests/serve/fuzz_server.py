"""Random requests to all paths of a server, valid and invalid ones, made by schemathesis from the OpenAPI document.

    PYTHONPATH=tests/tasks python tests/serve/fuzz_server.py --requests 20000

Every response must have a documented status, type and form, within a time limit, and a valid request no 5xx. Afterwards
the server must still answer, and all pages must be free.
"""

import argparse
import collections
import copy
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import httpx
import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import qkv

MAX_SECONDS = 60.0
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
MAX_TOKENS = 6


MODELS = {
    "CompletionBody": ["text", "pairs"],
    "ChatBody": ["chat", "text"],
    "EmbeddingBody": ["classes", "text"],
    "TranslateRequest": ["pairs"],
    "SummariseRequest": ["pairs"],
    "ClassifyRequest": ["classes"],
    "TagRequest": ["tags"],
    "AnswerRequest": ["answers"],
    "FillRequest": ["masks"],
    "ScoreRequest": ["text", "pairs"],
    "TraceBody": ["text", "pairs", "classes"],
}
CHOICES: dict[str, list[Any]] = {
    "max_tokens": [1, MAX_TOKENS, MAX_TOKENS + 1],
    "max_completion_tokens": [1, MAX_TOKENS],
    "n": [1, 2, 3],
    "min_tokens": [0, 1],
    "regex": [None, "[a-z]{1,3}", "("],
    "grammar": [None, 'start: "a" | "b"'],
    "response_format": [
        None,
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}},
        {"type": "json_schema"},
    ],
    "logit_bias": [None, {"7": 5}, {"99999": -100}, {"x": 1}],
    "top_k": [0, 5],
    "prompt": ["the fox", "", ["a dog", "é\u0000"], [5, 6], [[5], [6, 7]], [9999]],
    "template": ["plain"],
    "too_long": ["error", "truncate", "split", "other"],
    "sites": [["decoder.*.pattern"], ["logits"], ["*"], ["nothing"]],
}
"""Values that get further than random ones."""


def narrow_document(document: dict[str, Any]) -> dict[str, Any]:
    """The document with fewer values, so that more requests get as far as a model."""
    for body, names in MODELS.items():
        schema = document["components"]["schemas"][body]
        fields = schema["properties"]
        schema["required"] = [*schema["required"], "model"]
        masked_texts = ["the [MASK] fox", ["[MASK]", "a [MASK] [MASK]"], "no mask"]
        masked = {"texts": masked_texts} if body == "FillRequest" else {}
        for field, values in {**CHOICES, **masked, "model": [*names, "missing"]}.items():
            if field in fields:
                fields[field] = {"enum": values}
    names = ["text", "missing"]
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                parameter["schema"]["enum"] = ["missing"] if path.endswith("/drop") else names
    return document


def run_examples(strategy: Any, check: Callable[[Any], None], num_examples: int, seed: int) -> None:
    """Call a function with random examples, the same for the same seed."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=num_examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=strategy)
    def run(case: Any) -> None:
        check(case)

    run()


def fuzz(url: str, num_requests: int, seed: int = 0, only: Sequence[str] = ()) -> dict[str, collections.Counter[int]]:
    """Send requests, and return the number of each status by operation. Raises an error for a wrong response."""
    whole = httpx.get(f"{url}/openapi.json").json()
    counts: dict[str, collections.Counter[int]] = {}
    session = requests.Session()

    def send(case: Any, is_valid: bool, counted: "collections.Counter[int]") -> None:
        response = case.call(base_url=url, session=session, timeout=MAX_SECONDS)
        counted[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)
        assert response.status_code != 500, (response.text, case.as_curl_command())
        assert is_valid or response.status_code >= 400, case.as_curl_command()

    for is_valid, document in ((True, narrow_document(copy.deepcopy(whole))), (False, whole)):
        mode = schemathesis.GenerationMode.POSITIVE if is_valid else schemathesis.GenerationMode.NEGATIVE
        operations = [one.ok() for one in schemathesis.openapi.from_dict(document).get_all_operations()]
        with_body = [one for one in operations if one.body]
        for operation in operations if is_valid else with_body:
            if only and operation.path not in only:
                continue
            counted = counts.setdefault(f"{operation.method.upper()} {operation.path}", collections.Counter())
            share = num_requests // (2 * len(with_body)) if operation.body else num_requests // 400
            check = partial(send, is_valid=is_valid, counted=counted)
            print(f"{time.strftime('%H:%M:%S')} {operation.path} {mode.name}", flush=True)
            run_examples(operation.as_strategy(generation_mode=mode), check, max(1, share), seed)
            print(f"    {json.dumps(dict(sorted(counted.items())))}", flush=True)
    assert httpx.get(f"{url}/readyz").status_code == 200
    return counts


def main() -> None:
    """Start a server with a model of each kind, and fuzz it."""
    from serving import served, wait_until

    from conftest import make_models

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], help="some paths, such as /trace")
    arguments = parser.parse_args()
    models: Mapping[str, qkv.Model] = make_models()
    began = time.perf_counter()
    with served(models, max_tokens=MAX_TOKENS) as (url, app):
        counts = fuzz(url, arguments.requests, arguments.seed, arguments.only)
        for name in models:
            thread = app.state.server.pool.find(name).engine
            if thread is not None:
                wait_until(
                    lambda thread=thread: thread.engine.page_pool.num_available == thread.engine.page_pool.num_pages
                )
    total: collections.Counter[int] = sum(counts.values(), collections.Counter())
    for name, found in counts.items():
        print(f"{name:34} {json.dumps(dict(sorted(found.items())))}")
    print(f"{sum(total.values()):,} requests in {time.perf_counter() - began:.0f} s: {dict(sorted(total.items()))}")


if __name__ == "__main__":
    sys.exit(main())
