"""The kernel over pages computes what the network computes. It needs Triton: on a GPU, or interpreted on a CPU."""

import os
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from interpreted import replace_language_once

from qkv.blocks import Inputs, SelfCache
from qkv.decode import Engine, GenerationOptions, generate
from qkv.decode.engine.graphs import EngineGraphs
from qkv.decode.engine.pages import PagedCache, PagePool
from qkv.decode.runner import next_logits
from qkv.models import Config, Decoder, build
from qkv.models.tables.presets import find_preset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is loaded
paged_step: Any = pytest.importorskip(
    "qkv.decode.engine.paged_step", reason="Triton is not installed", exc_type=ImportError
)
replace_language_once()

SIZES = {"vocab_size": 41, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = find_preset("llama-1.1b", **SIZES, num_key_value_heads=2, intermediate_size=40)
GPT2 = find_preset("gpt2", vocab_size=41, n_embd=32, n_layer=2, n_head=2, n_positions=64, eos_token_id=40)


@pytest.fixture(autouse=True)
def _loops_with_bounds_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter converts a bound with `int`, which NumPy since 2.4 refuses for an array of one number."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    usual = interpreter._patch_lang_tensor

    def patch(tensor: Any, *scope: Any) -> None:
        usual(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)


def with_stack(config: Config, **changes: Any) -> Config:
    return replace(config, decoder=replace(config.stack, **changes))


CASES = {
    "learned positions": GPT2,
    "rotary, grouped heads": LLAMA,
    "part rotates": with_stack(LLAMA, rotary_fraction=0.5),
    "a window": with_stack(LLAMA, sliding_window=3),
    "a window in one layer": with_stack(LLAMA, sliding_window=3, sliding_window_layers=(1,)),
    "parallel": with_stack(LLAMA, residual="parallel"),
    "sandwich norms": with_stack(LLAMA, norm_placement="sandwich"),
}


@torch.inference_mode(False)
def made(config: Config) -> Decoder:
    torch.manual_seed(1)
    network = build(replace(config, head=replace(config.head, tied=False)), device=DEVICE).eval()
    assert isinstance(network, Decoder)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.2)
    return network


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_a_step_over_pages_is_that_of_the_network(name: str) -> None:
    network = made(CASES[name])
    assert paged_step.is_supported(network)
    pool = PagePool(network.new_cache(1, 1), 30, 4)
    for tensor in (*pool.keys, *pool.values):
        tensor[1:] = torch.randn_like(tensor[1:])
    stored = [tensor.clone() for tensor in (*pool.keys, *pool.values)]
    lengths = [0, 5, 11, 3]  # so many tokens are in the cache
    tables = torch.zeros(5, 5, dtype=torch.long, device=DEVICE)  # the last row is padding
    tables[:4, :3] = 1 + torch.randperm(12).view(4, 3).to(DEVICE)
    positions = torch.tensor([*lengths, 0], device=DEVICE)[:, None]
    ids = torch.randint(0, 41, (5, 1), device=DEVICE)
    inputs = torch.cat([positions, tables], dim=1)
    ours = paged_step.PagedStep(network, pool)(ids, inputs[:, :1], inputs[:, 1:])
    written = [tensor.clone() for tensor in (*pool.keys, *pool.values)]
    for tensor, before in zip((*pool.keys, *pool.values), stored, strict=True):
        tensor.copy_(before)
    cache = cast(SelfCache, PagedCache(pool, tables[:4], torch.tensor(lengths, device=DEVICE)))
    wanted = next_logits(network, Inputs(ids[:4], positions=positions[:4]), cache=cache)
    torch.testing.assert_close(ours[:4, :41], wanted, rtol=1e-4, atol=1e-4)
    assert ours.shape[1] == 64, "the vocabulary is padded"
    assert (ours[:, 41:] == float("-inf")).all()
    for one, other in zip(written, (*pool.keys, *pool.values), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        assert not one[0].any(), "padding writes nothing"


@torch.inference_mode()
def test_changed_weights_are_used() -> None:
    network = made(GPT2)
    pool = PagePool(network.new_cache(1, 1), 4, 4)
    step, inputs = paged_step.PagedStep(network, pool), torch.tensor([[0, 1]], device=DEVICE)
    ids = torch.tensor([[7]], device=DEVICE)
    before = step(ids, inputs[:, :1], inputs[:, 1:])[:, :41]
    assert network.head.out is not None
    with torch.inference_mode(False), torch.no_grad():
        network.head.out.weight.mul_(2.0)
    step.refresh_weights()
    torch.testing.assert_close(step(ids, inputs[:, :1], inputs[:, 1:])[:, :41], 2.0 * before)


@torch.inference_mode()
def test_the_choice_is_the_argmax_of_each_row() -> None:
    network = made(GPT2)
    step = paged_step.PagedStep(network, PagePool(network.new_cache(1, 1), 4, 4))
    logits = torch.randn(4, 9000, device=DEVICE)
    logits[1, 3] = logits[1, 8000] = 9.0  # the first of equal ones
    logits[2, 5000] = float("nan")
    logits[3, 17] = float("inf")
    slots, tokens = (
        torch.tensor([[2, 0], [0, 0], [4, 0], [1, 0]], device=DEVICE)[:, :1],
        torch.full((5,), -7, device=DEVICE),
    )
    output = step.choose(logits, slots, tokens)
    assert output[1, 0] == 3
    assert tokens.tolist() == [3, 17, int(output[0, 0]), -7, int(output[2, 0])]
    wanted, token = logits[:2].double().log_softmax(-1).max(-1)
    torch.testing.assert_close(output[:2], torch.stack([token.double(), wanted, logits[:2].max(-1)[0].double()], dim=1))
    assert output[2:, 1].isnan().all(), "a row with NaN or infinity has no log-probability, which the engine reports"
    assert 0 <= output[2, 0] < 9000


@pytest.mark.parametrize("changes", [{"position": "alibi"}, {"position": "t5"}, {"qk_norm": "head"}, {"head_dim": 12}])
def test_what_the_kernel_does_not_implement_runs_on_the_reference(changes: dict[str, Any]) -> None:
    assert not paged_step.is_supported(made(with_stack(LLAMA, **changes)))
    assert not paged_step.is_supported(made(LLAMA).double())


@pytest.mark.parametrize("behind", [0, 1])
def test_an_engine_writes_with_it_what_each_request_alone_gets(behind: int) -> None:
    network = made(LLAMA)
    engine = Engine(network, max_sequences=3, num_pages=30, page_size=4, max_prefill_tokens=6)
    graphs = engine._model.graphs = EngineGraphs(network, engine.page_pool, 3)
    graphs.paged_step = graphs.paged_step or paged_step.PagedStep(network, engine.page_pool)
    engine._max_pending_steps = behind
    asked = [([5, 6, 9, 11, 4, 7, 7, 8], 7), ([5, 6, 9, 11, 4], 3), ([8], 6), ([3, 4, 4, 12], 5)]
    requests = [engine.submit(prompt, GenerationOptions(max_tokens=n)) for prompt, n in asked]
    engine.run()
    for request, (prompt, n) in zip(requests, asked, strict=True):
        assert request.ids == generate(network, [prompt], GenerationOptions(max_tokens=n))[0].ids
