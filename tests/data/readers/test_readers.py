"""Every format gives the records that its own writer put in, and names the place each came from."""

import bz2
import csv
import gzip
import json
import lzma
import sys
from types import ModuleType

import pytest
from data_fakes import counts, fields_of, write
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qkv.data.problems import Problems
from qkv.data.readers import DataFiles, ReadLimits, ReadOptions, read
from qkv.data.readers.lines import read_lines
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation
from qkv.errors import QkvError, UsageError

# Whatever a line may hold: no line ends, no NUL, no lone surrogates; form feeds, U+0085 and U+2028 very much included.
ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0"), max_size=12)
ODD = st.sampled_from(["\x0c", "\x0b", "\x1c", "\x85", "\u2028", "\u2029", "é", "𝄞", '"', ",", "\t", " "])
LINE = st.lists(st.one_of(ANY, ODD), max_size=4).map("".join)


# ---------------------------------------------------------------- lines


@settings(deadline=None)
@given(st.lists(LINE, max_size=30), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(1024, 1100))
def test_lines_end_at_lf_and_crlf_only(tmp_path_factory, texts, end, last, limit):
    """Against the obvious: split the bytes at LF. `str.splitlines` would split at nine other characters."""
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes((end.join(texts) + (end if last and texts else "")).encode())
    found = [
        text
        for _, text in read_lines(path, ReadContext(ReadOptions(limits=ReadLimits(max_line_bytes=limit)), Problems(1)))
    ]
    expected = texts[:-1] if texts and texts[-1] == "" and not last else texts
    assert found == expected


def test_splitlines_would_have_been_wrong(tmp_path):
    text = "one\u2028still one\ntwo\x0cstill two\n"
    assert len(text.splitlines()) == 4
    assert [f["text"] for f in fields_of(write(tmp_path, "a.txt", text))] == ["one\u2028still one", "two\x0cstill two"]


@pytest.mark.parametrize("block", [1024, 2048])
def test_a_line_may_cross_any_number_of_blocks(tmp_path, block, monkeypatch):
    monkeypatch.setattr("qkv.data.readers.decompress.BLOCK_BYTES", block)
    texts = ["é" * n for n in (1, 500, 511, 512, 513, 1500, 4000, 3)]
    path = write(tmp_path, "a.txt", "\n".join(texts))
    assert [text for _, text in read_lines(path, ReadContext(ReadOptions(), Problems()))] == texts


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_marked_and_wide_encodings_are_recognised(tmp_path, encoding):
    texts = ["plain words here", "Größe und 𝄞 Musik", "and the end"]
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    problems = Problems()
    path = write(tmp_path, "a.txt", (mark + "\n".join(texts)).encode(encoding))
    assert [f["text"] for f in fields_of(path, problems=problems)] == texts
    assert len(counts(problems)) == 1, "the guess is reported"


def test_a_given_encoding_wins(tmp_path):
    path = write(tmp_path, "a.txt", "Straße\nça".encode("latin-1"))
    assert [f["text"] for f in fields_of(path, encoding="latin-1")] == ["Straße", "ça"]
    with pytest.raises(UsageError, match="unknown encoding 'latin-one'"):
        fields_of(path, encoding="latin-one")


# ---------------------------------------------------------------- compression


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


@pytest.mark.parametrize(
    ("ending", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress), ("zst", zstd)]
)
def test_compressed_files_read_as_the_plain_one(tmp_path, ending, compress):
    data = "".join(f"line {n}\n" for n in range(30_000)).encode()
    half = len(data) // 2
    plain = fields_of(write(tmp_path, "a.txt", data))
    assert fields_of(write(tmp_path, f"a.txt.{ending}", compress(data))) == plain
    joined = compress(data[:half]) + compress(data[half:]) + b"\0" * 512
    assert fields_of(write(tmp_path, f"b.txt.{ending}", joined)) == plain, "members end to end, padded with zeros"
    assert fields_of(write(tmp_path, "c.txt", compress(data))) == plain, "the content says it, not the name"


