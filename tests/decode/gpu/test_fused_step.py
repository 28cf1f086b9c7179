"""The kernels for one row write what the plain steps write. They need Triton: on a GPU, or interpreted on a CPU."""

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from decode_models import run_backend
from interpreted import replace_language_once

from qkv.decode import GenerationOptions
from qkv.decode.backend import FUSED, REFERENCE
from qkv.decode.gpu import static_runner as static_step
from qkv.decode.gpu.greedy import GreedyState
from qkv.decode.gpu.static_runner import StaticRunner
from qkv.decode.runner import make_runner
from qkv.models import Config, build
from qkv.models.tables.presets import find_preset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is loaded
one_row_step: Any = pytest.importorskip(
    "qkv.decode.gpu.fused_step", reason="Triton is not installed", exc_type=ImportError
)
replace_language_once()

NEW = 4
PROMPT = [5, 6, 9, 11, 4]
VOCAB = 41
LLAMA = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA |= {"num_key_value_heads": 2, "intermediate_size": 40}


def with_stack(config: Config, **changes: Any) -> Config:
    assert config.decoder is not None
    return replace(config, decoder=replace(config.decoder, **changes))


TIED = find_preset("gpt2", vocab_size=VOCAB, n_embd=24, n_inner=40, n_layer=2, n_head=3, eos_token_id=VOCAB - 1)
GPT2 = replace(TIED, head=replace(TIED.head, tied=False))  # else a random one repeats its last token for ever
CASES = {
    "gpt2": GPT2,
    "llama": find_preset("llama-1.1b", **LLAMA),
    "relu": with_stack(GPT2, feedforward="relu", embedding_scale="sqrt"),
    "exact gelu": with_stack(GPT2, feedforward="gelu"),
    "a gate with biases": with_stack(GPT2, feedforward="geglu_tanh"),
    "part turns": with_stack(find_preset("llama-1.1b", **LLAMA), rotary_fraction=0.5, feedforward="reglu2"),
    "no gain": with_stack(find_preset("llama-1.1b", **LLAMA), norm_affine="none"),
}


