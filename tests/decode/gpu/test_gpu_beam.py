"""The search whose state is all on the device finds what the reference finds (here without graphs), token for token."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from decode_models import END, START, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.blocks import HeadConfig, StackConfig
from qkv.decode import GenerationOptions, generate
from qkv.decode.backend import GPU_BEAM
from qkv.decode.beam import BeamState, beam_search
from qkv.decode.gpu import graphs as static
from qkv.decode.gpu import static_runner as static_step
from qkv.decode.gpu.beam import BeamTensors, grouped_topk, static_beam_search
from qkv.decode.gpu.greedy import decode_greedy
from qkv.decode.gpu.static_runner import StaticRunner
from qkv.decode.runner import make_runner
from qkv.models import Config, Network, build

PROMPTS = [[3, 4, 5, 6], [7], [8, 9]]


def told(searches: list[BeamState]) -> list[list[tuple[list[int], bool, float]]]:
    return [
        [(h.ids, h.ended, pytest.approx(h.normalized_score, abs=1e-9)) for h in search.finished] for search in searches
    ]


def both(
    network: Network, options: GenerationOptions, end: tuple[int, ...] = (END,), prompts: list[list[int]] = PROMPTS
) -> tuple[list[Any], list[Any]]:
    """What the static search and the reference find, every hypothesis of every source."""
    with torch.inference_mode():
        ours = static_beam_search(make_runner(network, prompts, options), options, end)  # type: ignore[arg-type]
        reference = beam_search(make_runner(network, prompts, options), options, end)  # type: ignore[arg-type]
    return told(ours), told(reference)


def of_stack(**fields: Any) -> Network:
    """A decoder with the choices under test, or with `sides=2` an encoder-decoder."""
    sides = fields.pop("sides", 1)
    stack = StackConfig(
        **{"vocab_size": 12, "width": 16, "layers": 2, "heads": 4, "ffn_width": 32, "init_std": 0.3, **fields}
    )
    head = HeadConfig(kind="lm", outputs=12)
    torch.manual_seed(4)
    config = Config(
        encoder=stack if sides == 2 else None,
        decoder=stack,
        head=head,
        pad_token_id=0,
        decoder_start_token_id=START,
        eos_token_ids=(END,),
    )
    network = build(config, dtype=torch.float64).eval()
    with torch.no_grad():
        network.head.out.weight.mul_(4.0)  # type: ignore[union-attr]
    return network


@pytest.mark.parametrize("penalty", ["power", "gnmt"])
@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_it_finds_what_the_reference_finds(network: Network, alpha: float, penalty: str, seed: int) -> None:
    network = tiny(network.config.family, seed=seed)
    options = GenerationOptions(max_tokens=12, beam=3, length_penalty=alpha, length_penalty_kind=penalty)  # type: ignore[arg-type]
    ours, reference = both(network, options)
    assert ours == reference


@pytest.mark.parametrize("end", [(), (END,), (END, 5), (END, 5, 7)])
@pytest.mark.parametrize("beam", [1, 2, 6, 12])
def test_any_number_of_ends_and_beams(network: Network, end: tuple[int, ...], beam: int) -> None:
    ours, reference = both(network, GenerationOptions(max_tokens=7, beam=beam, length_penalty=0.8), end)
    assert ours == reference


@pytest.mark.parametrize(
    "fields", [{"min_tokens": 5}, {"suppress_tokens": (3, END)}, {"max_tokens": 1}, {"max_tokens": 2}]
)
def test_what_may_come_and_how_much(network: Network, fields: dict[str, Any]) -> None:
    ours, reference = both(network, replace(GenerationOptions(max_tokens=9, beam=4, length_penalty=0.5), **fields))
    assert ours == reference


def test_a_vocabulary_that_leaves_fewer_ways_than_beams(network: Network) -> None:
    options = GenerationOptions(
        max_tokens=3, beam=8, suppress_tokens=(0, *range(3, 12))
    )  # 1 and 2 are left: fewer than eight paths
    ours, reference = both(network, options)
    assert ours == reference
    assert all(len(source) < 8 for source in ours)


@settings(max_examples=40, deadline=None)
@given(
    family=st.sampled_from(["decoder", "seq2seq"]),
    seed=st.integers(0, 50),
    beam=st.integers(1, 5),
    most=st.integers(1, 9),
    alpha=st.floats(-2.0, 2.0),
    penalty=st.sampled_from(["power", "gnmt"]),
    end=st.sampled_from([(), (1,), (1, 4)]),
    prompts=st.lists(st.lists(st.integers(2, 11), min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_any_request(
    family: str,
    seed: int,
    beam: int,
    most: int,
    alpha: float,
    penalty: str,
    end: tuple[int, ...],
    prompts: list[list[int]],
) -> None:
    options = GenerationOptions(max_tokens=most, beam=beam, length_penalty=alpha, length_penalty_kind=penalty)  # type: ignore[arg-type]
    ours, reference = both(tiny(family, seed=seed), options, end, prompts)
    assert ours == reference


@pytest.mark.parametrize(
    "fields",
    [
        {"position": "sinusoidal"},
        {"position": "learned", "max_positions": 12, "position_offset": 2},
        {"position": "alibi"},
        {"position": "t5", "score_scale": "none"},
        {"position": "rotary", "rotary_fraction": 0.5},
        {"position": "rotary", "kv_heads": 2, "qk_norm": "head"},
        {"position": "alibi", "kv_heads": 2, "sliding_window": 3},
        {"position": "rotary", "sliding_window": 3, "sliding_window_layers": (1,), "rotary_base_sliding": 100.0},
        {"norm_placement": "post", "embedding_scale": "sqrt", "kv_heads": 1},
        {"norm_placement": "sandwich", "norm": "rmsnorm", "feedforward": "swiglu", "num_layer_groups": 1},
        {"residual": "parallel"},
        {"embedding_norm": "replaces_first", "token_types": 2},
        {"sides": 2, "position": "t5", "kv_heads": 2},
        {"sides": 2, "position": "sinusoidal", "norm_placement": "post", "qk_norm": "head"},
    ],
    ids=str,
)
def test_every_kind_of_stack(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as greedy decoding, which is a search with one beam here."""
    monkeypatch.setattr(static, "SLOTS_PER_BUCKET", 8)
    network = of_stack(**fields)
    ours, reference = both(network, GenerationOptions(max_tokens=8, beam=3))
    assert ours == reference
    with torch.inference_mode():
        written = decode_greedy(make_runner(network, PROMPTS, GenerationOptions(max_tokens=8)), (), 8)  # type: ignore[arg-type]
    network.config = replace(network.config, eos_token_ids=())
    assert written.written.tolist() == [
        result.ids for result in generate(network, PROMPTS, GenerationOptions(max_tokens=8))
    ]