def test_zstd_without_its_package_names_the_extra(tmp_path, monkeypatch):
    path = write(tmp_path, "a.txt.zst", zstd(b"hello\n"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(QkvError, match=r"qkv\[zstd\]"):
        fields_of(path)


# ---------------------------------------------------------------- text


def test_text_by_line_paragraph_and_document(tmp_path):
    path = write(tmp_path, "a.txt", "one\ntwo\n\n \nthree\n\n")
    assert [f["text"] for f in fields_of(path)] == ["one", "two", "three"]
    assert [f["text"] for f in fields_of(path, unit="paragraph")] == ["one\ntwo", "three"]
    assert [f["text"] for f in fields_of(path, unit="document")] == ["one\ntwo\n\n \nthree\n"]
    where = [record.location for record in read(path, unit="paragraph")]
    assert where == [FileLocation(str(path), 1), FileLocation(str(path), 5)]
    with pytest.raises(UsageError, match="unknown unit 'page'"):
        fields_of(path, unit="page")


def test_a_long_document_comes_in_pieces_that_are_the_whole(tmp_path):
    text = "".join(f"line {n}\n" for n in range(2000))
    problems = Problems()
    pieces = fields_of(
        write(tmp_path, "a.txt", text), unit="document", limits=ReadLimits(document_chunk_bytes=1000), problems=problems
    )
    assert len(pieces) > 10
    assert "".join(f["text"] for f in pieces) == text.removesuffix("\n")
    assert counts(problems) == {"long document": len(pieces)}


# ---------------------------------------------------------------- tables


CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=8)
ROWS = st.lists(
    st.lists(st.one_of(CELL, st.sampled_from(['"', ",", "\n", '""', "a,b", '"x"'])), min_size=3, max_size=3)
)


@settings(deadline=None)
@given(ROWS, st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))
def test_csv_gives_back_what_a_csv_writer_wrote(tmp_path_factory, rows, quoting):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out, lineterminator="\n", quoting=quoting).writerows([["a", "b", "c"], *rows])
    if rows:
        assert [list(f.values()) for f in fields_of(path)] == rows


def test_csv_names_columns_by_the_header_and_lines_by_their_first(tmp_path):
    path = write(tmp_path, "a.csv", 'text,label\n"one\nline",x\n"say ""hi""",y\n')
    found = list(read(path, columns={"sentence": "text", "class": "label"}))
    assert [r.fields for r in found] == [
        {"sentence": "one\nline", "class": "x"},
        {"sentence": 'say "hi"', "class": "y"},
    ]
    assert [r.location.line for r in found] == [2, 4]


def test_columns_by_number_mean_that_there_is_no_header(tmp_path):
    path = write(tmp_path, "a.tsv", "hello\t1\tx\nworld\t2\ty\n")
    assert fields_of(path, columns={"text": 0, "label": 2}) == [
        {"text": "hello", "label": "x"},
        {"text": "world", "label": "y"},
    ]
    assert fields_of(path, columns={"text": "0"}, header=True) == [{"text": "world"}]
    assert fields_of(path, header=False)[0] == {"0": "hello", "1": "1", "2": "x"}


@pytest.mark.parametrize("column", [-1, "-1", 3, "99999999999999999999"])
def test_a_column_number_that_does_not_exist_is_refused(column, tmp_path):
    path = write(tmp_path, "a.tsv", "hello\t1\tx\n")
    with pytest.raises(UsageError, match="no column"):
        fields_of(path, columns={"text": column}, header=False)


