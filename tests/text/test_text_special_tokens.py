"""Special tokens by role: found in every place that may say them, and read back by us and by transformers."""

import json

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, processors

from qkv.errors import UsageError
from qkv.text import SpecialTokens, Tokenizer
from qkv.text.special_tokens import ROLE_NAMES, SPELLINGS, TEMPLATES, resolve_spellings


def backend_with(*special: str) -> Backend:
    backend = Backend(models.WordLevel({text: n for n, text in enumerate(["cat", *special])}, unk_token="cat"))
    backend.add_special_tokens(list(special))
    return backend


def test_roles_come_from_tokenizer_config_whatever_the_spelling():
    backend = backend_with("«go»", "«stop»", "«fill»")
    config = {"bos_token": "«go»", "eos_token": {"content": "«stop»", "lstrip": False}, "pad_token": "«fill»"}
    roles = Tokenizer(backend, config).special_tokens
    assert (roles.bos, roles.eos, roles.pad) == (1, 2, 3)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "special_tokens_map.json": {"bos_token": "«go»", "eos_token": "«go»"},
                "tokenizer_config.json": {"eos_token": "«stop»"},  # has precedence over the map
            },
            SpecialTokens(bos=1, eos=2),
        ),
        # "cat" is not a special token, whatever config.json says
        ({"config.json": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}}, SpecialTokens(bos=1, eos=2)),
    ],
)
def test_roles_are_read_from_the_files_of_a_folder(tmp_path, files, expected):
    backend_with("«go»", "«stop»").save(str(tmp_path / "tokenizer.json"))
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert Tokenizer.load(tmp_path).special_tokens == expected


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (processors.BertProcessing(("«stop»", 2), ("«go»", 1)), SpecialTokens(cls=1, sep=2)),
        (processors.RobertaProcessing(("«stop»", 2), ("«go»", 1)), SpecialTokens(bos=1, eos=2)),
        (
            processors.TemplateProcessing(single="«go» $A «stop»", special_tokens=[("«go»", 1), ("«stop»", 2)]),
            SpecialTokens(bos=1, eos=2),
        ),
        (processors.TemplateProcessing(single="$A «stop»", special_tokens=[("«stop»", 2)]), SpecialTokens(eos=2)),
        (processors.Sequence([processors.ByteLevel(), processors.BertProcessing(("«stop»", 2), ("«go»", 1))]), None),
    ],
)
def test_a_template_shows_roles_where_no_file_names_them(processor, expected):
    backend = backend_with("«go»", "«stop»")
    backend.post_processor = processor
    assert Tokenizer(backend).special_tokens == (expected or SpecialTokens(cls=1, sep=2))


@pytest.mark.parametrize("role", ROLE_NAMES)
def test_known_spellings_are_the_last_resort(role):
    for spelling in SPELLINGS[role].spellings:
        assert getattr(Tokenizer(backend_with(spelling)).special_tokens, role) == 1


def test_an_ordinary_word_is_no_special_token():
    backend = Backend(models.WordLevel({"</s>": 0, "cat": 1}, unk_token="cat"))
    assert Tokenizer(backend).special_tokens == SpecialTokens()


def test_sentinels_are_in_the_order_of_their_numbers():
    backend = backend_with("<extra_id_2>", "<extra_id_10>", "<extra_id_0>", "<extra_id_1>")
    assert Tokenizer(backend).special_tokens.sentinels == (3, 4, 1, 2)


def test_a_wrong_role_suggests_the_nearest():
    with pytest.raises(UsageError, match="'mak' is not the role of a special token; did you mean 'mask'"):
        resolve_spellings(["pad", "mak"])


# -------------------------------------------------------------------- saved and read back


def test_a_saved_tokenizer_reads_back_the_same(tokenizer, tmp_path, corpus):
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.special_tokens == tokenizer.special_tokens
    assert again.fingerprint == tokenizer.fingerprint
    assert again.vocab_size == tokenizer.vocab_size
    assert again.encode_batch(corpus[:14], add_special_tokens=True) == tokenizer.encode_batch(
        corpus[:14], add_special_tokens=True
    )


def test_transformers_reads_the_same_roles_and_ids(tokenizer, tmp_path, corpus):
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for role in ROLE_NAMES:
        assert getattr(theirs, SPELLINGS[role].config_key + "_id") == getattr(tokenizer.special_tokens, role), role
    for text in corpus[:14]:
        assert theirs(text)["input_ids"] == tokenizer.encode(text)
    for number in tokenizer.special_tokens.sentinels:
        assert number in theirs.all_special_ids
    ids = tokenizer.encode(corpus[0])
    assert theirs.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)


def test_a_missing_role_stays_missing(tmp_path, corpus):
    """Without the null in the file, "</s>" would be taken for the end by its spelling."""
    tokenizer = Tokenizer.train("word", iter(corpus), 50, special_tokens={"unk": "</s>"})
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).special_tokens == tokenizer.special_tokens == SpecialTokens(unk=0)


def test_fingerprints_tell_tokenizers_apart(trained, corpus):
    prints = {tokenizer.fingerprint for tokenizer in trained.values()}
    assert len(prints) == len(trained)
    one, other = (
        Tokenizer.train("byte", iter([]), 300, special_tokens=["pad", "eos"], template=template)
        for template in ("none", "eos")
    )
    assert one.fingerprint != other.fingerprint
    swapped = Tokenizer.train("byte", iter([]), 300, special_tokens={"pad": "</s>", "eos": "<pad>"})
    straight = Tokenizer.train("byte", iter([]), 300, special_tokens={"eos": "</s>", "pad": "<pad>"})
    assert swapped.fingerprint != straight.fingerprint


def test_the_fingerprint_is_the_same_on_every_machine():
    """A fixed value: it changes only with the tokenizer, or on purpose with ENCODING_VERSION."""
    tokenizer = Tokenizer.train("byte", iter([]), 260, special_tokens=["pad", "eos"], template="eos")
    assert tokenizer.fingerprint == "d077439da45ec390dc3bbe93a70392d7"


# -------------------------------------------------------------------- templates


def test_templates_lay_out_roles(corpus):
    roles = ["pad", "bos", "eos", "unk", "mask", "sep", "cls"]
    expected = {
        "none": ("A", "A B"),
        "eos": ("A eos", "A eos B eos"),
        "bos": ("bos A", "bos A bos B"),
        "bos-eos": ("bos A eos", "bos A eos B eos"),
        "bert": ("cls A sep", "cls A sep B sep"),
        "roberta": ("bos A eos", "bos A eos eos B eos"),
        "cls-eos": ("cls A eos", "cls A eos B eos"),
    }
    assert expected.keys() == {name for name in TEMPLATES if "language" not in name}
    for template, layouts in expected.items():
        tokenizer = Tokenizer.train("word", iter(corpus), 400, special_tokens=roles, template=template)
        ids = {
            "A": tokenizer.encode("the cat", add_special_tokens=False),
            "B": tokenizer.encode("sat", add_special_tokens=False),
        }
        ids |= {role: [getattr(tokenizer.special_tokens, role)] for role in roles}
        for layout, given in zip(layouts, (("the cat",), ("the cat", "sat")), strict=True):
            assert tokenizer.encode(*given) == [number for word in layout.split() for number in ids[word]], template


def test_types_mark_the_second_text(corpus):
    roles = ["unk", "sep", "cls"]
    tokenizer = Tokenizer.train("word", iter(corpus), 400, special_tokens=roles, template="bert")
    ids, types = tokenizer.encode_with_token_types("the cat", "sat on")
    assert types == [0, 0, 0, 0, 1, 1, 1]
    assert len(ids) == 7
