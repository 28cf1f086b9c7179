"""Traces: what is recorded, its shapes and tokens, the limits, and the files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import FAMILIES, IDS, SOURCE_IDS, make_example, make_network
from torch import Tensor

from qkv.api import Model, new
from qkv.blocks import HeadConfig, Tap
from qkv.errors import QkvError, UsageError
from qkv.inside import Trace, list_sites, read_traces, trace, trace_many, write_traces, zero_ablate
from qkv.inside.forward import make_inputs
from qkv.inside.tuned_lens import TunedLens
from qkv.models import Network
from qkv.text import Tokenizer


def trace_example(network: Network, **options: Any) -> Trace:
    example = make_example(network.config.family)
    ids, target_ids = example if network.config.family == "seq2seq" else (example, None)
    return trace(network, ids, target_ids, **options)  # type: ignore[arg-type]


def reference(network: Network, sites: list[str]) -> tuple[Tap, Tensor]:
    tap = Tap(record=sites)
    with torch.no_grad():
        return tap, network(make_inputs(network, [make_example(network.config.family)]), tap=tap)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("residual", ["serial", "parallel"])
def test_every_site_is_recorded_as_the_tap_sees_it(family: str, residual: str) -> None:
    if family == "seq2seq" and residual == "parallel":
        pytest.skip("cross-attention needs a serial residual")
    network = make_network(family, kv_heads=2, position="rotary", residual=residual)
    found = trace_example(network, sites="*")
    tap, logits = reference(network, ["*"])
    assert list(found) == list_sites(network.config)
    assert set(found) == {*tap.values, "logits"}
    assert torch.equal(found["logits"], logits[0])
    for name, value in tap.values.items():
        assert torch.equal(found[name], value[0]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_only_requested_sites_and_heads_are_kept(family: str) -> None:
    network = make_network(family, kv_heads=2)
    every = trace_example(network, sites="*pattern")
    some = trace_example(network, sites=["*.1.pattern"], heads=[3, 1])
    assert list(some) == [name for name in every if name.endswith(".1.pattern")]
    assert some.heads == (3, 1)
    for name in some:
        assert torch.equal(some[name], every[name][[3, 1]])


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_kept_value_does_not_keep_a_larger_tensor_alive(batch_size: int) -> None:
    """q is a view of the projection to q, k and v, and an example is a view of its batch."""
    for found in trace_many(make_network("decoder"), [IDS, IDS], sites="*", batch_size=batch_size):
        for name in found:
            assert found[name].untyped_storage().nbytes() == found[name].numel() * found[name].element_size(), name


def test_values_do_not_share_memory() -> None:
    """The value at resid_pre of layer 1 is the tensor at resid_post of layer 0. Changing one leaves the other alone."""
    found = trace_example(make_network("decoder"), sites="*")
    before = found["decoder.1.resid_pre"].clone()
    found["decoder.0.resid_post"].zero_()
    assert torch.equal(found["decoder.1.resid_pre"], before)


def test_the_token_axes_of_an_encoder_decoder() -> None:
    found = trace_example(make_network("seq2seq"), sites="*")
    assert found.tokens["encoder"].ids == tuple(SOURCE_IDS)
    assert found.tokens["decoder"].ids == (0, *IDS)
    for name in found:
        if name.endswith("pattern"):
            assert found[name].shape[1:] == (len(found.queries(name)), len(found.keys(name))), name
        elif name.endswith(("q", "k", "v", "z")):
            assert found[name].shape[1] == len(found.queries(name)), name
        elif not name.endswith("scores"):
            assert found[name].shape[0] == len(found.queries(name)), name
    assert found.layers("resid_post").shape == (2, 1 + len(IDS), 16)
    assert found.layers("resid_post", "encoder").shape == (2, len(SOURCE_IDS), 16)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_gives_the_traces_of_its_examples(family: str) -> None:
    """Examples of different lengths share a forward pass; padding is removed."""
    network = make_network(family)
    longer = [*IDS, 4, 4, 9]
    examples: list[Any] = [make_example(family), longer if family != "seq2seq" else (longer, [0, 1])]
    together = list(trace_many(network, iter(examples), sites="*", batch_size=2))
    alone = list(trace_many(network, examples, sites="*", batch_size=1))
    assert len(together) == len(alone) == 2
    for a, b in zip(together, alone, strict=True):
        assert a.tokens == b.tokens
        for name in a:
            torch.testing.assert_close(a[name], b[name], atol=1e-10, rtol=0, msg=name)


def test_edits_apply_to_every_example_of_a_corpus() -> None:
    """An edit of a position is an error only if no example has this position."""
    network = make_network("decoder")
    examples = [IDS[:2], IDS, IDS[:3]]
    edit = zero_ablate("decoder.0.z", positions=[4])
    for batch_size in (1, 3):
        found = list(trace_many(network, examples, sites="*.resid_post", edits=edit, batch_size=batch_size))
        for example, one in zip(examples, found, strict=True):
            edits = [edit] if len(example) > 4 else []
            alone = trace(network, example, sites="*.resid_post", edits=edits)
            torch.testing.assert_close(one["decoder.1.resid_post"], alone["decoder.1.resid_post"], atol=1e-10, rtol=0)
    with pytest.raises(UsageError, match="never applied"):
        list(trace_many(network, examples, sites="logits", edits=zero_ablate("decoder.0.z", positions=[7])))


def test_a_head_that_pools_has_one_output() -> None:
    network = make_network("encoder", head=HeadConfig(kind="classify", outputs=3))
    assert trace(network, IDS, sites="logits")["logits"].shape == (3,)


def test_a_trace_that_is_too_large_is_refused_before_it_is_complete() -> None:
    with pytest.raises(UsageError, match=r"when decoder\.0\.resid_mid was recorded, .* larger than max_bytes = 1,000"):
        trace(make_network("decoder"), IDS, sites="*resid*", max_bytes=1000)


def test_recording_does_not_change_the_network_or_its_mode() -> None:
    network = make_network("decoder", dropout=0.5).train()
    network.decoder.blocks[0].eval()  # type: ignore[union-attr, operator]
    first, second = trace(network, IDS, sites="logits"), trace(network, IDS, sites="*")
    assert torch.equal(first["logits"], second["logits"])
    assert network.training
    assert not network.decoder.blocks[0].training  # type: ignore[union-attr, union-attr]


def test_recording_leaves_the_fast_kernels_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an edit of scores or patterns runs the eager reference, and only in its own layer."""
    from qkv.blocks import attention

    layers = []
    monkeypatch.setattr(attention, "weighted_values", lambda pattern, v, dtype: layers.append(1) or v[:, :1] * 0)
    network = make_network("decoder", heads=1)
    trace(network, IDS, sites="*")
    trace(network, IDS, sites="*", edits=[zero_ablate("*.z")])
    assert not layers
    trace(network, IDS, sites="*", edits=[zero_ablate("decoder.1.pattern")])
    assert len(layers) == 1


