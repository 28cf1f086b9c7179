"""Health, metrics, models by name, and the OpenAPI document."""

import json
import re
from base64 import b64encode
from hashlib import sha256

import pytest
from chat_models import chat_model
from serving import client
from task_models import decoder


def test_models_are_listed_dropped_and_loaded_by_name() -> None:
    with client({"a": decoder(), "b": chat_model()}) as http:
        listed = http.get("/v1/models").json()["data"]
        assert [(one["id"], one["state"], one["task"]) for one in listed] == [
            ("a", "loaded", "complete"),
            ("b", "loaded", "complete"),
        ]
        assert http.post("/models/a/drop").json()["state"] == "dropped"
        assert http.get("/v1/models/a").json()["state"] == "dropped"
        assert http.get("/v1/models/b").json()["state"] == "loaded"
        assert http.post("/models/a/load").json()["state"] == "loaded"
        missing = http.post("/models/..%2f..%2fetc/load")
        assert missing.status_code == 404
        assert "/etc" not in missing.text


def test_a_server_is_ready_once_a_model_is_loaded() -> None:
    with client({"a": decoder()}) as http:
        assert http.get("/readyz").status_code == 200
        http.post("/models/a/drop")
        refused = http.get("/readyz")
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert http.get("/healthz").json()["status"] == "ok"


def test_metrics_count_requests_and_pages() -> None:
    with client({"a": decoder()}) as http:
        http.get("/healthz")
        http.get("/nowhere")
        text = http.get("/metrics").text
    assert 'qkv_requests_total{path="/healthz",status="200"} 1' in text
    assert 'qkv_requests_total{path="other",status="404"} 1' in text
    assert 'qkv_pages{model="a",state="in use"} 0' in text


def test_the_document_is_json_and_the_page_needs_no_network() -> None:
    with client({"a": decoder()}) as http:
        document, page = http.get("/openapi.json").json(), http.get("/docs").text
    assert document["openapi"] == "3.1.0"
    assert "/v1/models" in document["paths"]
    for path in document["paths"]:
        assert f"<code>{path}</code>" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page
    references = [part.split('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]]
    assert set(references) <= set(document["components"]["schemas"])


def test_pages_of_other_sites_and_other_host_names_are_refused() -> None:
    with client({"a": decoder()}) as http:
        assert http.get("/healthz", headers={"Host": "evil.example"}).status_code == 403
        refused = http.post("/models/a/drop", headers={"Origin": "https://evil.example"})
        assert refused.status_code == 403
        assert http.get("/v1/models/a").json()["state"] == "loaded"
        assert http.get("/healthz", headers={"Origin": "http://localhost"}).status_code == 200
        assert http.get("/docs", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a link to the page
    with client({"a": decoder()}, cors_origins=("https://good.example",)) as http:
        allowed = http.get("/healthz", headers={"Origin": "https://good.example"})
        assert allowed.headers["access-control-allow-origin"] == "https://good.example"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_picture_on_a_page_of_another_site_loads_no_model(site: str) -> None:
    with client({"a": decoder()}) as http:
        http.post("/models/a/drop")
        assert http.get("/studio/api/models/a", headers={"Sec-Fetch-Site": site}).status_code == 403
        assert http.get("/v1/models/a").json()["state"] == "dropped"
        assert http.get("/studio/api/models/a", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_every_answer_has_a_policy_for_its_content() -> None:
    with client({"a": decoder()}) as http:
        page = http.get("/docs")
        policy, style = page.headers["content-security-policy"], re.search("<style>(.*?)</style>", page.text, re.DOTALL)
        assert style is not None
        assert f"'sha256-{b64encode(sha256(style[1].encode()).digest()).decode()}'" in policy
        assert "style=" not in page.text
        for path in ("/", "/healthz", "/nowhere", "/openapi.json"):
            assert "default-src 'none'" in http.get(path).headers["content-security-policy"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", r'{"prompt": "a", "\ud800": 1}'),
        ("/v1/completions", r'{"prompt": "a", "model": "\ud800"}'),
        ("/v1/completions", r'{"prompt": "a", "response_format": {"type": "\udfff"}}'),
        ("/v1/completions", r'{"prompt": "a", "logit_bias": {"\ud800": 1}}'),
        ("/v1/completions", r'{"prompt": "a", "metadata": {"\ud800": 1}}'),
        ("/v1/chat/completions", r'{"messages": [{"role": "user", "content": "a", "\ud800": 1}]}'),
        ("/studio/api/trace", r'{"text": "a", "model": "a", "\ud800": {}}'),
    ],
)
def test_a_surrogate_without_its_partner_is_an_error_of_the_request(path: str, body: str) -> None:
    with client({"a": decoder()}) as http:
        answer = http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["message"]