@pytest.mark.parametrize("bucket", [4, 16, 256])
def test_buckets_change_nothing(network: Network, bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "SLOTS_PER_BUCKET", bucket)
    monkeypatch.setattr(static, "STEPS_BETWEEN_CHECKS", 3)
    ours, reference = both(network, GenerationOptions(max_tokens=20, beam=3))
    assert ours == reference


def test_it_stops_when_all_sources_are_settled(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "STEPS_BETWEEN_CHECKS", 2)
    numbers: list[int] = []
    step = static.GraphedSteps.__call__
    monkeypatch.setattr(static.GraphedSteps, "__call__", lambda self, n: (numbers.append(n), step(self, n))[1])
    ours, reference = both(network, GenerationOptions(max_tokens=50, beam=2, length_penalty=0.0), (END, 5, 7, 8))
    assert ours == reference
    assert 0 < len(numbers) < 49


def test_the_masks_of_the_beams_matter(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control for trap 14: beams that keep seeing what they saw before they forked find something else."""
    options = GenerationOptions(max_tokens=8, beam=4)
    ours, reference = both(network, options)
    assert ours == reference
    advance = BeamTensors.advance

    def without_masks(self: BeamTensors, logits: torch.Tensor, seen: static_step.CacheView) -> None:
        before = seen.mask.clone()
        advance(self, logits, seen)
        seen.mask.copy_(before)

    monkeypatch.setattr(BeamTensors, "advance", without_masks)
    assert both(network, options)[0] != reference


def test_prompts_and_sources_are_kept_once_for_all_beams(network: Network) -> None:
    """Trap 13: memory grows with what the beams write, not with copies of what they read."""
    options = GenerationOptions(max_tokens=5, beam=4)
    with torch.inference_mode():
        run = make_runner(network, PROMPTS, options)  # type: ignore[arg-type]
        static_run = StaticRunner(run, 5, num_beams=4)
    longest = run.tokens.shape[1]
    assert static_run.keys[0].shape[0] == len(PROMPTS)
    assert static_run.num_slots == -(-(longest + 4 * 4) // 64) * 64
    if run.cross_cache is not None:
        assert static_run.cross_cache is run.cross_cache
        assert run.cross_cache.batch_size == len(PROMPTS)


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.2},
        {"no_repeat_ngram_size": 2},
        {"return_search_steps": True},
        {"logits_processors": (lambda logits, tokens: logits,)},
    ],
)
def test_what_the_reference_has_to_do(network: Network, fields: dict[str, Any]) -> None:
    declared = {"stop": ("x",), "min_tokens": 2, "suppress_tokens": (4,), "num_return_sequences": 2}
    assert GenerationOptions(beam=2, **declared).in_effect((END,)) <= GPU_BEAM.options
    assert not GenerationOptions(beam=2, **fields).in_effect((END,)) <= GPU_BEAM.options


def test_a_kernel_that_was_asked_for_is_used(network: Network) -> None:
    assert static_step.is_supported(network)  # type: ignore[arg-type]
    network.decoder.kernel = "eager"  # type: ignore[union-attr]
    assert not static_step.is_supported(network)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 700), st.integers(1, 9), st.integers(0, 1000))
def test_the_best_of_a_vocabulary_are_its_top_k(vocab: int, k: int, seed: int) -> None:
    k = min(k, vocab)
    logits = torch.randn(3, vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    best, token = grouped_topk(logits, k)
    expected = logits.topk(k)
    assert torch.equal(best, expected.values)
    assert torch.equal(token, expected.indices)


def test_the_best_of_a_vocabulary_with_equals_and_forbidden_tokens() -> None:
    logits = torch.full((1, 65 * 64 + 3), float("-inf"))
    logits[0, [5, 700, 701, 4162]] = torch.tensor([1.0, 2.0, 2.0, 3.0])
    best, token = grouped_topk(logits, 5)
    assert best[0].tolist() == [3.0, 2.0, 2.0, 1.0, float("-inf")]
    assert token[0, 0] == 4162
    assert set(token[0, 1:3].tolist()) == {700, 701}


def test_a_step_is_one_graph_to_the_compiler(network: Network) -> None:
    """Nothing in a step makes the host look: it is traced whole, and what was traced does what the step does."""
    options = GenerationOptions(max_tokens=6, beam=3)
    with torch.inference_mode():
        run = StaticRunner(make_runner(network, PROMPTS, options), 6, num_beams=3)  # type: ignore[arg-type]
        beams = BeamTensors(run, options, (END,))
        beams.advance(run.prefill_logits.repeat_interleave(3, dim=0), run.view(run.num_slots))
        steps = static.GraphedSteps(run, torch.compile(beams.step, fullgraph=True, dynamic=False, backend="eager"))
        static.run_steps(steps, 6, beams.done)
        reference = beam_search(make_runner(network, PROMPTS, options), options, (END,))  # type: ignore[arg-type]
    torch.compiler.reset()
    assert told(beams.to_states()) == told(reference)