def test_a_first_line_that_looks_like_data_is_data_and_reported(tmp_path):
    bare = write(tmp_path, "bare.tsv", "the man sees a cat\tder Mann sieht eine Katze\na dog\tein Hund\n")
    problems = Problems()
    assert fields_of(bare, problems=problems) == [
        {"0": "the man sees a cat", "1": "der Mann sieht eine Katze"},
        {"0": "a dog", "1": "ein Hund"},
    ]
    assert counts(problems) == {"first line": 1}
    assert "choose columns by name: --columns FIELD=NAME" in str(problems.summary())
    named = write(tmp_path, "named.tsv", "source\ttarget text\na dog\tein Hund\n")
    asked = write(tmp_path, "asked.tsv", "Is it true?\tlabel\tplace\na dog\tyes\there\n")
    chosen = {"columns": {"source": "the man sees a cat"}}
    given = (({"header": True}, bare), ({"header": False}, bare), ({"columns": [0]}, bare), (chosen, bare))
    for options, path in (*given, ({}, named), ({}, asked)):
        problems = Problems()
        fields_of(path, problems=problems, **options)
        assert counts(problems) == {}


def test_tsv_keeps_quotation_marks_unless_quoting_is_on(tmp_path):
    path = write(tmp_path, "a.tsv", 'text\tn\n"Hi," she said\t1\n"a ""b"""\t2\n')
    problems = Problems()
    assert [f["text"] for f in fields_of(path, problems=problems)] == ['"Hi," she said', '"a ""b"""']
    assert counts(problems) == {"quotes in TSV": 1}
    assert 'read the file as format = "csv"' in str(problems.summary())
    quoted = write(tmp_path, "b.tsv", 'text\tn\n"a ""b"""\t2\n')
    assert fields_of(quoted, quote=True) == [{"text": 'a "b"', "n": "2"}]
    assert fields_of(quoted, format="csv") == [{"text": 'a "b"', "n": "2"}]
    bare = write(tmp_path, "c.tsv", 'Well, yes\t"a\t""b"""\nno\t2\n')
    assert fields_of(bare, format="csv", columns=[0, 1]) == [{"0": "Well, yes", "1": 'a\t"b"'}, {"0": "no", "1": "2"}]
    commas = write(tmp_path, "d.tsv", "a,b\n1,2\n")
    assert fields_of(commas, format="csv") == [{"a": "1", "b": "2"}]


def test_headers_with_empty_and_repeated_names(tmp_path):
    assert fields_of(write(tmp_path, "a.csv", ",x,x\n1,2,3\n")) == [{"0": "1", "x": "2", "x_2": "3"}]


def test_a_semicolon_can_be_the_delimiter(tmp_path):
    path = write(tmp_path, "a.csv", "a;b\n1,5;2\n")
    assert fields_of(path, delimiter=";") == [{"a": "1,5", "b": "2"}]
    with pytest.raises(UsageError, match="one character"):
        fields_of(path, delimiter="||")


@pytest.mark.parametrize(("delimiter", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_the_first_line_of_a_csv_without_commas_tells_its_delimiter(tmp_path, delimiter, name):
    path = write(tmp_path, "a.csv", '\ntext;"n, m";x\n1,5;"a;""b";\n'.replace(";", delimiter))
    problems = Problems()
    assert fields_of(path, problems=problems) == [{"text": "1,5", "n, m": f'a{delimiter}"b', "x": ""}]
    assert counts(problems) == {"blank line": 1, "delimiter": 1}
    assert f"a.csv:2: the file is read as separated by {name}" in str(problems.summary())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a;b,c\n1,2\n", ["a;b", "c"]),
        ("text\na;b\n", ["text"]),
        ('"a;b"\nx\n', ["a;b"]),
        ('"a;b\nc",d\nx,y\n', ["a;b\nc", "d"]),
        ('5" disk;b\nx;y\n', ['5" disk', "b"]),
        ("a;b|c|d\nx|y|z\n", ["a;b", "c", "d"]),
        ("a;b|c\nx;y\n", ["a", "b|c"]),
    ],
)
def test_a_csv_is_read_by_commas_unless_its_first_line_has_none_and_something_else(tmp_path, text, names):
    problems = Problems(max_invalid_fraction=0)
    (found,) = fields_of(write(tmp_path, "a.csv", text), problems=problems)
    assert list(found) == names


def test_a_cell_larger_than_the_csv_modules_own_limit(tmp_path):
    path = write(tmp_path, "a.csv", 'text\n"' + "x" * 200_000 + '"\n')
    assert len(fields_of(path)[0]["text"]) == 200_000


