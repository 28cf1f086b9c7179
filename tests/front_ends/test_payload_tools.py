"""Traces, the doctor, model folders and exports of models with a front end."""

from pathlib import Path
from typing import Any

import pytest
import torch
from squares import Squares, image, make_config, make_network, row

import qkv
from qkv.blocks import HeadConfig, Inputs, Payload
from qkv.decode import GenerationOptions, generate
from qkv.errors import QkvError, UsageError
from qkv.inside import activation_patching, attention_pattern, trace
from qkv.inside.doctor.subject import Subject, random_batch
from qkv.inside.doctor.table import examine, run_check
from qkv.inside.trace import Trace
from qkv.models import Network, build

FAMILIES = ["encoder", "decoder", "seq2seq"]
TEXT = row(5, image(2, 2), [6, 7])


def make_model(network: Network, **options: Any) -> qkv.Model:
    return qkv.Model(network.config, network, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trace_is_of_the_payload_too(family: str, tmp_path: Path) -> None:
    network = make_network(family)
    target = [0, 3, 4] if family == "seq2seq" else None
    found = trace(network, TEXT, target, sites=["*", "logits"])
    inputs = TEXT if target is None else Inputs(torch.tensor([target]), source=TEXT)
    torch.testing.assert_close(found["logits"], network(inputs)[0])
    stack = next(iter(network.stacks))
    torch.testing.assert_close(attention_pattern(network, found, f"{stack}.1.pattern"), found[f"{stack}.1.pattern"])
    found.save(tmp_path / "trace.safetensors")
    loaded = Trace.load(tmp_path / "trace.safetensors")
    assert loaded.tokens == found.tokens
    assert loaded.tokens[stack].positions == (0, 1, 1, 1, 1, 2, 3)
    if target is None:
        with pytest.raises(UsageError, match="does not keep the payloads"):
            activation_patching(network, found, found, lambda logits: logits[:, -1, 0])


def test_a_page_shows_a_text_with_an_image() -> None:
    model = make_model(make_network("decoder"))
    document = model.look(TEXT, beam=2, max_tokens=3).document
    assert "At placeholders" in str(document["notes"])
    assert model.trace(TEXT).tokens["decoder"].ids == (5, 1, 1, 1, 1, 6, 7)


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_a_model_generates_from_inputs(family: str) -> None:
    network = make_network(family)
    found = make_model(network).generate([TEXT, [4, 5]], max_tokens=5)
    assert [result.ids for result in found] == [
        result.ids for result in generate(network, [TEXT, [4, 5]], GenerationOptions(max_tokens=5))
    ]
    with pytest.raises(UsageError, match="vocabulary"):
        make_model(network).generate(Inputs(torch.tensor([[99]])))


# ── Doctor ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Blind(Squares):
    """A planted fault: the output ignores the payload."""

    def forward(self, payload: Payload) -> torch.Tensor:
        return super().forward(payload._replace(values=torch.zeros_like(payload.values)))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_doctor_finds_a_front_end_that_ignores_its_payload(family: str) -> None:
    network = make_network(family)
    subject = Subject(network, None, random_batch(network.config), has_random_batch=True)
    found = run_check("payload", subject)
    assert found.status == "ok", found
    network.front_ends["squares"] = Blind(network.config.front_ends[0], 16).double()  # type: ignore[arg-type]
    found = run_check("payload", subject)
    assert (found.status, found.check) == ("failed", "output depends on the payload")
    assert "ignores it" in found.advice


def test_the_doctor_examines_a_model_without_a_vocabulary() -> None:
    config = make_config("encoder", vocab_size=0, head=HeadConfig(kind="classify", outputs=3, pool="mean"))
    torch.manual_seed(0)
    network = build(config)
    subject = Subject(network, None, random_batch(config), has_random_batch=True)
    findings = {found.check: found for found in examine(subject)}
    assert findings["output depends on the payload"].status == "ok"
    assert "raised" not in " ".join(found.summary for found in findings.values())


# ── Folders ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("vocab_size", [30, 0])
def test_a_folder_keeps_front_ends_and_the_processor(vocab_size: int, tmp_path: Path) -> None:
    head = None if vocab_size else HeadConfig(kind="classify", outputs=3, pool="mean")
    family = "decoder" if vocab_size else "encoder"
    network = make_network(family, vocab_size=vocab_size, head=head)
    made = make_model(network, processor={"patch": 4, "mean": [0.5, 0.5, 0.5]})
    made.save(tmp_path / "model")
    loaded = qkv.load(tmp_path / "model")
    assert loaded.config == made.config
    assert loaded.processor == made.processor
    text = TEXT if vocab_size else row(image(2, 2))
    torch.testing.assert_close(loaded.network(text), network(text), rtol=0, atol=0)
    make_model(network).save(tmp_path / "model")
    assert qkv.load(tmp_path / "model").processor is None, "the file of an older model is gone"


@pytest.mark.parametrize("format", ["hf", "onnx", "ctranslate2"])
def test_an_export_is_refused_with_a_reason(format: str, tmp_path: Path) -> None:
    with pytest.raises(QkvError, match=rf"the format {format} cannot store the front ends .* \(squares\)"):
        make_model(make_network("decoder")).export(tmp_path / "out", format=format)
    assert not (tmp_path / "out").exists()
