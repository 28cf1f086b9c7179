"""Choices of a stack that no fast path implements: each changes the outputs, and everything around it agrees."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import qkv
from qkv.blocks import Inputs, StackConfig
from qkv.decode import GenerationOptions, generate
from qkv.decode.backend import CPU, choose_backend
from qkv.models import Config, Network, build
from qkv.models.tables.summary import summarise_model

SIZE: dict[str, Any] = {"vocab_size": 20, "width": 16, "layers": 3, "heads": 4, "ffn_width": 24, "max_positions": 64}
MODERN = {"position": "rotary", "norm": "rmsnorm", "norm_affine": "gain", "bias": "none", "kv_heads": 2}
CHOICES: dict[str, dict[str, Any]] = {
    "score cap": {"score_cap": 0.3},
    "sinks": {"attention_sinks": "learned"},
    "value residual": {"value_residual": "first"},
    "value residual with windows": {"value_residual": "first", "sliding_window": 3, "sliding_window_layers": (1,)},
    "layer scale": {"layer_scale": 0.1},
    "experts": {"feedforward": "moe", "experts": 4},
    "experts of Switch": {"feedforward": "moe", "experts": 3, "experts_per_token": 1, "router_softmax": "all"},
    "ReLU²": {"feedforward": "relu2"},
    "gated ReLU²": {"feedforward": "reglu2"},
}
PROMPTS = [[5, 6, 7, 3, 9], [8, 4]]


def network_with(settings: dict[str, Any], family: str = "decoder") -> Network:
    torch.manual_seed(0)
    stack = StackConfig(**{**SIZE, **MODERN, "init_std": 0.3, **settings})
    stacks = {"decoder": stack} if family == "decoder" else {"encoder": stack, "decoder": stack}
    head = qkv.HeadConfig(kind="lm", outputs=20)
    network = build(Config(**stacks, head=head, decoder_start_token_id=2, eos_token_ids=(1,)), dtype=torch.float64)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return network.eval()


def log_probs(network: Network, prompt: list[int], ids: list[int], source: list[int] | None) -> list[float]:
    inputs = Inputs(torch.tensor([prompt + ids]), source=None if source is None else Inputs(torch.tensor([source])))
    with torch.no_grad():
        table = network(inputs).log_softmax(-1)[0, len(prompt) - 1 :]
    return [float(table[step, token]) for step, token in enumerate(ids)]


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
@pytest.mark.parametrize("name", CHOICES)
def test_cached_decoding_of_padded_prompts_is_the_forward_pass(name: str, family: str) -> None:
    network = network_with(CHOICES[name], family)
    results = generate(network, PROMPTS, GenerationOptions(max_tokens=6, min_tokens=6))
    for prompt, result in zip(PROMPTS, results, strict=True):
        sides = ([2], prompt) if family == "seq2seq" else (prompt, None)
        expected = log_probs(network, sides[0], result.ids, sides[1])
        assert [one.logprob for one in result.logprobs] == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("name", CHOICES)
def test_packed_documents_are_documents_alone_and_checkpointing_changes_no_gradient(name: str) -> None:
    network = network_with(CHOICES[name]).train()
    packed = Inputs(torch.tensor([[*PROMPTS[0], *PROMPTS[1], 0]]), document_ids=torch.tensor([[1] * 5 + [2] * 2 + [0]]))
    out = network(packed)
    alone = torch.cat([network(torch.tensor([prompt])) for prompt in PROMPTS], dim=1)
    torch.testing.assert_close(out[:, :7], alone, rtol=1e-10, atol=1e-10)
    gradients = []
    for is_checkpointed in (False, True):
        network.zero_grad()
        network.stacks["decoder"].gradient_checkpointing = is_checkpointed
        network(packed)[:, :7].square().sum().backward()
        gradients.append([torch.zeros(()) if p.grad is None else p.grad.clone() for p in network.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CHOICES)
def test_it_is_counted_saved_and_changes_the_outputs(name: str, tmp_path: Any) -> None:
    network = network_with(CHOICES[name])
    summary = summarise_model(network.config)
    assert summary.total == sum(parameter.numel() for parameter in network.parameters())
    assert summary.unstated_flops == ()
    model = qkv.Model(network.config, network.float(), None)
    model.save(tmp_path)
    ids = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        assert torch.equal(qkv.load(tmp_path).network(ids), network(ids))
        if "feedforward" not in CHOICES[name]:
            fields = {field: "none" if isinstance(value, str) else 0 for field, value in CHOICES[name].items()}
            plain = replace(network.config.stack, **{**fields, "sliding_window_layers": ()})
            other = build(replace(network.config, decoder=plain)).eval()
            other.load_state_dict(network.state_dict(), strict=False)
            assert not torch.allclose(other(ids), network(ids), atol=1e-3)
    with pytest.raises(qkv.QkvError):
        model.export(tmp_path / "out", "ctranslate2")


def test_a_mixture_counts_the_experts_of_a_token() -> None:
    """Experts that no token uses cost nothing: with all of them chosen, a mixture is as active as it is large."""
    sizes = {
        experts: summarise_model(network_with({"feedforward": "moe", "experts": experts}).config) for experts in (2, 8)
    }
    assert sizes[2].active == sizes[2].total
    router = 3 * 16 * (8 - 2)
    assert sizes[8].active == sizes[2].active + router
    assert sizes[8].flops_forward == sizes[2].flops_forward + 2 * router
    assert sizes[8].total == sizes[2].total + router + 3 * 6 * 3 * 16 * 24


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"feedforward": "moe", "experts": 2, "experts_per_token": 3}, "experts_per_token = 3 must be at most"),
        ({"feedforward": "swiglu", "experts": 4}, 'experts = 4 is for feedforward = "moe", not for "swiglu"'),
        ({"block": "lstm", "heads": 0, "ffn_width": 0, "score_cap": 1.0}, "score_cap = 1.0 does not apply"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StackConfig(**{**SIZE, **settings})


def test_outputs_for_later_tokens_are_counted_and_change_no_decoding() -> None:
    plain = network_with({})
    config = replace(plain.config, head=replace(plain.config.head, future_tokens=2))
    network = build(config, dtype=torch.float64).eval()
    network.load_state_dict(plain.state_dict(), strict=False)
    assert choose_backend(network, GenerationOptions()) is CPU
    options = GenerationOptions(max_tokens=5)
    assert [one.ids for one in generate(network, PROMPTS, options)] == [
        one.ids for one in generate(plain, PROMPTS, options)
    ]
    summary, before = summarise_model(config), summarise_model(plain.config)
    assert summary.total == sum(parameter.numel() for parameter in network.parameters())
    assert summary.flops_forward == before.flops_forward
    assert summary.flops_training - before.flops_training == 3 * 2 * 2 * (16 * 16 + 16 * 20)


def test_stochastic_depth_leaves_out_whole_sequences_and_keeps_the_mean() -> None:
    block_input = torch.ones(4000, 1, 2, dtype=torch.float64)
    torch.manual_seed(0)
    dropped = qkv.blocks.dropout.drop_sequences(block_input, 0.25)
    assert {*dropped.unique().tolist()} == {0.0, 1 / 0.75}
    assert (dropped[..., 0] == dropped[..., 1]).all()
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.03)
    network = network_with({"drop_path": 0.5})
    ids = torch.tensor([PROMPTS[0]])
    assert torch.equal(network(ids), network(ids))
    network.train()
    assert not torch.equal(network(ids), network(ids))