# ---------------------------------------------------------------- JSON


def test_jsonl_keeps_types_and_reaches_inside(tmp_path):
    row = {
        "translation": {"en": "hello", "de": "hallo"},
        "n": 3,
        "score": 0.5,
        "turns": [{"role": "user", "content": "hi"}],
    }
    path = write(tmp_path, "a.jsonl", json.dumps(row) + "\n")
    assert fields_of(path) == [row]
    chosen = {"source": "translation.en", "target": "translation.de", "turns": "turns"}
    assert fields_of(path, columns=chosen) == [{"source": "hello", "target": "hallo", "turns": row["turns"]}]


def test_a_json_file_is_a_list_of_objects_or_of_lists(tmp_path):
    path = write(tmp_path, "a.json", json.dumps([{"q": "1 + 1", "a": "2"}, {"q": "2 + 2", "a": "4"}]))
    assert fields_of(path, columns=["q"]) == [{"q": "1 + 1"}, {"q": "2 + 2"}]
    keyed = write(tmp_path, "b.json", json.dumps({"splits": {"train": [["hello", "greeting"]], "test": []}}))
    assert fields_of(keyed, records_key="splits.train", columns={"text": 0, "label": 1}) == [
        {"text": "hello", "label": "greeting"}
    ]


def test_a_json_file_that_is_no_list_says_where_lists_are(tmp_path):
    path = write(tmp_path, "a.json", json.dumps({"train": [], "test": [], "name": "x"}))
    with pytest.raises(UsageError, match="several lists, train, test: choose one with --records-key train"):
        fields_of(path)
    with pytest.raises(UsageError, match="no list at key 'trian'; set records_key to one of its lists: train, test"):
        fields_of(path, records_key="trian")
    deeper = write(tmp_path, "b.json", json.dumps({"splits": {"train": [["a"]], "test": []}, "name": "x"}))
    with pytest.raises(UsageError, match=r"several lists, splits.train, splits.test: .* --records-key splits.train"):
        fields_of(deeper)
    only = write(tmp_path, "c.json", json.dumps({"result": {"rows": [{"text": "a"}], "count": 1}}))
    assert fields_of(only) == [{"text": "a"}]


# ---------------------------------------------------------------- SQuAD


def squad(answers, **more) -> str:
    context = "Ada Lovelace wrote the first programme."
    question = {"id": "q1", "question": "Who wrote it?", "answers": answers, **more}
    return json.dumps(
        {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": [question]}]}]}
    )


def test_squad_one_and_two(tmp_path):
    one = fields_of(write(tmp_path, "a.json", squad([{"text": "Ada Lovelace", "answer_start": 0}])))
    context = "Ada Lovelace wrote the first programme."
    expected = {"id": "q1", "question": "Who wrote it?", "context": context, "answers": ["Ada Lovelace"], "starts": [0]}
    assert one == [expected]
    plausible = [{"text": "Ada", "answer_start": 0}]
    two = fields_of(
        write(tmp_path, "b.json", squad([], is_impossible=True, plausible_answers=plausible)), format="squad"
    )
    assert two == [{**expected, "answers": [], "starts": []}]


def test_squad_answers_must_stand_where_they_say(tmp_path):
    problems = Problems(max_invalid_fraction=1)
    with pytest.raises(QkvError, match="no usable records"):
        fields_of(write(tmp_path, "a.json", squad([{"text": "Lovelace", "answer_start": 5}])), problems=problems)
    assert counts(problems) == {"misplaced answer": 1}
    assert "'Lovelace' is not at character 5" in str(problems.summary())


def test_a_file_called_squad_must_be_squad(tmp_path):
    with pytest.raises(QkvError, match="is not in SQuAD's format"):
        fields_of(write(tmp_path, "a.json", "[]"), format="squad")


# ---------------------------------------------------------------- CoNLL


def test_conll_sentences(tmp_path):
    text = "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n# # B-NP O\n\n\nfin NN I-NP O"
    found = list(read(write(tmp_path, "a.conll", text)))
    assert [r.fields for r in found] == [
        {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]},
        {"tokens": ["#"], "tags": ["O"]},
        {"tokens": ["fin"], "tags": ["O"]},
    ]
    assert [r.location.line for r in found] == [3, 6, 9]
    assert fields_of(tmp_path / "a.conll", columns={"words": 0, "pos": 1})[0] == {
        "words": ["EU", "rejects"],
        "pos": ["NNP", "VBZ"],
    }


