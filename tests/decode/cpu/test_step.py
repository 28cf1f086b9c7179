"""The flat step and the unpadded reading of sources give what the modules give, whatever a decoder is made of."""

from typing import Any

import pytest
import torch
from decode_models import START, tiny
from decode_stacks import DECODERS, MODERN, PROMPTS, STACKS, VOCAB, apart, make
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.blocks import Inputs
from qkv.blocks.position import Rotary
from qkv.decode import GenerationOptions, quantize
from qkv.decode.backend import CPU, REFERENCE, choose_backend
from qkv.decode.cpu import encoder as fast_encode
from qkv.decode.cpu import packed_linear as packed
from qkv.decode.cpu import step as fast_cpu
from qkv.decode.cpu.step import CpuStep, is_supported, make_rotation
from qkv.decode.runner import ModelRunner
from qkv.models import Decoder, Network, Seq2Seq


def written(
    network: Decoder | Seq2Seq, prompts: list[list[int]], *, fast: bool, forks: bool = True
) -> list[torch.Tensor]:
    """The logits of a run: prompts, steps, beams that change places, rows that leave, more steps."""
    seq2seq = isinstance(network, Seq2Seq)
    targets = [[START]] * len(prompts) if seq2seq else prompts
    run = ModelRunner(network, targets, max_new_tokens=2, cpu=fast)  # the cache grows on the way
    out = []
    with torch.inference_mode():
        if seq2seq:
            run.encode_sources(prompts)
        out.append(run.prefill())
        out += [run.step(torch.tensor([3 + i, 4 + i, 5 + i])) for i in range(3)]
        if not forks:
            return out
        run.expand_beams(2)
        out.append(run.step(torch.arange(4, 10)))
        run.reorder(torch.tensor([1, 0, 3, 3, 4, 5]), shared_prefix=run.tokens.shape[1] - 1)
        out.append(run.step(torch.arange(5, 11)))
        run.keep(torch.tensor([0, 1, 4, 5]))
        out.append(run.step(torch.arange(6, 10)))
    return out


@pytest.mark.parametrize("prompts", PROMPTS)
@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("many", [1, 100], ids=["products", "sdpa"])
def test_a_decoder_steps_as_its_modules_do(name: str, prompts: str, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_cpu, "MIN_BATCHED_QUERIES", many)
    network = make("decoder", DECODERS[name])
    assert apart(*(written(network, PROMPTS[prompts], fast=fast) for fast in (True, False))) < 1e-12


@pytest.mark.parametrize("prompts", PROMPTS)
@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("many", [1, 100], ids=["products", "sdpa"])
def test_an_encoder_and_decoder_steps_as_its_modules_do(
    name: str, prompts: str, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_cpu, "MIN_BATCHED_QUERIES", many)
    network = make("seq2seq", STACKS[name])
    assert apart(*(written(network, PROMPTS[prompts], fast=fast) for fast in (True, False))) < 1e-12


@pytest.mark.parametrize("name", [*DECODERS, "partial rotation"])
def test_one_sequence_steps_as_its_modules_do(name: str) -> None:
    """One vector has its own norm, and its heads are rotated by a matrix."""
    network = make("decoder", DECODERS.get(name, {**MODERN, "head_dim": 8, "rotary_fraction": 0.5}))
    logits = []
    for fast in (True, False):
        run = ModelRunner(network, [[5, 6, 7]], max_new_tokens=2, cpu=fast)
        with torch.inference_mode():
            logits.append([run.prefill(), *(run.step(torch.tensor([token])) for token in (3, 8, 5, 9))])
    assert apart(*logits) < 1e-12


