"""The public interface: `new`, `logits`, `hidden`, `embed`, and the errors of wrong calls.

Loading, saving and exporting have their own tests under `store/` and `parity/`.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.api import Model, new
from qkv.blocks import Inputs, pool
from qkv.errors import QkvError, UsageError
from qkv.text import Tokenizer

VOCAB = 260


def config(family: str, head: qkv.HeadConfig | None = None, **choices: Any) -> qkv.Config:
    size = {
        "vocab_size": VOCAB,
        "width": 16,
        "layers": 2,
        "heads": 2,
        "ffn_width": 32,
        "max_positions": 64,
        "init_std": 0.3,
    }
    stack = qkv.StackConfig(**(size | choices))
    return qkv.Config(
        encoder=stack if family != "decoder" else None,
        decoder=stack if family != "encoder" else None,
        head=head or qkv.HeadConfig(kind="lm", outputs=VOCAB),
    )


def model(family: str, head: qkv.HeadConfig | None = None, **choices: Any) -> Model:
    return new(config(family, head, **choices), dtype=torch.float64)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("byte", iter([]), vocab_size=VOCAB, special_tokens=["pad", "eos"], template="eos")


IDS = torch.tensor([[3, 1, 4, 1], [9, 2, 6, 5]])


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-11)


# ── New models ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_seed_decides_every_weight() -> None:
    first, again, other = (new(config("seq2seq"), seed=seed).network for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    pairs = zip(first.named_parameters(), other.named_parameters(), strict=True)
    assert not any(torch.equal(a, b) for (name, a), (_, b) in pairs if a.dim() == 2)


def test_a_new_model_does_not_change_the_global_random_state() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    new(config("decoder"), seed=9)
    assert torch.equal(torch.rand(3), expected)


def test_the_global_random_state_does_not_change_a_new_model() -> None:
    torch.manual_seed(1)
    first = new(config("decoder"))
    torch.manual_seed(2)
    second = new(config("decoder"))
    assert torch.equal(first.logits(IDS), second.logits(IDS))


def test_a_preset_is_found_by_its_name() -> None:
    small = new("bert-tiny")
    assert small.config.architecture == "bert"
    assert repr(small) == "<qkv encoder, mlm head, 2 × 128, 4,433,468 parameters>"


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown preset 'bert-tyni'; did you mean 'bert-tiny'\?"):
        new("bert-tyni")


def test_a_new_model_is_in_eval_mode_and_has_the_requested_dtype() -> None:
    small = new(config("decoder", dropout=0.5), dtype=torch.bfloat16)
    assert not small.network.training
    assert {p.dtype for p in small.network.parameters()} == {torch.bfloat16}
    assert small.device == torch.device("cpu")
    assert small.notes == []


# ── Logits ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_logits_are_the_networks(family: str) -> None:
    small = model(family)
    out = small.logits(IDS)
    assert out.shape == (2, 4, VOCAB)
    assert torch.equal(out, small.network(IDS))
    assert not out.requires_grad


def test_logits_of_an_encoder_decoder_are_the_networks() -> None:
    small = model("seq2seq")
    assert torch.equal(small.logits(IDS, source=IDS[:, :3]), small.network(Inputs(IDS, source=Inputs(IDS[:, :3]))))


def test_logits_take_plain_lists() -> None:
    small = model("decoder")
    assert torch.equal(small.logits(IDS.tolist(), mask=[[1] * 4, [1] * 4]), small.logits(IDS, mask=torch.ones(2, 4)))


@pytest.mark.parametrize("kind", [torch.bool, torch.long, torch.float32, torch.uint8])
@pytest.mark.parametrize("family", ["encoder", "decoder"])
@pytest.mark.parametrize("mask", [[[1, 1, 0, 0]], [[0, 0, 1, 1]], [[0, 1, 1, 0]]], ids=["right", "left", "both"])
def test_a_mask_hides_padding_on_any_side(family: str, mask: list[list[int]], kind: torch.dtype) -> None:
    small = model(family)
    keep = torch.tensor(mask)
    alone = small.logits(IDS[:1][keep.bool()][None])
    assert close(small.logits(IDS[:1], mask=keep.to(kind))[keep.bool()], alone[0])


@pytest.mark.parametrize("mask", [[[1, 1, 0, 0]], [[0, 0, 1, 1]]], ids=["right", "left"])
def test_the_mask_of_an_encoder_decoder_is_the_mask_of_its_source(mask: list[list[int]]) -> None:
    small = model("seq2seq")
    source, target = IDS[:1], IDS[1:, :3]
    keep = torch.tensor(mask).bool()
    assert close(small.logits(target, source=source, mask=mask), small.logits(target, source=source[keep][None]))


def test_logits_of_a_classifier_are_one_vector_for_each_sequence() -> None:
    small = model("encoder", qkv.HeadConfig(kind="classify", labels=("a", "b", "c")))
    assert small.logits(IDS).shape == (2, 3)


@pytest.mark.parametrize("masked", [False, True])
def test_choices_are_computed_separately(masked: bool) -> None:
    small = model("encoder", qkv.HeadConfig(kind="choice", outputs=1), token_types=2)
    ids = torch.randint(0, VOCAB, (2, 3, 5), generator=torch.Generator().manual_seed(0))
    types = torch.randint(0, 2, (2, 3, 5), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 3, 5, dtype=torch.long)
    mask[:, 1, 3:] = 0
    out = small.logits(ids, mask=mask if masked else None, token_type_ids=types)
    assert out.shape == (2, 3)
    for choice in range(3):
        one = small.logits(ids[:, choice], mask=mask[:, choice] if masked else None, token_type_ids=types[:, choice])
        assert close(out[:, choice], one[:, 0])


def test_token_types_reach_the_network() -> None:
    small = model("encoder", token_types=2)
    types = torch.tensor([[0, 0, 1, 1]] * 2)
    assert torch.equal(small.logits(IDS, token_type_ids=types), small.network(Inputs(IDS, token_type_ids=types)))  # type: ignore[call-arg]
    assert not torch.equal(small.logits(IDS, token_type_ids=types.tolist()), small.logits(IDS))


def test_a_tap_records_activations() -> None:
    tap = qkv.Tap(record=["decoder.0.pattern"])
    model("decoder").logits(IDS, tap=tap)
    assert tap["decoder.0.pattern"].shape == (2, 2, 4, 4)


# ── Wrong calls ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        ([[1, VOCAB]], "ids: token id 260 is outside this model's vocabulary of 260 (0 … 259)"),
        ([[1, -1]], "ids: token id -1 is outside this model's vocabulary"),
        ([[1, 2], [3]], "ids: sequences of unequal length need padding and a mask"),
        ([1, 2, 3], "ids: expected integers of shape (batch, length), got (3,) torch.int64"),
        ([[[1, 2]]], "ids: expected integers of shape (batch, length), got (1, 1, 2)"),
        ([[1.0, 2.0]], "ids: expected integers of shape (batch, length), got (1, 2) torch.float32"),
        ([[True, False]], "ids: expected integers of shape (batch, length), got (1, 2) torch.bool"),
        ([["a", "b"]], "ids: sequences of unequal length"),
        (5, "ids: expected integers of shape (batch, length), got ()"),
    ],
)
def test_invalid_ids_are_refused_with_their_value(ids: Any, match: str) -> None:
    small = model("decoder")
    for call in (small.logits, small.hidden):
        with pytest.raises(UsageError) as error:
            call(ids)
        assert match in str(error.value)


def test_source_ids_are_checked_against_the_source_vocabulary() -> None:
    stack = config("encoder").encoder
    assert stack is not None
    short = qkv.StackConfig(vocab_size=50, width=16, layers=1, heads=2, ffn_width=16)
    small = new(qkv.Config(encoder=short, decoder=stack, head=qkv.HeadConfig(kind="lm", outputs=VOCAB)))
    small.logits([[200]], source=[[49]])
    with pytest.raises(UsageError, match="source: token id 50 is outside this model's vocabulary of 50"):
        small.logits([[200]], source=[[50]])
    with pytest.raises(UsageError, match="ids: token id 50 is outside this model's vocabulary of 50"):
        small.hidden([[50]])


@pytest.mark.parametrize(
    ("mask", "match"),
    [
        ([[1, 1, 1]], "mask: shape (1, 3) does not match the shape of the ids, (2, 4)"),
        ([1, 1, 1, 1], "mask: shape (4,) does not match the shape of the ids, (2, 4)"),
        ([[1, 1], [1]], "mask: sequences of unequal length"),
        ([[1, 1, 2, 0]] * 2, "mask: 2 is neither 1 (a token) nor 0 (padding)"),
        ([[0.0, 0.0, float("-inf"), 0.0]] * 2, "mask: -inf is neither"),
    ],
)
def test_an_invalid_mask_is_refused_with_its_value(mask: Any, match: str) -> None:
    for call in (model("decoder").logits, model("decoder").hidden):
        with pytest.raises(UsageError) as error:
            call(IDS, mask=mask)
        assert match in str(error.value)


LONG_IDS = torch.zeros(1, 65, dtype=torch.long)
TYPED = {"token_types": 2}
NO_TYPES = "token_type_ids= is for an encoder with token types; this model has none"


@pytest.mark.parametrize(
    ("family", "choices", "ids", "inputs", "match"),
    [
        *(
            ("encoder", TYPED, IDS, {"token_type_ids": types}, f"token_type_ids: {match}")
            for types, match in [
                ([[0, 0, 2, 0]] * 2, "2 is not one of this model's 2 token types (0 … 1)"),
                ([[0, -1, 0, 0]] * 2, "-1 is not one of this model's 2 token types"),
                ([[0.5, 0, 0, 0]] * 2, "torch.float32 is not one of this model's 2 token types"),
                ([[0, 0]] * 2, "shape (2, 2) does not match the shape of the ids, (2, 4)"),
            ]
        ),
        ("encoder", {}, IDS, {"token_type_ids": torch.zeros_like(IDS)}, NO_TYPES),
        ("decoder", {}, IDS, {"token_type_ids": torch.zeros_like(IDS)}, NO_TYPES),
        ("seq2seq", {}, IDS, {"token_type_ids": torch.zeros_like(IDS), "source": IDS}, NO_TYPES),
        ("encoder", {}, IDS, {"source": IDS}, "source= is for an encoder-decoder; this model is encoder"),
        ("decoder", {}, IDS, {"source": IDS}, "source= is for an encoder-decoder; this model is decoder"),
        ("seq2seq", {}, IDS, {}, "give source= as well as the ids of the target"),
        ("seq2seq", {}, IDS, {"source": IDS[:1]}, "source has 1 sequences and ids has 2"),
        # Trap 26: a text that is too long is not cut.
        ("decoder", {"position": "learned"}, LONG_IDS, {}, "65 tokens are more than the 64 positions"),
    ],
)
def test_inputs_that_a_model_cannot_read_are_refused(
    family: str, choices: dict[str, Any], ids: torch.Tensor, inputs: dict[str, Any], match: str
) -> None:
    with pytest.raises(UsageError) as error:
        model(family, **choices).logits(ids, **inputs)
    assert match in str(error.value)


# ── Vectors ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_hidden_is_what_the_head_reads() -> None:
    small = model("decoder")
    out = small.hidden(IDS, mask=[[0, 1, 1, 1], [1, 1, 1, 1]])
    assert out.shape == (2, 4, 16)
    assert torch.equal(
        out, small.network.hidden(Inputs(IDS, document_ids=torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])))[0]
    )  # type: ignore[call-arg]


def test_hidden_of_an_encoder_decoder_is_the_output_of_the_encoder() -> None:
    small = model("seq2seq")
    assert torch.equal(small.hidden(IDS), small.network.encode(IDS).vectors)  # type: ignore[union-attr]


TEXTS = ["a longer text", "b", "", "and another one"]


def embedder(tokenizer: Tokenizer | None, head: qkv.HeadConfig | None = None, family: str = "encoder") -> Model:
    small = model(family, head or qkv.HeadConfig(kind="embed", pool="mean", normalize=True))
    return Model(small.config, small.network, tokenizer)


@pytest.mark.parametrize("batch", [1, 2, 32])
def test_texts_embedded_in_batches_equal_texts_embedded_alone(tokenizer: Tokenizer, batch: int) -> None:
    small = embedder(tokenizer)
    out = small.embed(TEXTS, batch_size=batch)
    assert out.shape == (4, 16)
    assert torch.allclose(out.norm(dim=-1), torch.ones(4, dtype=out.dtype))
    for text, vector in zip(TEXTS, out, strict=True):
        assert close(vector, small.embed(text))
        assert close(vector, small.network(torch.tensor([tokenizer.encode(text)]))[0])


def test_one_text_is_one_vector_and_an_empty_list_gives_none(tokenizer: Tokenizer) -> None:
    assert embedder(tokenizer).embed("a").shape == (16,)
    assert embedder(tokenizer).embed([]).shape == (0, 16)


@pytest.mark.parametrize("pooling", ["first", "last", "mean"])
@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_any_model_embeds_with_a_pooling(tokenizer: Tokenizer, family: str, pooling: Any) -> None:
    head = qkv.HeadConfig(kind="lm", outputs=VOCAB)
    small = embedder(tokenizer, head, family)
    for text, vector in zip(TEXTS, small.embed(TEXTS, pooling=pooling), strict=True):
        x, layout = small.network.hidden(torch.tensor([tokenizer.encode(text)]))  # type: ignore[call-arg]
        assert close(vector, pool(x, layout, pooling)[0, 0])


def test_pooling_overrides_the_pooling_of_the_head(tokenizer: Tokenizer) -> None:
    small = embedder(tokenizer)
    assert not close(small.embed("a text", pooling="first"), small.embed("a text"))


@pytest.mark.parametrize("pooling", ["first", "last", "mean"])
def test_a_text_without_tokens_is_a_vector_of_zeros(pooling: Any) -> None:
    bare = Tokenizer.train("byte", iter([]), vocab_size=VOCAB, special_tokens=["pad"])
    small = embedder(bare)
    assert small.embed(["", "a"], pooling=pooling)[0].tolist() == [0.0] * 16
    assert small.embed("", pooling=pooling).tolist() == [0.0] * 16


def test_a_model_without_an_embedding_head_needs_a_pooling(tokenizer: Tokenizer) -> None:
    small = embedder(tokenizer, qkv.HeadConfig(kind="lm", outputs=VOCAB))
    with pytest.raises(UsageError, match=r'this model has a lm head.* pooling="mean"'):
        small.embed("a")
    with pytest.raises(UsageError, match="pooling = 'max' is unknown; choose from first, last, mean"):
        small.embed("a", pooling="max")  # type: ignore[arg-type]


def test_embedding_needs_a_tokenizer_and_one_stack(tokenizer: Tokenizer) -> None:
    with pytest.raises(QkvError, match="this model has no tokenizer"):
        embedder(None).embed("a")
    small = model("seq2seq")
    with pytest.raises(UsageError, match=r"encoder-decoder, .*; use m\.translate, m\.summarise"):
        Model(small.config, small.network, tokenizer).embed("a")


# ── The rest of the surface ──────────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_export_format_is_refused(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="unknown export format 'hff'; did you mean 'hf'"):
        model("decoder").export(tmp_path, format="hff")
    assert not list(tmp_path.iterdir())


def test_the_package_lists_its_public_names() -> None:
    for name in qkv.__all__:
        assert getattr(qkv, name) is not None
    assert set(dir(qkv)) == set(qkv.__all__)
    with pytest.raises(AttributeError, match="module 'qkv' has no attribute 'lod'"):
        qkv.lod  # noqa: B018


@pytest.mark.parametrize("value", [3, {"a": 1}, b"x", None, {"a"}], ids=["number", "dict", "bytes", "None", "set"])
def test_a_call_with_no_texts_is_a_wrong_call(value: Any) -> None:
    model = qkv.new("bert-tiny")
    with pytest.raises(qkv.UsageError, match="texts must be a text"):
        model.run(value)
    tokenizer = Tokenizer.train("byte", iter([]), vocab_size=260, special_tokens=["pad"])
    embedder = qkv.new(model.config, tokenizer=tokenizer)
    with pytest.raises(qkv.UsageError, match="texts must be a text or a list of texts"):
        embedder.embed(value, pooling="mean")
    with pytest.raises(qkv.UsageError, match=r"texts\[1\] is 3 \(int\), not a text"):
        embedder.embed(["a", 3], pooling="mean")