CONLLU = """# sent_id = 1
# text = Vámonos al mar
1-2	Vámonos	_	_	_	_	_	_	_	_
1	Vamos	ir	VERB	_	_	0	root	_	_
2	nos	nosotros	PRON	_	_	1	obj	_	_
3	al mar	mar	NOUN	_	_	1	obl	_	_
3.1	nada	_	_	_	_	_	_	_	_

"""


def test_conllu_skips_comments_contractions_and_empty_nodes(tmp_path):
    path = write(tmp_path, "a.conllu", CONLLU)
    assert fields_of(path) == [{"tokens": ["Vamos", "nos", "al mar"], "tags": ["VERB", "PRON", "NOUN"]}]
    assert fields_of(path, columns={"lemma": "lemma", "head": 6}) == [
        {"lemma": ["ir", "nosotros", "mar"], "head": ["0", "1", "1"]}
    ]
    with pytest.raises(UsageError, match="its columns are: id, form, lemma"):
        fields_of(path, columns={"tags": "pos"})


def test_a_sentence_with_a_ragged_line_is_bad_and_only_that_one(tmp_path):
    problems = Problems(max_invalid_fraction=1)
    found = fields_of(write(tmp_path, "a.conll", "a O\nb O\n\nc\nd O\n\ne O\n"), problems=problems)
    assert [f["tokens"] for f in found] == [["a", "b"], ["e"]]
    assert problems.summary().categories[0].samples[0].line == 4


def test_conll_comments_are_hinted_at(tmp_path):
    path = write(tmp_path, "a.conll", "a O\n\n# id 7 de\nb O\n")
    problems = Problems(max_invalid_fraction=1)
    assert len(fields_of(path, problems=problems)) == 1
    assert "comments = true" in str(problems.summary())
    assert len(fields_of(path, comments=True)) == 2


# ---------------------------------------------------------------- aligned


def test_aligned_files_by_field_and_by_their_extensions(tmp_path):
    english, french = write(tmp_path, "train.en", "one\ntwo\n"), write(tmp_path, "train.fr", "un\u2028\ndeux")
    pairs = [{"source": "one", "target": "un\u2028"}, {"source": "two", "target": "deux"}]
    assert fields_of({"source": english, "target": french}) == pairs
    assert fields_of([english, french])[0] == {"en": "one", "fr": "un\u2028"}
    assert fields_of([english, french], columns={"source": "fr", "target": "en"})[1] == {
        "source": "deux",
        "target": "two",
    }
    assert [str(r.location) for r in read({"a": english, "b": french})] == [f"{english}:1", f"{english}:2"]


def test_two_files_of_a_known_format_are_read_one_after_the_other(tmp_path):
    paths = [write(tmp_path, "a.txt", "one\n"), write(tmp_path, "a.csv", "text\ntwo\n")]
    assert [f["text"] for f in fields_of(paths)] == ["one", "two"]


def test_aligned_globs_pair_up_in_order(tmp_path):
    for name, text in [("a.en", "1"), ("b.en", "2"), ("a.fr", "un"), ("b.fr", "deux")]:
        write(tmp_path, name, text)
    assert fields_of({"s": f"{tmp_path}/*.en", "t": f"{tmp_path}/*.fr"}) == [
        {"s": "1", "t": "un"},
        {"s": "2", "t": "deux"},
    ]
    (tmp_path / "b.fr").unlink()
    with pytest.raises(QkvError, match="2 for s, 1 for t"):
        fields_of({"s": f"{tmp_path}/*.en", "t": f"{tmp_path}/*.fr"})