def test_a_rotation_by_a_matrix_is_the_rotation() -> None:
    x = torch.randn(2, 3, 1, 8, dtype=torch.float64)
    here, elsewhere = (Rotary(torch.tensor([[position]]), 6, 100.0, None, x.dtype) for position in (5, 6))
    torch.testing.assert_close(make_rotation(here, 8)(x), here.rotate(x))
    assert float((make_rotation(elsewhere, 8)(x) - here.rotate(x)).abs().max()) > 0.1, "negative control"
    two = Rotary(torch.tensor([[5], [6]]), 8, 100.0, None, x.dtype)
    torch.testing.assert_close(make_rotation(two, 8)(x), two.rotate(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_step_is_bit_equal_where_the_kernel_is_the_same(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "MAX_PACKED_BYTES", 0)  # packed weights are summed up in another order
    network = make("decoder", {"norm_placement": "post"}).to(dtype)
    assert apart(*(written(network, PROMPTS["even"], fast=fast, forks=False) for fast in (True, False))) == 0.0


def test_packed_weights_differ_by_rounding_alone() -> None:
    network = make("decoder", {"norm_placement": "post"}).float()
    assert 0.0 < apart(*(written(network, PROMPTS["even"], fast=fast) for fast in (True, False))) < 1e-5


def test_a_head_of_a_better_type_than_the_body_is_read_as_it_is() -> None:
    network = make("decoder", {}).float()
    network.head.double()
    both = [written(network, PROMPTS["even"], fast=fast) for fast in (True, False)]
    assert both[0][-1].dtype == torch.float64
    assert apart(*both) < 1e-4


def test_a_difference_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the fast step is the one that runs, and a wrong one is far off."""
    network = make("decoder", {})
    right = written(network, PROMPTS["even"], fast=False)
    monkeypatch.setattr(CpuStep, "_position_vectors", lambda self, position, cache: None)
    assert apart(written(network, PROMPTS["even"], fast=True), right) > 1e-3


@pytest.mark.parametrize("prompts", PROMPTS)
@pytest.mark.parametrize("name", STACKS)
def test_sources_are_read_as_with_their_padding(name: str, prompts: str) -> None:
    network = make("seq2seq", STACKS[name])
    sources = PROMPTS[prompts]
    with torch.no_grad():
        ours = fast_encode.encode_sources(network, sources)
        padded = Inputs.from_sequences(sources, side="left", always_document_ids=True)
        theirs = network.build_cross_cache(network.encode(padded))
    longest = padded.ids.shape[1]
    for a, b in zip((*ours.keys, *ours.values), (*theirs.keys, *theirs.values), strict=True):
        assert a.is_contiguous()
        for row, source in enumerate(sources):  # ours stand flush left, theirs flush right
            torch.testing.assert_close(a[row, :, : len(source)], b[row, :, longest - len(source) :])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=6), min_size=1, max_size=5))
def test_a_source_reads_the_same_alone_and_among_others(sources: list[list[int]]) -> None:
    network = tiny("seq2seq", vocab=VOCAB)
    with torch.no_grad():
        together = fast_encode.encode_sources(network, sources)
        for row, source in enumerate(sources):
            alone = fast_encode.encode_sources(network, [source])
            torch.testing.assert_close(together.keys[1][row : row + 1, :, : len(source)], alone.keys[1])
            torch.testing.assert_close(together.values[1][row : row + 1, :, : len(source)], alone.values[1])


def test_an_encoder_that_was_given_a_kernel_runs_on_the_reference() -> None:
    """Only the dense form of a mask is read here: another kernel's would be taken for no mask at all."""
    network = make("seq2seq", STACKS["windows"])
    assert choose_backend(network, GenerationOptions()) is CPU
    network.encoder.kernel = "eager"
    assert choose_backend(network, GenerationOptions()) is REFERENCE


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_quantized_network_steps_as_its_modules_do(network: Network, precision: Any) -> None:
    """The same kernels on the same numbers; sums may be rounded in another order."""
    twin = quantize(network, precision)
    assert isinstance(twin, Decoder | Seq2Seq)
    prompts = PROMPTS["even"]  # padding would move the scale of what the padded reference reads
    assert apart(*(written(twin, prompts, fast=fast) for fast in (True, False))) < 1e-4


def test_a_map_of_another_kind_is_called_as_it_is() -> None:
    """Whoever wraps a linear map, as adapters do, is heard."""
    network = make("decoder", {})

    class Doubled(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * self.inner(x)

    plain = written(network, PROMPTS["even"], fast=True)
    for block in network.decoder.blocks:
        block.ffn.up = Doubled(block.ffn.up)  # type: ignore[assignment, arg-type]
    doubled = written(network, PROMPTS["even"], fast=True)
    assert apart(doubled, plain) > 1e-3
    assert apart(doubled, written(network, PROMPTS["even"], fast=False)) < 1e-12


def test_it_fits_growing_caches_in_evaluation() -> None:
    network = make("decoder", {})
    assert is_supported(network)
    assert not is_supported(network.train())
    network.eval().decoder.kernel = "eager"
    assert not is_supported(network), "a kernel that was asked for is used"
