"""The kernels for one row write what the plain steps write. They need Triton: on a GPU, or interpreted on a CPU."""

import os
from dataclasses import replace
from typing import Any

import pytest
import torch

from qkv.decode import Options
from qkv.decode.generate import start
from qkv.decode.static import Greedy
from qkv.decode.static_step import StaticRun
from qkv.decode.weight_int8 import quantise_weights
from qkv.models import Config, build, presets

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is loaded
one_row_step: Any = pytest.importorskip(
    "qkv.decode.one_row_step", reason="Triton is not installed", exc_type=ImportError
)

NEW = 6
LLAMA = {"vocab": 97, "width": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_width": 80}


def with_stack(config: Config, **changes: Any) -> Config:
    assert config.decoder is not None
    return replace(config, decoder=replace(config.decoder, **changes))


CASES = {
    "gpt2": presets.gpt2(vocab=97, width=48, layers=2, heads=3),
    "llama": presets.llama(**LLAMA),
    "relu": with_stack(presets.gpt2(vocab=97, width=48, layers=2, heads=3), feedforward="relu", embedding_scale="sqrt"),
    "exact gelu": with_stack(presets.gpt2(vocab=97, width=48, layers=2, heads=3), feedforward="gelu"),
    "part turns": with_stack(presets.llama(**LLAMA), rotary_share=0.5, feedforward="geglu_tanh"),
    "no gain": with_stack(presets.llama(**LLAMA), norm_affine="none"),
}


def written(config: Config, hand: bool, *, int8: bool = False, end: tuple[int, ...] = ()) -> tuple[Greedy, StaticRun]:
    """One row after all its steps, by the kernels or by the plain steps."""
    torch.manual_seed(1)
    network: Any = build(config, device=torch.device(DEVICE)).eval()
    network = quantise_weights(network) if int8 else network
    assert one_row_step.fits(network)
    with torch.inference_mode():
        run = StaticRun(start(network, [[5, 6, 9, 11, 4]], Options(max_tokens=NEW)), NEW)
        greedy = Greedy(run, end, NEW)
        greedy.choose(run.first)
        step = one_row_step.OneRowStep(run, greedy) if hand else greedy.step
        for _ in range(NEW - 1):
            step(run.seen(run.length))
    return greedy, run


@pytest.mark.parametrize(
    ("case", "int8", "stretches"),
    [*((case, False, 1) for case in CASES), *((case, i, 4) for case in ("gpt2", "llama") for i in (False, True))],
)
def test_steps_by_kernels_are_the_plain_steps(
    case: str, int8: bool, stretches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens, their probabilities, what is kept in the caches and where the next token goes."""
    if stretches > 1:
        monkeypatch.setattr(one_row_step, "BLOCK", 16)
    plain, by_hand = written(CASES[case], False, int8=int8), written(CASES[case], True, int8=int8)
    torch.testing.assert_close(by_hand[0].written, plain[0].written)
    torch.testing.assert_close(by_hand[0].logprobs, plain[0].logprobs, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(by_hand[1].keys + by_hand[1].values, plain[1].keys + plain[1].values, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    for name in ("position", "slots"):
        assert torch.equal(getattr(by_hand[1], name), getattr(plain[1], name))
    assert torch.equal(by_hand[0].count, plain[0].count)


def test_an_end_ends_the_row() -> None:
    free, _ = written(CASES["gpt2"], True)
    end = int(free.written[0, 3])
    plain, _ = written(CASES["gpt2"], False, end=(96, end))
    by_hand, _ = written(CASES["gpt2"], True, end=(96, end))
    assert bool(by_hand.ended)
    assert -1 in by_hand.written
    torch.testing.assert_close(by_hand.written, plain.written)
    torch.testing.assert_close(by_hand.logprobs, plain.logprobs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_place": "post"},
        {"residual": "parallel"},
        {"qk_norm": "head"},
        {"position": "alibi"},
        {"window": 4},
        {"embedding_norm": "added"},
    ],
)
def test_what_the_kernels_do_not_know_is_left_to_the_plain_steps(changes: dict[str, Any]) -> None:
    assert not one_row_step.fits(build(with_stack(CASES["gpt2"], **changes)))
