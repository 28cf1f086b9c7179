"""The kernels for batches compute what the plain steps compute. They need Triton: on a GPU, or interpreted on a CPU."""

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from interpreted import replace_language_once

from qkv.decode import GenerationOptions
from qkv.decode import runner as model_runner
from qkv.decode.gpu import graphs
from qkv.decode.gpu.beam import static_beam_search
from qkv.decode.gpu.graph_runner import GraphRunner
from qkv.decode.gpu.greedy import GreedyState, Kernels, decode_greedy
from qkv.decode.gpu.static_runner import StaticRunner
from qkv.decode.runner import make_runner
from qkv.models import Config, Seq2Seq, build
from qkv.models.tables.presets import find_preset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is loaded
batched_runner: Any = pytest.importorskip(
    "qkv.decode.gpu.batched_runner", reason="Triton is not installed", exc_type=ImportError
)
replace_language_once()

VOCAB, NEW = 41, 5
PROMPTS = [[5, 6, 9, 11, 4], [7], [8, 3, 12]]
SIZES = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = find_preset("llama-1.1b", **SIZES, num_key_value_heads=2, intermediate_size=40)
GPT2 = find_preset("gpt2", vocab_size=VOCAB, n_embd=48, n_inner=40, n_layer=2, n_head=3, eos_token_id=VOCAB - 1)


def with_stack(config: Config, **changes: Any) -> Config:
    stacks = {name: replace(stack, **changes) for name in ("encoder", "decoder") if (stack := getattr(config, name))}
    return replace(config, **stacks)


