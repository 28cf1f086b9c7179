"""The numbers of a document equal torch's: exactly, or within the stated rounding."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from small_networks import FAMILIES, make_example, make_network

from qkv.blocks import Mask, SequenceLayout, positions_in_documents
from qkv.decode import GenerationOptions, generate
from qkv.errors import UsageError
from qkv.inside import Trace, trace
from qkv.inside.look.attention import head_pattern, summarise_head
from qkv.inside.look.document import LookOptions, document_sites, make_document, make_mask_document
from qkv.inside.look.masks import REASONS, mask_reasons
from qkv.inside.look.page import Look
from qkv.inside.look.search import describe_search, find_finished
from qkv.inside.look.sequences import group_words
from qkv.inside.neurons import vocabulary_effect
from qkv.inside.tokens import TokenList
from qkv.models import Network
from qkv.page import SIGNED_ERROR, WEIGHT_ERROR, pack, unpack


def record(network: Network, family: str, layers: tuple[int, ...] | None = None) -> Trace:
    example = make_example(family)
    ids = example if family != "seq2seq" else example[0]
    target_ids = None if family != "seq2seq" else example[1]
    sites = [*document_sites(network.config, LookOptions(layers=layers)), "*z"]
    return trace(network, ids, target_ids, sites=sites)  # type: ignore[arg-type]


def describe(network: Network, recorded: Trace, **options: Any) -> dict[str, Any]:
    document = make_document(network, recorded, None, LookOptions(**options), {})
    return json.loads(json.dumps(document, allow_nan=False))  # type: ignore[no-any-return]


@pytest.mark.parametrize("family", FAMILIES)
def test_patterns_are_within_the_stated_rounding(family: str) -> None:
    network = make_network(family)
    recorded = record(network, family)
    document = describe(network, recorded)
    assert [one["name"] for one in document["attention"]] == (
        ["encoder", "decoder", "cross"] if family == "seq2seq" else [family]
    )
    for attention in document["attention"]:
        for layer, packed in zip(attention["layers"], attention["patterns"], strict=True):
            exact = recorded[site_of(attention, layer, "pattern")].numpy()
            assert np.abs(unpack(packed) - exact).max() <= WEIGHT_ERROR


def site_of(attention: dict[str, Any], layer: int, activation: str) -> str:
    prefix = "cross_" if attention["name"] == "cross" else ""
    return f"{attention['queries']}.{layer}.{prefix}{activation}"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"position": "rotary", "kv_heads": 2},
        {"position": "alibi"},
        {"position": "t5", "score_scale": "none"},
        {"position": "learned", "sliding_window": 2, "sliding_window_layers": (1,)},
    ],
)
def test_the_steps_from_the_exact_numbers_give_the_pattern_and_z(family: str, choices: dict[str, Any]) -> None:
    """What the page computes: softmax(q·k · scale + bias, masked) and its mix of v."""
    network = make_network(family, **choices)
    recorded = record(network, family)
    num_details = 0
    for attention in describe(network, recorded)["attention"]:
        for detail in attention["details"]:
            layer, head = detail["layer"], detail["head"]
            weights = head_pattern(attention, layer, head)
            z = weights @ unpack(detail["v"])
            np.testing.assert_allclose(weights, recorded[site_of(attention, layer, "pattern")][head], atol=2e-6)
            np.testing.assert_allclose(z, recorded[site_of(attention, layer, "z")][head], atol=2e-6)
            num_details += 1
    assert num_details == (24 if family == "seq2seq" else 8)


def test_a_query_that_attends_to_nothing_has_zeros() -> None:
    detail = {"layer": 0, "head": 0, "scale": 1.0, "bias": None}
    detail |= {"q": pack(np.ones((2, 3), np.float32)), "k": pack(np.ones((2, 3), np.float32))}
    reasons = pack(np.array([[1, 1], [0, 0]], np.uint8))
    attention = {
        "layers": [0],
        "heads": [0],
        "details": [detail],
        "masks": [{"reasons": reasons}],
        "mask_of_layer": [0],
    }
    np.testing.assert_array_equal(head_pattern(attention, 0, 0), [[0.0, 0.0], [0.5, 0.5]])


def test_layers_and_heads_limit_what_is_shown() -> None:
    network = make_network("decoder")
    document = describe(network, record(network, "decoder", (1,)), layers=(1,), heads=(0, 3))
    attention = document["attention"][0]
    assert (attention["layers"], attention["heads"]) == ([1], [0, 3])
    assert unpack(attention["patterns"][0]).shape[0] == 2
    assert sorted((one["layer"], one["head"]) for one in attention["details"]) == [(1, 0), (1, 3)]
    with pytest.raises(UsageError, match="--heads 4: this model has heads 0 … 3"):
        describe(network, record(network, "decoder"), heads=(4,))


def test_only_some_heads_have_exact_numbers_if_they_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_network("decoder")
    size = 3 * 7 * 4 * 4  # q, k and v of seven tokens with four float32 numbers
    monkeypatch.setattr("qkv.inside.look.attention.MAX_DETAIL_BYTES", 2 * size)
    document = describe(network, record(network, "decoder"))
    details = document["attention"][0]["details"]
    assert [one["layer"] for one in details] == [0, 1]  # the sharpest head of each layer
    assert "2 of 8 heads" in document["footer"]


def test_embeddings_add_up_to_the_input_of_the_first_layer() -> None:
    network = make_network("decoder", position="learned")
    recorded = record(network, "decoder")
    embedding = describe(network, recorded)["embeddings"][0]
    token, position, total = embedding["parts"]
    assert [token["name"], position["name"]] == ["token embedding", "position"]
    sizes = token["values"]["size"] + position["values"]["size"] + total["values"]["size"]
    np.testing.assert_allclose(
        unpack(token["values"]) + unpack(position["values"]), unpack(total["values"]), atol=sizes * SIGNED_ERROR
    )
    np.testing.assert_allclose(total["norms"], recorded["decoder.0.resid_pre"].norm(dim=-1), atol=1e-4)


@pytest.mark.parametrize("types", [None, [0, 0, 0, 1, 1, 1, 1]])
def test_token_types_are_part_of_the_sum(types: list[int] | None) -> None:
    network = make_network("encoder", position="learned", token_types=2)
    sites = document_sites(network.config, LookOptions())
    recorded = trace(network, make_example("encoder"), sites=sites, token_type_ids=types)  # type: ignore[arg-type]
    document = make_document(network, recorded, None, LookOptions(), {}, types)
    parts = document["embeddings"][0]["parts"]
    assert [part["name"] for part in parts] == ["token embedding", "position", "token type", "sum: input of layer 0"]
    values = [unpack(part["values"]) for part in parts]
    tolerance = sum(part["values"]["size"] for part in parts) * SIGNED_ERROR
    np.testing.assert_allclose(sum(values[:-1]), values[-1], atol=tolerance)


def test_a_page_of_too_many_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.inside.look.document.MAX_WEIGHTS", 8 * 49 - 1)
    network = make_network("decoder")
    with pytest.raises(UsageError, match=r"392 attention weights.*choose some with --layers"):
        describe(network, record(network, "decoder"))
    assert describe(network, record(network, "decoder"), layers=(0,))


def test_neurons_are_those_with_the_highest_activations() -> None:
    network = make_network("encoder")
    recorded = record(network, "encoder")
    layer = describe(network, recorded)["neurons"]["layers"][1]
    activations = recorded["encoder.1.mlp_post"]
    best = int(activations.max(dim=0).values.argmax())
    assert layer["neurons"][0] == best
    assert layer["promotes"][0] == [one.text for one in vocabulary_effect(network, 1, best, num_tokens=4).promoted]
    assert layer["peaks"][0] == pytest.approx(float(activations.max()), abs=1e-4)
    assert layer["peak_positions"][0] == int(activations[:, best].argmax())
    expected = activations.topk(5, dim=1)
    np.testing.assert_array_equal(unpack(layer["token_neurons"]), expected.indices)
    np.testing.assert_allclose(unpack(layer["token_values"]), expected.values, rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_lens_ends_with_the_prediction_of_the_model(family: str) -> None:
    network = make_network(family)
    recorded = record(network, family)
    lens = describe(network, recorded)["lens"]
    probs = recorded["logits"].float().softmax(-1)
    assert lens["layers"] == ["embedding", "layer 0", "layer 1"]
    np.testing.assert_array_equal(unpack(lens["top_ids"])[-1, :, 0], probs.argmax(-1))
    np.testing.assert_allclose(unpack(lens["top_probs"])[-1], probs.topk(5).values, atol=1e-6)
    targets = recorded.tokens["decoder"].ids[1:] if family != "encoder" else probs.argmax(-1)[:-1].tolist()
    assert tuple(lens["target_ids"][:-1]) == tuple(targets)
    expected = probs[torch.arange(len(targets)), torch.tensor(targets)]
    np.testing.assert_allclose(unpack(lens["target_probs"])[-1, :-1], expected, atol=1e-6)


# ---------------------------------------------------------------- masks


def layout(*document_ids: int) -> SequenceLayout:
    ids = torch.tensor([document_ids])
    return SequenceLayout(ids, positions_in_documents(ids))


def test_each_masked_cell_has_its_reason() -> None:
    packed = layout(1, 1, 1, 2, 2, 0)
    reasons = mask_reasons(Mask(packed, packed, causal=True, window=1))
    names = [[REASONS[reason] for reason in row] for row in reasons]
    assert names[0][:3] == ["visible", "future", "future"]
    assert names[2][0] == "outside the window"
    assert names[4][1] == "other document"
    assert set(names[5]) == {"padding"}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 1])
def test_a_cell_has_a_reason_exactly_if_it_is_masked(causal: bool, window: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        ids = torch.randint(0, 3, (2, 6), generator=generator).sort(dim=1).values
        queries, keys = (layout(*row.tolist()) for row in ids)
        mask = Mask(queries, keys, causal, window)
        np.testing.assert_array_equal(mask_reasons(mask) == 0, mask.dense()[0, 0])


def test_a_mask_document_flags_queries_that_attend_to_no_key() -> None:
    network = make_network("seq2seq")
    sequences = {"encoder": ([5, 6, 7, 0], [1, 1, 2, 0]), "decoder": ([0, 4, 4], [1, 3, 3])}
    document = make_mask_document(network, sequences, None, LookOptions())
    blind = {one["name"]: one["masks"][0]["fully_masked_queries"] for one in document["attention"]}
    assert blind == {"encoder": [3], "decoder": [], "cross": [1, 2]}  # no source document has the id 3
    padding = {one["name"]: one["masks"][0]["padding_queries"] for one in document["attention"]}
    assert padding == {"encoder": [3], "decoder": [], "cross": []}
    assert document["views"] == ["tokens", "mask"]


# ---------------------------------------------------------------- beam search


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_the_tree_of_a_search_leads_to_its_result(family: str, length_penalty: float) -> None:
    network = make_network(family, head=None)
    object.__setattr__(network.config, "eos_token_ids", (1, 2, 3, 4, 5))
    options = GenerationOptions(beam=3, max_tokens=6, return_search_steps=True, length_penalty=length_penalty)
    for prompt in ([5, 3], [9], [30, 31, 32]):
        result = generate(network, [prompt], options)[0]
        search = describe_search(result, options, None)
        assert search["hypotheses"][0]["score"] == pytest.approx(result.score, abs=1e-6)
        assert search["hypotheses"][0]["text"] == " ".join(f"#{i}" for i in result.ids)
        best = search["steps"][search["best"]["step"]][search["best"]["index"]]
        assert best["kept"]
        for step, before in zip(search["steps"][1:], search["steps"], strict=False):
            for candidate in step:
                parent = before[candidate["parent"]]
                assert parent["kept"]
                assert not parent["ended"]
                assert candidate["score"] <= parent["score"] + 1e-6


def test_the_reason_why_a_search_stopped() -> None:
    network = make_network("decoder")
    never_ends = GenerationOptions(beam=2, max_tokens=4, return_search_steps=True)
    result = generate(network, [[5, 3]], never_ends)[0]
    search = describe_search(result, never_ends, None)
    assert search["stop_reason"] == "it reached the maximum of 4 tokens."
    object.__setattr__(network.config, "eos_token_ids", tuple(range(20)))
    early = GenerationOptions(beam=2, max_tokens=50, return_search_steps=True, length_penalty=0.0)
    result = generate(network, [[5, 3]], early)[0]
    search = describe_search(result, early, None)
    assert len(search["steps"]) < 50
    assert "no running one can beat the worst" in search["stop_reason"]
    assert len(find_finished(result.search_steps, early)) == 2


# ---------------------------------------------------------------- tokens and words


def test_words_begin_after_whitespace() -> None:
    texts = ("<s>", "The", " c", "at", " ", "sat", "\n", "x", "</s>")
    special = tuple(text.startswith("<") for text in texts)
    assert group_words(TokenList(tuple(range(9)), texts, special), None) == [0, 1, 2, 2, 3, 3, 4, 4, 5]


def test_head_summary_ignores_queries_without_a_choice() -> None:
    pattern = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.1, 0.1, 0.8]])
    summary = summarise_head(pattern)
    assert summary["strongest"] == [2, 2]
    assert summary["entropy"] == pytest.approx((1.0 + 0.9219) / 2, abs=1e-3)


# ---------------------------------------------------------------- size, notebooks


def test_twelve_layers_of_twelve_heads_and_128_tokens_fit_into_three_megabytes() -> None:
    """Random weights with sharp attention, which compresses worse than the attention of a trained model."""
    network = make_network(
        "encoder", layers=12, heads=12, width=768, ffn_width=64, max_positions=128, init_std=0.08, dtype=torch.float32
    )
    ids = torch.randint(0, 40, (128,), generator=torch.Generator().manual_seed(0)).tolist()
    recorded = trace(network, ids, sites=document_sites(network.config, LookOptions()))
    document = make_document(network, recorded, None, LookOptions(), {})
    num_bytes = len(Look(document).to_html().encode())
    assert num_bytes < 3_000_000
    assert sum(len(one["data"]) for one in document["attention"][0]["patterns"]) > 300_000  # not trivially empty


def test_a_trace_shows_itself_in_a_notebook() -> None:
    network = make_network("seq2seq")
    source, target = make_example("seq2seq")
    recorded = trace(network, source, target, sites="*pattern")  # type: ignore[arg-type]
    html = recorded._repr_html_()
    assert html.startswith("<iframe sandbox=")
    assert "allow-same-origin" not in html
    assert "Cross-attention" in html
    assert "qkv.look" in trace(network, source, target, sites="logits")._repr_html_()  # type: ignore[arg-type]
