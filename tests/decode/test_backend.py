"""One function chooses the backend, and every backend gives the reference's results for all that it declares.

The cases come from the types of `StackConfig` and `GenerationOptions`: a new field, or a new value of a `Literal`, is
either declared by a backend and then compared with the reference here, or the call runs on the reference.
"""

from dataclasses import MISSING, fields, replace
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest
import torch
from decode_models import END, run_backend, tiny
from decode_stacks import make

from qkv.blocks import StackConfig, Tap
from qkv.blocks.parts import PARTS
from qkv.decode import GenerationOptions, GenerationResult, PromptLookup, generate
from qkv.decode.backend import (
    BACKENDS,
    CPU,
    FUSED,
    FUSED_GREEDY,
    GPU,
    GPU_BEAM,
    GPU_GREEDY,
    REFERENCE,
    SPECULATIVE,
    Backend,
    choose_backend,
)
from qkv.decode.support import EVERY_CHOICE, REFERENCE_FIELDS, UNUSED_FIELDS, choice_fields, supports
from qkv.models import build

FAMILIES = ("decoder", "seq2seq")
PROMPTS = [[5, 6, 7, 3], [8], [3, 4]]
HINTS = get_type_hints(StackConfig)
CHOICES = [(name, value) for name in choice_fields() for value in PARTS.get(name) or get_args(HINTS[name])]
RECURRENT = {"heads": 0, "ffn_width": 0}
COMPANIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("norm", "rmsnorm"): {"norm_affine": "gain"},
    **{("block", kind): RECURRENT for kind in ("rnn", "gru", "lstm")},
    ("recurrent_attention", "none"): {**RECURRENT, "block": "gru"},
    ("router_softmax", "all"): {"feedforward": "moe"},
    ("embedding_scale", "unmasked"): {"mask_token_id": 3},
}
"""What a choice needs besides."""
SIZES = {"vocab_size", "width", "layers", "heads", "ffn_width", "max_positions", "norm_eps"}
TRAINING = {"dropout", "attention_dropout", "ffn_dropout", "drop_path", "init", "init_std"}
TRAINING |= {"balance_loss", "router_z_loss"}
ENCODER_ONLY = {"embedding_window"}
OTHER_FIELDS: dict[str, dict[str, Any]] = {
    "kv_heads": {"kv_heads": 2},
    "head_dim": {"head_dim": 6},
    "embedding_width": {"embedding_width": 8},
    "num_layer_groups": {"num_layer_groups": 1},
    "position_offset": {"position": "learned", "position_offset": 2},
    "rotary_base": {"position": "rotary", "rotary_base": 50.0},
    "rotary_base_sliding": {"position": "rotary", "sliding_window": 2, "rotary_base_sliding": 50.0},
    "rotary_fraction": {"position": "rotary", "rotary_fraction": 0.5},
    "rotary_scaling": {"position": "rotary"},
    "relative_buckets": {"position": "t5", "relative_buckets": 8},
    "relative_max_distance": {"position": "t5", "relative_max_distance": 20},
    "sliding_window": {"sliding_window": 2},
    "sliding_window_layers": {"sliding_window": 2, "sliding_window_layers": (1,)},
    "token_types": {"token_types": 2},
    "mask_token_id": {"mask_token_id": 3},
    "score_cap": {"score_cap": 0.5},
    "experts": {"feedforward": "moe", "experts": 3},
    "experts_per_token": {"feedforward": "moe", "experts_per_token": 3},
    "layer_scale": {"layer_scale": 0.1},
}
"""A setting for each field that is not a `Literal`."""
OPTIONS: dict[str, dict[str, Any]] = {
    "max_tokens": {"max_tokens": 3},
    "min_tokens": {"min_tokens": 5},
    "temperature": {"temperature": 1.0, "seed": 1},
    "top_k": {"temperature": 1.0, "seed": 1, "top_k": 3},
    "top_p": {"temperature": 1.0, "seed": 1, "top_p": 0.6},
    "min_p": {"temperature": 1.0, "seed": 1, "min_p": 0.2},
    "seed": {"temperature": 1.0, "seed": 7},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "suppress_tokens": {"suppress_tokens": (3, 4, 5)},
    "logits_processors": {"logits_processors": (lambda logits, tokens: logits.roll(1, -1),)},
    "constraint": {"constraint": SimpleNamespace(make_processor=lambda *_: lambda logits, tokens: logits.roll(1, -1))},
    "prefix": {"prefix": (3, 4)},
    "stop": {},  # needs a tokenizer: test_graphs.py and test_text.py compare it
    "beam": {"beam": 3},
    "length_penalty": {"beam": 3, "length_penalty": 0.2},
    "length_penalty_kind": {"beam": 3, "length_penalty_kind": "gnmt"},
    "num_return_sequences": {"beam": 3, "num_return_sequences": 3},
    "return_search_steps": {"beam": 3, "return_search_steps": True},
    "on_search_step": {"beam": 3, "on_search_step": lambda step: None},
    "compile": {"compile": True},
    "logprobs": {"logprobs": 2},
    "tap": {"tap": Tap(change={"decoder.0.mlp_out": torch.zeros_like})},
}
"""A call for each option."""


def steps(result: GenerationResult) -> list[Any]:
    return [
        [(c.beam, c.token, round(c.score, 7), c.kept, c.ended) for c in step.candidates] for step in result.search_steps
    ]


def found(backend: Backend, network: Any, options: GenerationOptions) -> list[Any]:
    draft = PromptLookup() if backend is SPECULATIVE else None
    prompts = PROMPTS[:1] if backend.max_batch_size == 1 else PROMPTS
    results = run_backend(backend, network, prompts, options, draft=draft)
    return [
        (
            one.ids,
            one.finish_reason,
            round(one.score, 7),
            [list(t.alternatives) for t in one.logprobs],
            steps(one),
        )
        for result in results
        for one in (result, *result.alternatives)
    ]