BASE = with_stack(find_preset("transformer-base", vocab_size=VOCAB, width=32, layers=2, heads=2), ffn_width=40)
BASE = replace(BASE, decoder_start_token_id=2)
CASES = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "encoder-decoder, post-norm": BASE,
    "encoder-decoder, pre-norm": with_stack(BASE, norm_placement="pre", norm="rmsnorm", norm_affine="gain"),
    "a gate with biases": with_stack(GPT2, feedforward="geglu_tanh"),
    "part rotates": with_stack(LLAMA, rotary_fraction=0.5, feedforward="reglu2"),
    "no gain": with_stack(LLAMA, norm_affine="none", feedforward="gelu"),
    "post-norm decoder": with_stack(GPT2, norm_placement="post", embedding_norm="extra"),
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of slots, columns and logits, the last ones not full.

    Bounds of loops may come from memory (see test_paged_step).
    """
    monkeypatch.setattr(batched_runner, "SLOTS_PER_BLOCK", 16)
    monkeypatch.setattr(batched_runner, "LOGITS_PER_PROGRAM", 16)
    monkeypatch.setattr(batched_runner.batched_blocks, "COLUMNS_PER_PROGRAM", 32)
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    usual = interpreter._patch_lang_tensor

    def patch(tensor: Any, *scope: Any) -> None:
        usual(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)


def made(config: Config, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(1)
    network: Any = build(
        replace(config, head=replace(config.head, tied=False)), device=torch.device(DEVICE), dtype=dtype
    )
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.normal_(std=1.0 if "token" in name else 0.2)
            parameter.add_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    return network.eval()


def kernels() -> Kernels:
    return Kernels(batched_runner.BatchedRunner, batched_runner.BatchedGreedyStep)


def greedy(network: Any, use_kernels: bool, prompts: list[list[int]], new: int = NEW, eos: tuple[int, ...] = ()) -> Any:
    with torch.inference_mode():
        runner = make_runner(network, prompts, GenerationOptions(max_tokens=new))
        return decode_greedy(runner, eos, new, kernels=kernels() if use_kernels else None)


def compare(ours: GreedyState, theirs: GreedyState, tolerance: float = 1e-4) -> None:
    assert torch.equal(ours.written, theirs.written)
    torch.testing.assert_close(ours.logprobs, theirs.logprobs, rtol=tolerance, atol=tolerance)
    for name in ("keys", "values"):
        for mine, other in zip(getattr(ours.runner, name), getattr(theirs.runner, name), strict=True):
            torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)
    for name in ("next_positions", "next_slots"):
        assert torch.equal(getattr(ours.runner, name), getattr(theirs.runner, name))
    assert torch.equal(ours.num_written, theirs.num_written)


@pytest.mark.parametrize("case", CASES)
def test_greedy_steps_are_the_plain_steps(case: str) -> None:
    """Tokens, their probabilities, the caches, and where the next token goes, for prompts of unequal length."""
    network = made(CASES[case])
    assert batched_runner.is_supported(network)
    plain = greedy(network, False, PROMPTS)
    assert len(set(plain.written.flatten().tolist())) > 2
    compare(greedy(network, True, PROMPTS), plain)


def test_many_slots_are_read_in_several_blocks() -> None:
    network, prompts = made(LLAMA), [[*range(3, 40)], [9] * 20]
    compare(greedy(network, True, prompts), greedy(network, False, prompts))


def test_a_sequence_that_has_ended_stays_so() -> None:
    network = made(GPT2)
    eos = tuple({int(greedy(network, False, PROMPTS).written[0, 1]), VOCAB - 1})
    plain = greedy(network, False, PROMPTS, eos=eos)
    assert (plain.written == -1).any()
    compare(greedy(network, True, PROMPTS, eos=eos), plain)


@pytest.mark.parametrize("case", ["gpt2", "llama", "encoder-decoder, post-norm"])
@pytest.mark.parametrize("beam", [2, 3])
def test_beam_search_is_that_of_the_plain_steps(case: str, beam: int) -> None:
    network, options = made(CASES[case]), GenerationOptions(max_tokens=NEW, beam=beam)

    def search(kind: type[StaticRunner]) -> list[Any]:
        with torch.inference_mode():
            states = static_beam_search(make_runner(network, PROMPTS, options), options, (3,), runner_class=kind)
        return [[(h.ids, round(h.normalized_score, 4)) for h in state.finished] for state in states]

    assert search(batched_runner.BatchedRunner) == search(StaticRunner)


def test_a_graph_runner_returns_the_logits_of_the_plain_steps() -> None:
    """The logits have the columns of the vocabulary, which the kernels pad."""
    network = made(LLAMA)

    def logits(kind: type[StaticRunner]) -> torch.Tensor:
        with torch.inference_mode():
            runner = GraphRunner(make_runner(network, PROMPTS, GenerationOptions(max_tokens=4)), 4, runner_class=kind)
            return torch.stack(
                [runner.step(torch.tensor(ids, device=DEVICE)).clone() for ids in ([3, 4, 5], [9, 9, 9])]
            )

    ours = logits(batched_runner.BatchedRunner)
    assert ours.shape[-1] == VOCAB
    torch.testing.assert_close(ours, logits(StaticRunner), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(DEVICE == "cpu", reason="Triton's interpreter has no products in bfloat16")
def test_steps_in_bfloat16_differ_by_rounding_alone() -> None:
    network = made(GPT2, torch.bfloat16)
    ours, plain = (greedy(network, use, PROMPTS, new=2) for use in (True, False))
    torch.testing.assert_close(ours.logprobs, plain.logprobs, rtol=0.03, atol=0.05)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which interprets the kernels
def test_logits_that_are_not_numbers_choose_a_token_still() -> None:
    network = made(GPT2)
    with torch.inference_mode():
        run = batched_runner.BatchedRunner(make_runner(network, PROMPTS, GenerationOptions(max_tokens=2)), 2)
        state = GreedyState(run, (), 2)
        batched_runner.BatchedGreedyStep(run, state).choose(torch.full((3, VOCAB), float("nan"), device=DEVICE))
    assert all(0 <= token < VOCAB for token in state.written[:, 0].tolist())
    assert state.logprobs[:, 0].isnan().all()


@pytest.mark.parametrize(
    "changes",
    [
        *({"position": "alibi"}, {"position": "t5"}, {"qk_norm": "head"}, {"residual": "parallel"}),
        *({"norm_placement": "sandwich"}, {"sliding_window": 3}, {"head_dim": 12}),
        {"embedding_norm": "replaces_first"},
    ],
)
def test_what_the_kernels_do_not_implement_is_refused(changes: dict[str, Any]) -> None:
    assert not batched_runner.is_supported(made(with_stack(LLAMA, **changes)))
    assert not batched_runner.is_supported(made(LLAMA).double())


@pytest.mark.skipif(DEVICE == "cpu", reason="CUDA graphs need a GPU")
def test_graphs_of_the_kernels_are_replayed() -> None:
    network = made(BASE)
    assert isinstance(network, Seq2Seq)
    compare(greedy(network, True, PROMPTS, new=12), greedy(network, False, PROMPTS, new=12))
    assert graphs.STEPS_BETWEEN_CHECKS


@pytest.mark.parametrize("case", ["gpt2", "llama", "part rotates", "post-norm decoder"])
@pytest.mark.parametrize(
    ("prompts", "chunk"),
    [([[*range(3, 21)], [9] * 11], None), ([[*range(3, 21)], [9] * 11], 7), ([[5], [6], [7]], None)],
)
def test_prefill_is_that_of_the_network(
    case: str, prompts: list[list[int]], chunk: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logits and the caches, for prompts with padding, at once and in chunks, and for prompts of one token."""
    prefill: Any = pytest.importorskip("qkv.decode.gpu.batched_prefill")
    monkeypatch.setattr(prefill, "MIN_TOKENS", 2)
    if chunk is not None:
        monkeypatch.setattr(model_runner, "MAX_PREFILL_TOKENS", {"cpu": chunk, "cuda": chunk})
    network, results = made(CASES[case]), []
    assert prefill.is_supported(network)
    for function in (prefill.next_logits, model_runner.next_logits):
        with torch.inference_mode():
            runner = make_runner(network, prompts, GenerationOptions(max_tokens=2))
            runner.next_logits = function
            results.append([runner.prefill(), *runner.cache.keys, *runner.cache.values])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
