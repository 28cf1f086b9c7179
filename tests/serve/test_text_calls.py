"""The calls on texts return what the calls of `Model` return, and calls that arrive together run in one batch."""

import asyncio
import base64
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import httpx
import numpy as np
import pytest
from serving import client
from task_models import seq2seq

from qkv.serve.http.api_error import ApiError
from qkv.serve.running.batcher import DynamicBatcher


def post(running: Any, path: str, **body: Any) -> Any:
    response = httpx.post(running.url + path, json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


CALLS = [
    ("translate", "pairs", ["the dog. a fox", "Anna"], {"beam": 2, "top": 2, "align": True, "max_tokens": 12}),
    ("summarise", "pairs", ["the dog runs"], {"max_tokens": 8}),
    ("classify", "classes", ["a fox", "the lazy dog"], {"top": 2}),
    ("tag", "tags", ["Anna runs in Paris", ["a", "dog"]], {}),
    ("fill", "masks", ["the [MASK] fox"], {"top": 3}),
]


@pytest.mark.parametrize(("name", "model", "texts", "options"), CALLS)
def test_a_call_is_that_of_the_model(
    running: Any, name: str, model: str, texts: list[Any], options: dict[str, Any]
) -> None:
    expected = [one.to_dict() for one in getattr(running.models[model], name)(texts, **options)]
    assert post(running, f"/{name}", model=model, texts=texts, **options) == {"model": model, "results": expected}


def test_pairs_questions_and_scores(running: Any) -> None:
    pair = post(running, "/classify", model="classes", texts=[["a fox", "a dog"]])["results"]
    assert pair == [one.to_dict() for one in running.models["classes"].classify([("a fox", "a dog")])]
    passage = "Anna runs in Paris over the lazy dog"
    found = post(running, "/answer", model="answers", question=["who?", "where?"], context=passage)["results"]
    assert found == [one.to_dict() for one in running.models["answers"].answer(["who?", "where?"], passage)]
    scored = post(running, "/score", model="text", prompts=["the fox", "a"], targets=[" runs", " dog"])["results"]
    expected = running.models["text"].score(["the fox", "a"], [" runs", " dog"])
    assert [one["logprob"] for one in scored] == pytest.approx([sum(t.logprob for t in one) for one in expected])


def test_a_trace_has_the_numbers_of_the_model(running: Any) -> None:
    answer = post(running, "/trace", model="text", text="the fox", sites=["decoder.*.pattern", "logits"])
    expected = running.models["text"].trace("the fox", sites=["decoder.*.pattern", "logits"])
    assert set(answer["sites"]) == set(expected)
    for site, found in answer["sites"].items():
        values = np.frombuffer(base64.b64decode(found["data"]), "<f4").reshape(found["shape"])
        assert np.array_equal(values, expected[site].numpy())
    assert answer["tokens"]["decoder"]["texts"] == list("the fox")


def test_a_call_for_another_kind_of_model_says_what_the_model_can_do(running: Any) -> None:
    response = httpx.post(f"{running.url}/translate", json={"model": "text", "texts": "a"})
    assert response.status_code == 400
    assert "m.chat" in response.json()["error"]["message"]


def test_a_recurrent_model_answers_text_calls_and_has_no_engine() -> None:
    model = seq2seq(block="gru", heads=0, ffn_width=0, position="none")
    model.network.eval()
    with client({"rnn": model}) as server:
        expected = [one.to_dict() for one in model.translate(["the dog"], align=True, max_tokens=5)]
        answer = server.post("/translate", json={"texts": ["the dog"], "align": True, "max_tokens": 5})
        assert answer.json()["results"] == expected
        refused = server.post("/v1/completions", json={"prompt": "the", "model": "rnn"})
        assert refused.status_code == 400
        assert "model 'rnn' keeps a state" in refused.json()["error"]["message"]
        assert server.get("/metrics").status_code == 200


def test_calls_that_arrive_together_run_in_one_batch(running: Any) -> None:
    batcher = running.app.state.server.pool.find("classes").batcher
    before = batcher.num_batches
    alone = post(running, "/classify", model="classes", texts=["the dog"])["results"]
    with ThreadPoolExecutor(16) as threads:
        several = threads.map(lambda _: post(running, "/classify", model="classes", texts=["the dog"]), range(16))
        for one in several:
            assert one["results"][0]["label"] == alone[0]["label"]
    assert batcher.num_batches - before < 17


def test_a_bad_input_fails_alone_and_an_abandoned_call_is_not_run() -> None:
    ran: list[list[int]] = []

    def invert(numbers: list[int], _: Any) -> list[float]:
        ran.append(numbers)
        return [1 / number for number in numbers]

    async def run() -> None:
        batcher = DynamicBatcher("a", gather_seconds=0.05, max_queue=3, max_batch=8, device_lock=nullcontext())
        results = await asyncio.gather(
            *(batcher.map(invert, [n], key="invert") for n in (1, 0, 2)), return_exceptions=True
        )
        assert results[0] == [1.0]
        assert isinstance(results[1], ZeroDivisionError)
        assert results[2] == [0.5]
        assert ran == [[1, 0, 2], [1], [0], [2]]
        abandoned = asyncio.ensure_future(batcher.map(invert, [5], key="invert"))
        await asyncio.sleep(0)
        abandoned.cancel()
        assert await batcher.map(invert, [4], key="invert") == [0.25]
        assert [5] not in ran
        assert [4] in ran
        full = [asyncio.ensure_future(batcher.map(invert, [n], key="invert")) for n in range(1, 5)]
        found = await asyncio.gather(*full, return_exceptions=True)
        assert isinstance(found[3], ApiError)
        assert found[3].status == 429
        await asyncio.to_thread(batcher.stop)

    asyncio.run(run())


def test_token_ids_outside_the_vocabulary_are_an_error(running: Any) -> None:
    for name in ("text", "pairs", "classes"):
        response = httpx.post(f"{running.url}/trace", json={"model": name, "text": [9999, 3]}, timeout=60)
        assert response.status_code == 400
        assert "token id 9999 is outside" in response.json()["error"]["message"]
