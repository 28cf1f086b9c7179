"""Weights in several files, and weights that are tied: read and written without mixing anything up.

transformers saves a tied matrix once, other writers under each of its names; a config may say that two matrices are
tied when they are not. Which storage is shared after loading is asserted, not assumed.
"""

import json

import pytest
import torch
from reference_models import cases, lookup, pair, transformers
from safetensors.torch import load_file, save_file

import qkv
from qkv.models.tables import ARCHITECTURES
from qkv.store.weights import INDEX_FILE, WEIGHTS_FILE, write_weights

LM = cases(kinds=("lm", "mlm"))
ONE_OF_EACH = ["bert:BertForMaskedLM", "gpt2:GPT2LMHeadModel", "marian-two-vocabularies:MarianMTModel"]


def answer(model, text):
    return model.logits(text.ids[None], source=None if text.source is None else text.source[None])


def tokens_of(network):
    """The token table that the head may be tied to."""
    return (network.target_embedding if hasattr(network, "target_embedding") else network.embedding).token


# ── Several files ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", ONE_OF_EACH)
def test_a_folder_that_transformers_sharded(case, tmp_path):
    two = pair(case)
    two.theirs.save_pretrained(tmp_path, max_shard_size="6KB")
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2
    expected = answer(two.ours(torch.float32), two.texts[0])
    assert torch.equal(answer(qkv.load(tmp_path), two.texts[0]), expected)


def reshard(folder):
    """Write a folder's weights again, in several files."""
    tensors = load_file(folder / WEIGHTS_FILE)
    (folder / WEIGHTS_FILE).unlink()
    names = write_weights(folder, tensors, max_shard_bytes=6_000)
    assert len(names) > 3
    assert names[-1] == INDEX_FILE


@pytest.mark.parametrize("case", ONE_OF_EACH)
def test_our_own_shards(case, tmp_path):
    two = pair(case)
    two.ours(torch.float32).save(tmp_path / "own")
    reshard(tmp_path / "own")
    expected = answer(two.ours(torch.float32), two.texts[0])
    assert torch.equal(answer(qkv.load(tmp_path / "own"), two.texts[0]), expected)


@pytest.mark.parametrize("case", ONE_OF_EACH)
def test_transformers_reads_our_shards(case, tmp_path):
    two = pair(case)
    cls = two.ours(torch.float32).export(tmp_path / "out")
    reshard(tmp_path / "out")
    again = getattr(transformers, cls).from_pretrained(tmp_path / "out")
    before, after = dict(two.theirs.named_parameters()), dict(again.named_parameters())
    read = [name for name in before if before[name].requires_grad and "contact_head" not in name]
    assert [name for name in read if not torch.equal(before[name], after[name])] == []


def test_no_shard_is_larger_than_asked_unless_a_tensor_is(tmp_path):
    tensors = {f"t{i}": torch.full((100 * (1 + i % 3),), float(i)) for i in range(9)} | {"large": torch.ones(5000)}
    names = write_weights(tmp_path, tensors, max_shard_bytes=1500)
    shards = [load_file(tmp_path / name) for name in names if name != INDEX_FILE]
    for shard in shards:
        size = sum(t.numel() * 4 for t in shard.values())
        assert size <= 1500 or list(shard) == ["large"]
    assert {name for shard in shards for name in shard} == set(tensors)
    index = json.loads((tmp_path / INDEX_FILE).read_text())
    assert index["metadata"]["total_size"] == sum(t.numel() * 4 for t in tensors.values())
    assert {
        name: set(load_file(tmp_path / file)) >= {name} for name, file in index["weight_map"].items()
    } == dict.fromkeys(tensors, True)


# ── Tied and untied ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", LM)
def test_tied_matrices_share_storage_and_others_do_not(case):
    two = pair(case)
    network = two.ours(torch.float32).network
    theirs_tied = two.theirs.get_output_embeddings().weight is two.theirs.get_input_embeddings().weight
    if "two-vocabularies" in case:
        theirs_tied = two.theirs.lm_head.weight is two.theirs.model.decoder.embed_tokens.weight
    assert (network.head.out.weight is tokens_of(network).weight) == theirs_tied
    pointers = network.head.out.weight.data_ptr() == tokens_of(network).weight.data_ptr()
    assert pointers == theirs_tied


def test_both_kinds_are_among_the_cases():
    """The control of the test above."""
    assert {pair(case).config.head.tied for case in LM} == {True, False}


@pytest.mark.parametrize("case", cases(kinds=("lm",), families=("seq2seq",)))
def test_source_and_target_share_their_table_where_there_is_one(case):
    network = pair(case).ours(torch.float32).network
    shared = network.source_embedding.token.weight is network.target_embedding.token.weight
    assert shared == ("two-vocabularies" not in case)


@pytest.mark.parametrize("case", LM)
def test_save_and_load_keep_numbers_config_and_ties(case, tmp_path):
    model = pair(case).ours(torch.float32)
    model.save(tmp_path / "own")
    again = qkv.load(tmp_path / "own")
    assert again.config == model.config
    first, second = (dict(m.network.named_parameters(remove_duplicate=False)) for m in (model, again))
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    ties = [{a: b for a in named for b in named if named[a] is named[b]} for named in (first, second)]
    assert ties[0] == ties[1]