def made(config: Config, *, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(1)
    network: Any = build(config, device=torch.device(DEVICE), dtype=dtype).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias") or parameter.dim() > 1:
                parameter.normal_(std=0.3)  # biases start at 0, and matrices near it
    return network


def written(config: Config, hand: bool, *, end: tuple[int, ...] = (), **kind: Any) -> tuple[GreedyState, StaticRunner]:
    """One row after all its steps, by the kernels or by the plain steps."""
    network = made(config, **kind)
    assert one_row_step.is_supported(network)
    with torch.inference_mode():
        run = StaticRunner(make_runner(network, [PROMPT], GenerationOptions(max_tokens=NEW)), NEW)
        greedy = GreedyState(run, end, NEW)
        greedy.choose(run.prefill_logits)
        step = one_row_step.FusedGreedyStep(run, greedy) if hand else greedy.step
        for _ in range(NEW - 1):
            step(run.view(run.num_slots))
    return greedy, run


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stretches of slots are filled and a third is not, and the vocabulary has several parts."""
    monkeypatch.setattr(one_row_step, "SLOTS_PER_PROGRAM", 4)
    monkeypatch.setattr(static_step, "round_up", lambda count: -(-count // 12) * 12)
    monkeypatch.setattr(one_row_step, "LOGITS_PER_PROGRAM", 16)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("small")
def test_steps_by_kernels_are_the_plain_steps(case: str) -> None:
    """Tokens, their probabilities, what is kept in the caches and where the next token goes."""
    plain, by_hand = written(CASES[case], False), written(CASES[case], True)
    assert len(set(plain[0].written[0].tolist())) > 1
    compare(by_hand, plain, 1e-4)


def test_one_stretch_and_one_part_are_the_plain_steps_too() -> None:
    compare(written(CASES["llama"], True), written(CASES["llama"], False), 1e-4)


@pytest.mark.usefixtures("small")
def test_steps_in_bfloat16_differ_by_its_rounding_alone() -> None:
    half = {"dtype": torch.bfloat16}
    plain, by_hand = written(CASES["gpt2"], False, **half), written(CASES["gpt2"], True, **half)
    torch.testing.assert_close(by_hand[0].logprobs[:, :2], plain[0].logprobs[:, :2], rtol=0.02, atol=0.02)


def compare(by_hand: tuple[GreedyState, StaticRunner], plain: tuple[GreedyState, StaticRunner], close: float) -> None:
    torch.testing.assert_close(by_hand[0].written, plain[0].written)
    torch.testing.assert_close(by_hand[0].logprobs, plain[0].logprobs, rtol=close, atol=close / 10)
    for mine, theirs in zip(by_hand[1].keys + by_hand[1].values, plain[1].keys + plain[1].values, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=close, atol=close / 10)
    for name in ("next_positions", "next_slots"):
        assert torch.equal(getattr(by_hand[1], name), getattr(plain[1], name))
    assert torch.equal(by_hand[0].num_written, plain[0].num_written)


@pytest.mark.parametrize("asked", [{"temperature": 1.5, "seed": 3}, {"repetition_penalty": 1.5}])
def test_the_host_may_choose(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn and filtered text by the kernels; on a CPU they have to be asked for."""
    network, options = made(CASES["llama"]), GenerationOptions(max_tokens=NEW, **asked)
    plain = run_backend(REFERENCE, network, [PROMPT], options)
    monkeypatch.setattr(StaticRunner, "logits", None)  # the kernels run in its place
    by_hand = run_backend(FUSED, network, [PROMPT], options)
    assert by_hand[0].ids == plain[0].ids
    assert by_hand[0].score == pytest.approx(plain[0].score, rel=1e-4)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which interprets them
@pytest.mark.usefixtures("small")
def test_numbers_that_are_none_choose_a_token_still() -> None:
    network = made(CASES["gpt2"])
    with torch.inference_mode():
        run = StaticRunner(make_runner(network, [PROMPT], GenerationOptions(max_tokens=2)), 2)
        greedy = GreedyState(run, (), 2)
        greedy.choose(run.prefill_logits)
        one_row_step.FusedGreedyStep(run, greedy).choose(torch.full((VOCAB,), float("nan"), device=DEVICE))
    assert 0 <= int(greedy.written[0, 1]) < VOCAB


def test_an_end_ends_the_row() -> None:
    free, _ = written(CASES["gpt2"], True)
    end = int(free.written[0, 2])
    plain, _ = written(CASES["gpt2"], False, end=(VOCAB - 1, end))
    by_hand, _ = written(CASES["gpt2"], True, end=(VOCAB - 1, end))
    assert bool(by_hand.ended)
    assert -1 in by_hand.written
    torch.testing.assert_close(by_hand.written, plain.written)
    torch.testing.assert_close(by_hand.logprobs, plain.logprobs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_placement": "post"},
        {"residual": "parallel"},
        {"qk_norm": "head"},
        {"position": "alibi"},
        {"sliding_window": 4},
        {"embedding_norm": "extra"},
    ],
)
def test_what_the_kernels_do_not_know_is_left_to_the_plain_steps(changes: dict[str, Any]) -> None:
    assert not one_row_step.is_supported(build(with_stack(CASES["gpt2"], **changes)))


def test_a_network_whose_parts_were_changed_is_left_to_the_plain_steps() -> None:
    class Louder(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    whole, hooked, strided, other = (made(CASES["gpt2"]) for _ in range(4))
    assert one_row_step.is_supported(whole)
    hooked.decoder.blocks[1].ffn.up.register_forward_hook(lambda *_: None)
    weight = strided.decoder.blocks[0].ffn.up.weight
    strided.decoder.blocks[0].ffn.up.weight = torch.nn.Parameter(weight.detach().T.contiguous().T)
    other.decoder.blocks[0].ffn.down = Louder(40, 24)
    unit = build(replace(CASES["gpt2"], head=replace(CASES["gpt2"].head, normalize=True)))
    assert not any(map(one_row_step.is_supported, (hooked, strided, other, unit)))


@pytest.mark.parametrize("inputs", [48, 768, 4096, 5632, 14336, 28672])
@pytest.mark.parametrize("gated", [False, True])
def test_a_thread_holds_no_more_weights_than_it_has_registers_for(inputs: int, gated: bool) -> None:
    block, warps = one_row_step.choose_tile(1000, inputs, gated)
    full = 1 << (inputs - 1).bit_length()
    assert block >= 1
    assert block * full * (2 if gated else 1) / (32 * warps) <= 256