# ---------------------------------------------------------------- Parquet and datasets


def test_parquet_rows(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"text": f"row {n}", "label": n % 3, "translation": {"en": "a", "de": "b"}} for n in range(3000)]
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.Table.from_pylist(rows), path)
    assert fields_of(path) == rows
    assert fields_of(path, columns={"source": "translation.en", "label": "label"})[2999] == {"source": "a", "label": 2}
    with pytest.raises(
        UsageError, match=r"did you mean 'text'.*its columns are: text, label, translation\.en, translation\.de"
    ):
        fields_of(path, columns=["txt"])


def test_parquet_without_its_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(QkvError, match=r"qkv\[parquet\]"):
        fields_of(write(tmp_path, "a.parquet", b"PAR1"))


def test_datasets_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(QkvError, match=r"qkv\[datasets\]"):
        fields_of("imdb", format="datasets")


def test_datasets_are_loaded_as_that_library_says(tmp_path, monkeypatch):
    """The library is not needed here: what is held is how it is called, and what becomes of its rows and errors."""
    library = ModuleType("datasets")
    asked = []

    def load_dataset(*arguments):
        asked.append(arguments)
        if arguments[0] == "gone":
            raise ValueError("no such dataset\nand much more")
        return {"train": [{"text": "a"}, {"text": "b"}], "test": [{"text": "c"}]}

    library.load_dataset = load_dataset  # type: ignore[attr-defined]
    library.load_from_disk = lambda path: [{"text": path}]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert fields_of("some/set", format="datasets", split="train", config="small") == [{"text": "a"}, {"text": "b"}]
    assert asked == [("some/set", "small")]
    assert fields_of(str(tmp_path), format="datasets") == [{"text": str(tmp_path)}]
    with pytest.raises(UsageError, match="no split 'dev'; set split to one of: train, test"):
        fields_of("some/set", format="datasets", split="dev")
    with pytest.raises(QkvError, match=r"could not be loaded: ValueError: no such dataset$"):
        fields_of("gone", format="datasets")


def test_datasets_for_real(tmp_path):
    library = pytest.importorskip("datasets")
    library.Dataset.from_dict({"text": ["a", "b"]}).save_to_disk(str(tmp_path / "set"))
    assert fields_of(tmp_path / "set", format="datasets") == [{"text": "a"}, {"text": "b"}]


# ---------------------------------------------------------------- columns, globs, folders


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.csv", "text,label\nhi,x\n"), ("a.tsv", "text\tlabel\nhi\tx\n"), ("a.jsonl", '{"text": "hi", "label": "x"}\n')],
)
def test_a_wrong_column_lists_those_there_are(tmp_path, name, data):
    with pytest.raises(UsageError, match=r"no column 'lable' \(did you mean 'label'\?\); its columns are: text, label"):
        fields_of(write(tmp_path, name, data), columns=["text", "lable"])


def test_a_number_beyond_the_columns_lists_them(tmp_path):
    with pytest.raises(UsageError, match="no column 2; its columns are: 0, 1"):
        fields_of(write(tmp_path, "a.tsv", "hi\tx\n"), columns={"text": 2})


def test_a_name_that_first_turns_up_late_is_not_a_wrong_one(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"a": 1}\n' * 50 + '{"b": 2}\n')
    assert fields_of(path, columns=["b"]) == [{"b": 2}]