def check(network: Any, backends: tuple[Backend, ...], asked: dict[str, Any]) -> None:
    options = GenerationOptions(**{"max_tokens": 6, **asked})
    reference = found(REFERENCE, network, options)
    for backend in backends:
        assert found(backend, network, options) == reference, backend.name


def test_every_field_of_the_config_and_every_option_has_a_case() -> None:
    literals = {name for name, _ in CHOICES}
    others = set(OTHER_FIELDS) | SIZES | TRAINING | ENCODER_ONLY
    assert {field.name for field in fields(StackConfig)} == literals | others
    assert {field.name for field in fields(GenerationOptions)} == set(OPTIONS)
    assert UNUSED_FIELDS <= TRAINING
    assert all(field.default is not MISSING for field in fields(GenerationOptions))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "value"), CHOICES)
def test_every_choice_is_declared_and_decoded_as_by_the_reference_or_runs_there(
    family: str, name: str, value: str
) -> None:
    if family == "seq2seq" and (name, value) == ("residual", "parallel"):
        pytest.skip("cross-attention has no parallel form")
    network = make(family, {**COMPANIONS.get((name, value), {}), name: value})
    options = GenerationOptions()
    if value not in EVERY_CHOICE.get(name, ()):
        assert choose_backend(network, options) is REFERENCE
        return
    assert choose_backend(network, options) is CPU
    check(network, (CPU, GPU_GREEDY, GPU), {})
    check(network, (CPU, GPU_BEAM), {"beam": 3, "num_return_sequences": 3})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", OTHER_FIELDS)
def test_every_other_field_is_decoded_as_by_the_reference(family: str, name: str) -> None:
    settings = dict(OTHER_FIELDS[name])
    if name == "rotary_scaling":
        from qkv.blocks import RotaryScaling

        settings["rotary_scaling"] = RotaryScaling(kind="linear", factor=2.0)
    network = make(family, settings)
    if name in REFERENCE_FIELDS or settings.get("feedforward") == "moe":
        assert choose_backend(network, GenerationOptions()) is REFERENCE
        assert not supports(EVERY_CHOICE, network.output_stack.config)
        return
    check(network, (CPU, GPU_GREEDY, GPU), {})
    check(network, (CPU, GPU_BEAM), {"beam": 3})


def test_a_cap_of_the_logits_is_decoded_as_by_the_reference() -> None:
    plain, config = make("decoder", {}), make("decoder", {}).config
    network = build(replace(config, head=replace(config.head, logit_cap=0.5)), dtype=torch.float64).eval()
    network.load_state_dict(plain.state_dict())
    assert choose_backend(network, GenerationOptions()) is CPU
    check(network, (CPU, GPU_GREEDY, GPU), {})
    check(network, (CPU, GPU), {"logprobs": 2})
    ids = torch.tensor([PROMPTS[0]])
    assert torch.equal(network(ids), 0.5 * torch.tanh(plain(ids) / 0.5))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_declared_and_obeyed_or_left_to_another_backend(family: str, name: str) -> None:
    network = tiny(family)
    options = GenerationOptions(**{"max_tokens": 6, **OPTIONS[name]})
    needed = options.in_effect((END,))
    assert name in needed or name == "stop"
    backends = [b for b in (*BACKENDS, SPECULATIVE) if b not in (FUSED, FUSED_GREEDY)]  # these have a test of their own
    able = tuple(b for b in backends if needed <= b.options and (options.beam > 1 or not b.requires_beam))
    assert set(able) == {REFERENCE} if name == "tap" else {REFERENCE, CPU} <= set(able)
    check(network, able, OPTIONS[name])


@pytest.mark.parametrize(
    ("asked", "backend"),
    [
        ({}, GPU_GREEDY),
        ({"seed": 3, "top_p": 0.5}, GPU_GREEDY),  # idle without a temperature
        ({"temperature": 1.0}, GPU),
        ({"logprobs": 1}, GPU),
        ({"beam": 2, "logprobs": 1}, GPU_BEAM),
        ({"beam": 2, "no_repeat_ngram_size": 2}, REFERENCE),
    ],
)
def test_on_a_gpu_options_decide(asked: dict[str, Any], backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    network: Any = tiny("decoder")
    parameter = SimpleNamespace(device=torch.device("cuda"))
    monkeypatch.setattr(network, "parameters", lambda: iter([parameter]))
    assert choose_backend(network, GenerationOptions(**asked), batch_size=2) is backend
    streamed = GPU if backend is GPU_GREEDY else backend
    assert choose_backend(network, GenerationOptions(**asked), batch_size=2, streams=True) is streamed


def test_a_choice_that_nobody_declares_runs_on_the_reference() -> None:
    """What happens when a value is added to a `Literal`, or a `Literal` to the config."""
    config: Any = make("decoder", {}).decoder.config
    assert supports(EVERY_CHOICE, config)
    assert not supports({**EVERY_CHOICE, "norm": frozenset({"rmsnorm"})}, config)
    assert not supports({name: EVERY_CHOICE[name] for name in EVERY_CHOICE if name != "norm"}, config)


def test_training_and_other_kernels_run_on_the_reference() -> None:
    network: Any = tiny("decoder")
    assert choose_backend(network, GenerationOptions()) is CPU
    assert choose_backend(network.train(), GenerationOptions()) is REFERENCE
    network.eval()
    network.decoder.kernel = "eager"
    assert choose_backend(network, GenerationOptions()) is REFERENCE
    assert generate(network, PROMPTS, GenerationOptions(max_tokens=3))
