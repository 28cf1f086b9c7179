"""Marian's two SentencePiece models over one vocabulary, against transformers' own class, which uses the package."""

import json
import random
import warnings

import pytest

from qkv.errors import QkvError
from qkv.text import Tokenizer

TEXTS = ["The cat sat on the mat.", "Ein kleines Mädchen öffnet die Tür.", "мир 日本", "", " a  b ", "x" * 30, "½ ﬁ"]


@pytest.fixture
def folder(sentencepiece_model, tmp_path):
    """Source and target models that differ, and a vocabulary that lacks some pieces of each and shuffles the rest."""
    source, target = sentencepiece_model(model_type="unigram"), sentencepiece_model(model_type="bpe")
    from sentencepiece import SentencePieceProcessor

    models = [SentencePieceProcessor(model_proto=data) for data in (source, target)]
    pieces = sorted({model.id_to_piece(n) for model in models for n in range(3, len(model))})
    random.Random(3).shuffle(pieces)
    kept = [">>fra<<", *pieces[: len(pieces) * 9 // 10]]
    vocabulary = {piece: n for n, piece in enumerate(["</s>", "<unk>", *kept, "<pad>"])}
    tmp_path.joinpath("source.spm").write_bytes(source)
    tmp_path.joinpath("target.spm").write_bytes(target)
    tmp_path.joinpath("vocab.json").write_text(json.dumps(vocabulary))
    config = {"tokenizer_class": "MarianTokenizer", "source_lang": "eng", "target_lang": "deu"}
    tmp_path.joinpath("tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.fixture
def reference(folder):
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.MarianTokenizer.from_pretrained(folder)


def test_source_and_target_ids_are_the_reference_s(folder, reference, corpus):
    tokenizer = Tokenizer.load(folder)
    texts = TEXTS + [text for text in corpus[:8] if "\n" not in text]
    for text in texts:
        assert tokenizer.encode(text) == reference(text)["input_ids"], text
        assert tokenizer.target.encode(text) == reference(text_target=text)["input_ids"], text
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def test_the_sides_do_differ(folder, corpus):
    """The negative control: with the same model on both sides the test above would show nothing."""
    tokenizer = Tokenizer.load(folder)
    assert any(tokenizer.encode(text) != tokenizer.target.encode(text) for text in corpus)


def test_decoding_uses_the_vocabulary(folder, reference):
    tokenizer = Tokenizer.load(folder)
    for text in TEXTS:
        ids = tokenizer.target.encode(text)
        assert tokenizer.decode(ids).strip() == reference.decode(ids, skip_special_tokens=True)
        stream = tokenizer.stream()
        assert "".join(map(stream.push, ids)) + stream.finish() == tokenizer.decode(ids)


def test_a_language_code_stays_whole(folder, reference):
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.encode(">>fra<< The cat") == reference(">>fra<< The cat")["input_ids"]


def test_roles_and_size(folder):
    tokenizer = Tokenizer.load(folder)
    table = json.loads(folder.joinpath("vocab.json").read_text())
    assert (tokenizer.special_tokens.eos, tokenizer.special_tokens.unk, tokenizer.special_tokens.pad) == (
        0,
        1,
        table["<pad>"],
    )
    assert tokenizer.vocab_size == len(table)
    assert 0 not in tokenizer.encode("a </s> b", add_special_tokens=False)


def test_saved_files_are_the_loaded_ones(folder, tmp_path, reference):
    tokenizer = Tokenizer.load(folder)
    tokenizer.save(tmp_path / "copy")
    for name in ("source.spm", "target.spm", "vocab.json"):
        assert (tmp_path / "copy" / name).read_bytes() == (folder / name).read_bytes()
    again = Tokenizer.load(tmp_path / "copy")
    assert again.fingerprint == tokenizer.fingerprint
    assert again.target.fingerprint != again.fingerprint
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = type(reference).from_pretrained(tmp_path / "copy")
    assert theirs("The cat")["input_ids"] == tokenizer.encode("The cat")


def test_separate_vocabularies(folder):
    table = json.loads(folder.joinpath("vocab.json").read_text())
    other = {piece: len(table) - 1 - number for piece, number in table.items()}
    folder.joinpath("target_vocab.json").write_text(json.dumps(other))
    config = json.loads(folder.joinpath("tokenizer_config.json").read_text())
    folder.joinpath("tokenizer_config.json").write_text(json.dumps(config | {"separate_vocabs": True}))
    tokenizer = Tokenizer.load(folder)
    ids = tokenizer.target.encode("The cat sat on the mat.")
    assert ids[-1] == other["</s>"] == tokenizer.target.special_tokens.eos
    assert tokenizer.encode("cat")[-1] == table["</s>"] == tokenizer.special_tokens.eos
    assert "cat" in tokenizer.target.decode(ids)
    assert "cat" not in tokenizer.decode(ids)


def test_a_vocabulary_without_an_end_is_refused(folder):
    table = json.loads(folder.joinpath("vocab.json").read_text())
    del table["</s>"]
    folder.joinpath("vocab.json").write_text(json.dumps(table))
    with pytest.raises(QkvError, match="the special token '</s>' is missing"):
        Tokenizer.load(folder)