def test_a_tied_matrix_is_stored_once(tmp_path):
    model = pair("gpt2:GPT2LMHeadModel").ours(torch.float32)
    model.save(tmp_path / "own")
    stored = load_file(tmp_path / "own" / WEIGHTS_FILE)
    assert sum(t.shape == tokens_of(model.network).weight.shape for t in stored.values()) == 1


def rewritten(case, folder, change):
    """The folder of a case with its tensors changed."""
    two = pair(case)
    folder.mkdir()
    tensors = load_file(two.folder / WEIGHTS_FILE)
    change(tensors)
    save_file(tensors, folder / WEIGHTS_FILE)
    (folder / "config.json").write_bytes((two.folder / "config.json").read_bytes())
    return two


COPIES = {
    "bert:BertForMaskedLM": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    "gpt2:GPT2LMHeadModel": ("transformer.wte.weight", "lm_head.weight"),
    "t5:T5ForConditionalGeneration": ("shared.weight", "lm_head.weight"),
    "bart:BartForConditionalGeneration": ("model.shared.weight", "model.decoder.embed_tokens.weight"),
    "marian:MarianMTModel": ("model.shared.weight", "lm_head.weight"),
    "llama-biased-tied:LlamaForCausalLM": ("model.embed_tokens.weight", "lm_head.weight"),
}


@pytest.mark.parametrize("case", COPIES)
def test_a_copy_under_another_name_is_taken_for_the_copy_that_it_is(case, tmp_path):
    kept, copy = COPIES[case]
    two = rewritten(case, tmp_path / "in", lambda tensors: tensors.update({copy: tensors[kept].clone()}))
    model = qkv.load(tmp_path / "in")
    assert model.notes == []
    assert model.config == two.config
    assert torch.equal(answer(model, two.texts[0]), answer(two.ours(torch.float32), two.texts[0]))


@pytest.mark.parametrize("case", COPIES)
def test_a_copy_that_is_none_is_refused(case, tmp_path):
    """Which of the two is meant? Taking either in silence would be a guess."""
    kept, copy = COPIES[case]
    rewritten(case, tmp_path / "in", lambda tensors: tensors.update({copy: tensors[kept] + 1.0}))
    with pytest.raises(qkv.QkvError, match=r"tied to.*" + copy.removeprefix("model.").replace(".", r"\.")):
        qkv.load(tmp_path / "in")


@pytest.mark.parametrize(
    ("case", "stored", "other"),
    [
        ("bart:BartForConditionalGeneration", "model.shared.weight", "model.encoder.embed_tokens.weight"),
        ("t5:T5Model", "shared.weight", "decoder.embed_tokens.weight"),
        ("bert:BertForMaskedLM", "cls.predictions.bias", "cls.predictions.decoder.bias"),
        ("gpt_neox:GPTNeoXForCausalLM", "lm_head.weight", "embed_out.weight"),
    ],
)
def test_a_tensor_saved_under_its_other_name(case, stored, other, tmp_path):
    two = pair(case)
    present = load_file(two.folder / WEIGHTS_FILE)
    name = next(name for name in (stored, other) if name in present)
    other = other if name == stored else stored
    rewritten(case, tmp_path / "in", lambda tensors: tensors.update({other: tensors.pop(name)}))
    said = answer(qkv.load(tmp_path / "in"), two.texts[0])
    assert torch.equal(said, answer(two.ours(torch.float32), two.texts[0]))


def test_an_untied_head_is_not_taken_for_the_embedding(tmp_path):
    """mT5 as transformers saves it says `tie_word_embeddings: true` beside a matrix of its own."""
    two = pair("mt5:MT5ForConditionalGeneration")
    assert json.loads((two.folder / "config.json").read_text())["tie_word_embeddings"] is True
    assert two.config.head.tied is False


# ── Names with and without a prefix ──────────────────────────────────────────────────────────────────────────────


def prefix_of(case: str) -> str:
    """What a class with a head puts before the names of its body."""
    variant, table = lookup(case)
    return table.prefix or ARCHITECTURES[variant.architecture].prefix


@pytest.mark.parametrize("case", [c for c in cases(first_only=True) if lookup(c)[1].names and prefix_of(c)])
def test_the_body_of_a_class_with_a_head_may_be_saved_bare(case, tmp_path):
    """As the first published GPT-2 and many a BERT are: `h.0…` where transformers now writes `transformer.h.0…`."""

    def bare(tensors):
        for name in [name for name in tensors if name.startswith(prefix_of(case))]:
            tensors[name.removeprefix(prefix_of(case))] = tensors.pop(name)

    two = rewritten(case, tmp_path / "in", bare)
    assert torch.equal(answer(qkv.load(tmp_path / "in"), two.texts[0]), answer(two.ours(torch.float32), two.texts[0]))


@pytest.mark.parametrize("case", [c for c in cases(kinds=("none", "embed"), first_only=True) if prefix_of(c)])
def test_the_base_class_may_be_saved_with_the_prefix(case, tmp_path):
    def named(tensors):
        for name in list(tensors):
            tensors[prefix_of(case) + name] = tensors.pop(name)

    two = rewritten(case, tmp_path / "in", named)
    assert torch.equal(answer(qkv.load(tmp_path / "in"), two.texts[0]), answer(two.ours(torch.float32), two.texts[0]))