def test_folders_and_globs_are_sorted_and_report_what_they_leave_out(tmp_path):
    for name in ("c.txt", "a.jsonl", "notes.pdf", "deep/b.txt.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        data = gzip.compress(b"b\n") if name.endswith("gz") else b'{"text": "a"}\n' if "jsonl" in name else b"c\n"
        write(tmp_path, name, data)
    problems = Problems()
    assert [f["text"] for f in fields_of(tmp_path, problems=problems)] == ["a", "c", "b"]
    assert counts(problems) == {"unknown extension": 1}
    assert "notes.pdf" in str(problems.summary())
    assert [f["text"] for f in fields_of(f"{tmp_path}/**/*.txt*")] == ["c", "b"]


def test_an_explicit_file_has_the_format_of_its_content(tmp_path):
    path = write(tmp_path, "a.dat", "hello\n")
    problems = Problems()
    assert fields_of(path, problems=problems) == fields_of(path, format="text") == [{"text": "hello"}]
    assert "read as text by its first lines; to choose another: --format" in str(problems.summary())
    for text, first in (("a\tb\nc\td\n", {"a": "c", "b": "d"}), ('{"a": 1}\n', {"a": 1}), ("[[5]]", {"0": 5})):
        assert fields_of(write(tmp_path, "a.dat", text)) == [first]
    for data in (b"", b"PK\x03\x04\0\0", b"%PDF-1.7\n\x07\x01"):
        with pytest.raises(UsageError, match=r"(?s)has no known extension; set the format .* looks like a binary file"):
            fields_of(write(tmp_path, "a.dat", data))
    with pytest.raises(UsageError, match=r"is an archive that qkv cannot read; unpack it"):
        fields_of(write(tmp_path, "a.7z", b"7z\xbc\xaf\x27\x1c"))
    assert len(fields_of(write(tmp_path, "a.dat", "[Musik] läßt grüßen\n".encode("latin-1")))) == 1
    with pytest.raises(UsageError, match="format = 'jsnl' is unknown; did you mean 'jsonl'"):
        fields_of(path, format="jsnl")


def test_files_can_be_read_again_and_report_progress(tmp_path):
    path = write(tmp_path, "a.txt.gz", gzip.compress("".join(f"{n}\n" for n in range(50_000)).encode()))
    files = DataFiles(path, options=ReadOptions())
    heard: list[tuple[int, int]] = []
    first = sum(1 for _ in files.records(Problems(), lambda done, total: heard.append((done, total))))
    assert sum(1 for _ in files.records(Problems())) == first == 50_000
    assert heard[-1] == (path.stat().st_size, path.stat().st_size)
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)


def test_a_misspelt_option_names_the_nearest(tmp_path):
    with pytest.raises(UsageError, match="unknown option 'colums' for reading files; did you mean 'columns'"):
        fields_of(write(tmp_path, "a.txt", "x"), colums=["text"])


def test_limits_can_be_given_by_name(tmp_path):
    files = DataFiles.from_options(write(tmp_path, "a.txt", "x" * 2000 + "\ny\n"), limits={"max_line_bytes": 1024})
    assert [record.fields for record in files.records(Problems(max_invalid_fraction=1))] == [{"text": "y"}]


def joined_line_by_line(lines: list[str], max_size: int) -> list[tuple[int, str]]:
    """The reference of documents: (first line, text) of each record."""
    records, held, size, start = [], [], 0, 0
    for number, line in enumerate(lines, start=1):
        start = start if held else number
        held.append(line)
        size += len(line) + 1
        if size >= max_size:
            records.append((start, "\n".join([*held, ""])))
            held, size = [], 0
    return records + ([(start, "\n".join(held))] if any(held) else [])


@settings(deadline=None, max_examples=100)
@example(["a b", "a b", "", "a b"], 400, "\n")  # as lines, these would be sentences in columns
@given(st.lists(st.text("ab é", max_size=60), max_size=120), st.integers(1, 400), st.sampled_from(["\n", "\r\n"]))
def test_documents_are_joined_from_blocks_as_from_lines(tmp_path_factory, lines, max_size, end):
    path = tmp_path_factory.mktemp("documents") / "a.txt"
    path.write_bytes(end.join([*lines, ""]).encode())
    limits = ReadLimits(max_line_bytes=1024, document_chunk_bytes=max_size)
    options = {"format": "text", "unit": "document", "limits": limits, "problems": Problems()}
    expected = joined_line_by_line(lines, max_size)
    if not expected:
        with pytest.raises(QkvError, match="no usable records"):
            list(read(path, **options))
        return
    assert [(one.location.line, one.fields["text"]) for one in read(path, **options)] == expected
    assert options["problems"].num_seen == len(lines)