@pytest.mark.parametrize(
    ("sites", "hint"),
    [
        ("decoder.0.patern", "did you mean 'decoder.0.pattern'"),
        ("decoder.7.z", "did you mean 'decoder.[01].z'"),
        ("encoder.0.z", "did you mean 'decoder.0.z'"),
        ("decoder.0.cross_pattern", "did you mean 'decoder.0.pattern'"),
        ("nothing", "STACK.LAYER.NAME"),
    ],
)
def test_an_unknown_site_is_refused(sites: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        trace(make_network("decoder"), IDS, sites=sites)


def test_wrong_calls_are_refused() -> None:
    network = make_network("decoder")
    found = trace(network, IDS, sites="*.z")
    for call, message in (
        (lambda: found["decoder.0.q"], "nothing was recorded at 'decoder.0.q'"),
        (lambda: found.layers("q"), "no 'q' of the decoder"),
        (lambda: trace(network, []), "no token"),
        (lambda: trace(network, [99]), "token id 99 is outside"),
        (lambda: trace(network, IDS, sites=[]), "at least one"),
        (lambda: trace(network, IDS, heads=[4]), "no head 4"),
        (lambda: trace(network, IDS, token_type_ids=[0] * len(IDS)), "no token types"),
        (lambda: trace(make_network("seq2seq"), IDS), "is a pair"),
        (lambda: next(trace_many(network, [IDS], batch_size=0)), "batch_size = 0"),
        (lambda: next(trace_many(network, ["a text"])), "encode_examples"),  # type: ignore[list-item]
        (lambda: next(trace_many(make_network("seq2seq"), [("a", "b")])), "encode_examples"),  # type: ignore[list-item]
    ):
        with pytest.raises(UsageError, match=message):
            call()


# ── Files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def assert_same(a: Trace, b: Trace) -> None:
    assert (a.tokens, a.heads, list(a)) == (b.tokens, b.heads, list(b))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_trace_is_the_same(family: str, tmp_path: Path) -> None:
    found = trace_example(make_network(family), sites="*", heads=[1])
    found.save(tmp_path / "new" / "t.safetensors")
    assert_same(Trace.load(tmp_path / "new" / "t.safetensors"), found)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["t.safetensors"]


def test_files_that_are_no_traces_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "t.safetensors"
    with pytest.raises(QkvError, match=r"not complete|no such file"):
        Trace.load(path)
    trace(make_network("decoder"), IDS).save(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(QkvError, match=r"not complete|no such file"):
        Trace.load(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(QkvError, match="another safetensors file"):
        Trace.load(path)


@pytest.mark.parametrize(
    "change",
    [{"description": "true"}, {"description": "{}"}, {"description": "["}, {"version": "x"}, {"version": "9"}],
)
def test_a_trace_with_forged_metadata_is_refused(change: dict[str, str], tmp_path: Path) -> None:
    from safetensors.torch import save_file

    metadata = {"format": "qkv-trace", "version": "1", "description": "{}", **change}
    save_file({"a": torch.zeros(1)}, tmp_path / "t.safetensors", metadata=metadata)
    for load in (Trace.load, TunedLens.load):
        with pytest.raises(QkvError, match=r"t\.safetensors"):
            load(tmp_path / "t.safetensors")


def test_a_corpus_is_streamed_to_several_files(tmp_path: Path) -> None:
    network = make_network("decoder")
    examples = [[1 + i, 2, 3 + i][: 1 + i % 3] for i in range(10)]
    consumed = []

    def watched() -> Iterator[Trace]:
        for found in trace_many(network, examples, sites="*.resid_post", batch_size=3):
            yield found
            consumed.append(len(list((tmp_path / "c").glob("*.safetensors"))))

    assert write_traces(tmp_path / "c", watched(), max_file_bytes=2000) == 10
    assert consumed[-1] > 1, "files must be written before the corpus ends"
    for a, b in zip(read_traces(tmp_path / "c"), trace_many(network, examples, sites="*.resid_post"), strict=True):
        assert a.tokens == b.tokens
        assert all(torch.allclose(a[name], b[name], atol=1e-12) for name in a)
    same = [next(trace_many(network, examples))] * 2
    assert write_traces(tmp_path / "twice", same) == 2
    assert all(torch.equal(found["logits"], same[0]["logits"]) for found in read_traces(tmp_path / "twice"))
    with pytest.raises(UsageError, match="not empty"):
        write_traces(tmp_path / "c", [])
    (tmp_path / "c" / "index.json").unlink()
    with pytest.raises(QkvError, match="interrupted"):
        read_traces(tmp_path / "c")


# ── Texts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("byte", iter([]), vocab_size=270, special_tokens=["pad", "bos", "eos", "mask"])


def text_model(family: str, tokenizer: Tokenizer) -> Model:
    network = make_network(family, vocab_size=270, head=HeadConfig(kind="lm", outputs=270))
    return Model(network.config, network, tokenizer)


def test_the_texts_of_tokens(tokenizer: Tokenizer) -> None:
    found = text_model("decoder", tokenizer).trace("né ok", sites="*.z")
    texts = found.tokens["decoder"].texts
    assert texts[0] == "n"
    assert texts[-3:] == (" ", "o", "k")
    assert all(texts)
    assert len(texts) == 6  # é has two bytes


def test_an_encoder_parses_its_mask(tokenizer: Tokenizer) -> None:
    mask = tokenizer.special_tokens.mask
    assert mask is not None
    spelled = tokenizer.id_to_token(mask)
    tokens = text_model("encoder", tokenizer).trace(f"a{spelled}").tokens["encoder"]
    assert mask in tokens.ids
    assert tokens.texts[tokens.ids.index(mask)] == spelled
    assert tokens.special[tokens.ids.index(mask)]


def test_an_encoder_reads_a_pair_with_its_token_types() -> None:
    tokenizer = Tokenizer.train(
        "byte", iter([]), vocab_size=270, special_tokens=["pad", "unk", "cls", "sep", "mask"], template="bert"
    )
    network = make_network("encoder", vocab_size=270, token_types=2, head=HeadConfig(kind="mlm", outputs=270))
    model = Model(network.config, network, tokenizer)
    found = model.trace(("ab", "c"), sites="logits")
    ids, types = tokenizer.encode_with_token_types("ab", "c")
    assert found.tokens["encoder"].ids == tuple(ids)
    assert found.token_type_ids == tuple(types) == (0, 0, 0, 0, 1, 1)
    assert torch.equal(found["logits"], model.logits([ids], token_type_ids=[types])[0])
    assert not torch.allclose(found["logits"], model.trace(ids, sites="logits")["logits"])
    with pytest.raises(UsageError, match="a pair of texts is for an encoder"):
        text_model("decoder", tokenizer).trace(("ab", "c"))


def test_an_encoder_decoder_traces_its_own_output(tokenizer: Tokenizer) -> None:
    model = text_model("seq2seq", tokenizer)
    generated = model.generate("abc", max_tokens=10)
    found = model.trace("abc", sites="logits")
    assert found.tokens["decoder"].ids[:5] == (0, *generated.ids[:4])
    given = model.trace("abc", target="xy", sites="logits")
    assert given.tokens["decoder"].texts[1:] == ("x", "y")
    with pytest.raises(UsageError, match="a target is for an encoder-decoder"):
        text_model("decoder", tokenizer).trace("abc", target="x")


def test_a_model_without_tokenizer_traces_ids() -> None:
    found = new("bert-tiny").trace([5, 6, 7])
    assert found.tokens["encoder"].texts == ("#5", "#6", "#7")
    assert "encoder tokens" in repr(found)
