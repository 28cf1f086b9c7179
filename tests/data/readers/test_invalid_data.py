"""Trap 29: an invalid line neither ends the run nor disappears silently; it is counted, named and limited.

Every case of invalid input has its test here, on real files.
"""

import gzip
import json
import os
import tracemalloc
import zlib
from contextlib import suppress

import pytest
from data_fakes import counts, fields_of, write
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data.problems import Problems, TooManyProblems
from qkv.data.readers import ReadLimits, read
from qkv.data.records import FileLocation
from qkv.errors import QkvError, UsageError


def met(*arguments, **options) -> tuple[list[dict], Problems]:
    """What was read and what was met, with everything accepted."""
    problems = Problems(max_invalid_fraction=1)
    return fields_of(*arguments, problems=problems, **options), problems


def first_place(problems: Problems) -> FileLocation:
    sample = problems.summary().categories[0].samples[0]
    return FileLocation(sample.file, sample.line)


# ---------------------------------------------------------------- files


def test_an_empty_file_alone_is_an_error_and_among_others_a_note(tmp_path):
    empty = write(tmp_path, "empty.txt", "")
    with pytest.raises(QkvError, match=r"no usable records in .*empty\.txt"):
        fields_of(empty)
    texts, problems = met([empty, write(tmp_path, "full.txt", "hello\n")])
    assert texts == [{"text": "hello"}]
    assert counts(problems) == {"empty file": 1}


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json", "a.conll", "a.txt.gz"])
def test_an_empty_file_of_any_format(tmp_path, name):
    with pytest.raises(QkvError, match="no usable records"):
        fields_of(write(tmp_path, name, ""))


@pytest.mark.parametrize(("name", "data"), [("a.txt", "\n \n\n"), ("a.csv", "text,label\n"), ("a.jsonl", "[1]\n")])
def test_no_usable_rows_is_an_error_whatever_is_accepted(tmp_path, name, data):
    with pytest.raises(QkvError, match="no usable records"):
        met(write(tmp_path, name, data))


def test_a_folder_where_a_file_is_needed(tmp_path):
    with pytest.raises(QkvError, match="is a folder"):
        fields_of({"source": tmp_path, "target": tmp_path})
    with pytest.raises(QkvError, match="contains no files"):
        fields_of(tmp_path)


def test_a_file_that_is_not_there_names_the_nearest(tmp_path):
    write(tmp_path, "train.jsonl", "{}")
    with pytest.raises(QkvError, match=r"no such file: .*trian\.jsonl; did you mean .*train\.jsonl\?"):
        fields_of(tmp_path / "trian.jsonl")
    with pytest.raises(QkvError, match="does not exist either"):
        fields_of(tmp_path / "nowhere" / "train.jsonl")
    with pytest.raises(QkvError, match="no file matches"):
        fields_of(f"{tmp_path}/*.csv")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(tmp_path):
    path = write(tmp_path, "a.txt", "hello\n")
    path.chmod(0)
    with pytest.raises(QkvError, match=r"a\.txt: cannot be read \(Permission denied\)"):
        fields_of(path)


def test_an_open_that_fails_is_reported(tmp_path, monkeypatch):
    path = write(tmp_path, "a.txt", "hello\n")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(QkvError, match=r"a\.txt: cannot be read \(Permission denied\)"):
        fields_of(path)


def test_a_disk_that_fails_while_reading(tmp_path, monkeypatch):
    path = write(tmp_path, "a.txt", "hello\n" * 10)

    class Failing:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def seek(self, *_):
            return 0

        def read(self, size):
            if size == 10:
                return b"hello\nhell"
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("qkv.data.readers.decompress.open_data_file", lambda path: Failing())
    with pytest.raises(TooManyProblems, match="reading failed: Input/output error"):
        list(read(path))


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no devices here")
def test_a_device_is_not_read_for_ever():
    with pytest.raises(QkvError, match="not a regular file"):
        fields_of("/dev/zero", format="text")


# ---------------------------------------------------------------- bytes and characters


def test_a_byte_order_mark_is_not_part_of_the_first_name(tmp_path):
    texts, problems = met(write(tmp_path, "a.csv", "\ufefftext,n\nhello,1\n"))
    assert texts == [{"text": "hello", "n": "1"}]
    assert counts(problems) == {"byte-order mark": 1}


def test_windows_line_ends_are_taken_off_and_counted(tmp_path):
    texts, problems = met(write(tmp_path, "a.txt", "one\r\ntwo\r\nthree\r\n"))
    assert texts == [{"text": "one"}, {"text": "two"}, {"text": "three"}]
    assert counts(problems) == {"CR LF line ends": 3}


def test_windows_line_ends_of_tables_are_usual(tmp_path):
    for name, text in (("a.csv", "text,n\r\none,1\r\n"), ("a.tsv", "text\tn\r\none\t1\r\n")):
        texts, problems = met(write(tmp_path, name, text))
        assert (texts, counts(problems)) == ([{"text": "one", "n": "1"}], {})


def test_a_carriage_return_inside_a_line_is_kept_and_noted(tmp_path):
    texts, problems = met(write(tmp_path, "a.txt", "one\rmore\r\ntwo\n"))
    assert texts == [{"text": "one\rmore"}, {"text": "two"}]
    assert counts(problems) == {"CR LF line ends": 1, "CR inside a line": 1}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_carriage_returns_end_the_lines_of_a_file_without_line_feeds(tmp_path, encoding):
    """Old Macs wrote such files."""
    data = 'text,label\r"one, or two",a\rthree,b\r'.encode(encoding)
    rows, problems = met(write(tmp_path, "a.csv", data), encoding=encoding)
    assert rows == [{"text": "one, or two", "label": "a"}, {"text": "three", "label": "b"}]
    assert counts(problems) == {"CR line ends": 1}
    assert met(write(tmp_path, "a.txt", "one\r"))[0] == [{"text": "one"}]


def test_a_carriage_return_outside_quotes_has_our_message(tmp_path):
    rows, problems = met(write(tmp_path, "a.csv", 'text,label\n"one",a\rb\n"two",c\n'))
    assert rows == [{"text": "two", "label": "c"}]
    assert "a.csv:2: a carriage return outside quotes" in str(problems.summary())


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark(tmp_path, encoding):
    texts, problems = met(write(tmp_path, "a.txt", "hello there\nand more\n".encode(encoding)))
    assert texts == [{"text": "hello there"}, {"text": "and more"}]
    assert counts(problems) == {"UTF-16 without a byte-order mark": 1}


def test_utf16_with_half_a_pair_and_half_a_unit_loses_those_lines_only(tmp_path):
    data = "\ufeffone\ntwo ".encode("utf-16-le") + b"\x00\xd8" + "\nthree\nfour".encode("utf-16-le") + b"x"
    texts, problems = met(write(tmp_path, "a.txt", data))
    assert texts == [{"text": "one"}, {"text": "three"}]
    assert counts(problems) == {"invalid UTF-8": 2, "byte-order mark": 1}
    assert first_place(problems).line == 2


def test_invalid_utf8_is_named_by_line_and_position(tmp_path):
    path = write(tmp_path, "a.txt", b"good\nbad \xff here\ngood too\n\xc3\n")
    texts, problems = met(path)
    assert texts == [{"text": "good"}, {"text": "good too"}]
    assert counts(problems) == {"invalid UTF-8": 2}
    assert f"{path}:2: byte 0xff at position 5 is not UTF-8" in str(problems.summary())


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b"")), min_size=1, max_size=20)
)
def test_any_bytes_at_all_are_read_or_counted(tmp_path_factory, raw):
    """Nothing but QkvError comes out, and every line is either a record, bad, or blank."""
    path = tmp_path_factory.mktemp("bytes") / "a.txt"
    path.write_bytes(b"\n".join(raw) + b"\n")
    problems = Problems(max_invalid_fraction=1)
    try:
        texts = fields_of(path, problems=problems)
    except QkvError:
        return
    blank = counts(problems).get("blank line", 0)
    wide = {"byte-order mark", "UTF-16 without a byte-order mark"} & counts(problems).keys()
    is_table = bool(texts) and "text" not in texts[0]  # lines with tabs: the first may be the names of the columns
    header = int(is_table and "first line" not in counts(problems))
    assert wide or len(texts) + problems.num_invalid + blank + header == len(raw)


def test_two_lines_with_a_tab_are_a_header_and_a_record(tmp_path):
    assert fields_of(write(tmp_path, "a.txt", "\x01\t\n\x01\t\n")) == [{"\x01": "\x01", "1": ""}]


def test_a_nul_character_is_named(tmp_path):
    texts, problems = met(write(tmp_path, "a.txt", "good\nb\0d\n" + "good\n" * 5))
    assert len(texts) == 6
    assert counts(problems) == {"NUL character": 1}
    assert first_place(problems).line == 2


def test_lone_surrogates_in_json_escapes(tmp_path):
    good = json.dumps({"text": "whole \U0001f642", "deep": [{"x": "\u00e9"}]})
    bad = ['{"text": "half \\ud83d"}', '{"text": "a", "deep": [{"x": "\\udc00"}]}', '{"text": "\\u0000"}']
    texts, problems = met(write(tmp_path, "a.jsonl", "\n".join([good, *bad])))
    assert texts == [json.loads(good)]
    assert counts(problems) == {"lone surrogate": 2, "NUL character": 1}
    assert "half a surrogate pair (U+D83D) at position 6" in str(problems.summary())


# ---------------------------------------------------------------- lines and rows


def test_a_line_of_100_megabytes_is_counted_and_never_held(tmp_path):
    path = tmp_path / "a.txt"
    with path.open("wb") as out:
        out.write(b"first\n")
        for _ in range(100):
            out.write(b"x" * 1_000_000)
        out.write(b"\nlast\n")
    tracemalloc.start()
    texts, problems = met(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert texts == [{"text": "first"}, {"text": "last"}]
    assert counts(problems) == {"line too long": 1}
    assert "the line is 100,000,000 bytes long; the limit is 16,777,216" in str(problems.summary())
    assert peak < 40e6


def test_a_line_at_the_limit_is_read_and_one_above_is_not(tmp_path):
    texts, problems = met(
        write(tmp_path, "a.txt", "x" * 5000 + "\n" + "y" * 5001 + "\nz"), limits=ReadLimits(max_line_bytes=5000)
    )
    assert [len(f["text"]) for f in texts] == [5000, 1]
    assert first_place(problems).line == 2
    with pytest.raises(UsageError, match="at least 1024"):
        ReadLimits(max_line_bytes=10)


@pytest.mark.parametrize(
    ("line", "kind", "reason"),
    [
        ('{"text": "cut', "broken JSON", "Unterminated string starting at at column 10"),
        ("[1, 2]", "not a JSON object", "not an object but a list"),
        ("null", "not a JSON object", "not an object but null"),
        ("[" * 100_000, "broken JSON", "nested too deeply"),
        ('{"n": ' + "9" * 5000 + "}", "broken JSON", "Exceeds the limit"),
        ('{"other": "x"}', "missing field", "no field 'text'; it has: other"),
        ('{"text": null}', "missing field", "no field 'text'; it has: text"),
    ],
)
def test_an_invalid_json_line_is_named(tmp_path, line, kind, reason):
    path = write(tmp_path, "a.jsonl", '{"text": "good"}\n' + line + '\n{"text": "good"}\n')
    texts, problems = met(path, columns=["text"])
    assert texts == [{"text": "good"}] * 2
    assert counts(problems) == {kind: 1}
    assert f"{path}:2: {reason}" in str(problems.summary())


def test_a_broken_json_document_is_named_by_its_line(tmp_path):
    path = write(tmp_path, "a.json", '[\n{"a": 1},\n{"a": }\n]')
    with pytest.raises(TooManyProblems, match=r"a\.json:3: Expecting value at column 7"):
        fields_of(path, problems=Problems())
    with pytest.raises(TooManyProblems, match="write it as JSON Lines"):
        fields_of(
            write(tmp_path, "b.json", "[" + "1," * 5000 + "1]"),
            limits=ReadLimits(max_json_bytes=5000),
            problems=Problems(),
        )


def test_a_row_with_too_few_columns(tmp_path):
    texts, problems = met(write(tmp_path, "a.csv", "a,b\n1,2\n3\n4,5,6\n7,8\n"))
    assert [f["a"] for f in texts] == ["1", "7"]
    assert counts(problems) == {"wrong number of columns": 2}
    assert "1 columns, but most rows have 2" in str(problems.summary())


def test_a_quote_that_is_never_closed_costs_its_own_row_only(tmp_path):
    rows = "".join(f"{n},fine\n" for n in range(50))
    texts, problems = met(write(tmp_path, "a.csv", f'n,text\n{rows}50,"open\n{rows}'))
    assert len(texts) == 100
    assert counts(problems) == {"bad quoting": 1}
    assert first_place(problems).line == 52
    assert "is not closed" in str(problems.summary())


@pytest.mark.parametrize("unusable", [b"\xff not", b"nul \0", b"\xff one\nused\n\xff two"])
def test_an_unusable_line_inside_quotes_costs_its_row(tmp_path, unusable):
    path = write(tmp_path, "a.csv", b'text,label\n"first\n' + unusable + b'\nlast",x\nb,y\n')
    texts, problems = met(path)
    assert texts == [{"text": "b", "label": "y"}]
    assert (problems.num_seen, problems.num_invalid) == (2, 1)
    assert first_place(problems) == FileLocation(str(path), 3)


def test_an_unusable_line_after_a_quote_that_is_never_closed(tmp_path):
    texts, problems = met(write(tmp_path, "a.csv", b'text,label\n"open,x\nb,y\n\xff,z\nc,y\n'))
    assert [one["text"] for one in texts] == ["b", "c"]
    assert counts(problems) == {"bad quoting": 1, "invalid UTF-8": 1}
    assert (problems.num_seen, problems.num_invalid) == (4, 2)


def test_text_after_a_closing_quote_is_invalid(tmp_path):
    texts, problems = met(write(tmp_path, "a.csv", 'a,b\n"x"y,1\n2,3\n'))
    assert texts == [{"a": "2", "b": "3"}]
    assert counts(problems) == {"bad quoting": 1}


# ---------------------------------------------------------------- aligned files


@pytest.mark.parametrize(("english", "french"), [(3, 5), (5, 3), (0, 2)])
def test_misaligned_files_are_always_an_error_with_both_counts(tmp_path, english, french):
    paths = {"s": write(tmp_path, "a.en", "x\n" * english), "t": write(tmp_path, "a.fr", "y\n" * french)}
    with pytest.raises(QkvError, match=rf"a\.en has {english}, .*a\.fr has {french}\."):
        met(paths)


def test_an_invalid_or_blank_side_removes_the_pair_and_keeps_the_alignment(tmp_path):
    paths = {
        "s": write(tmp_path, "a.en", b"1\n\xff\n3\n\n5\n\n7\n"),
        "t": write(tmp_path, "a.fr", b"un\ndeux\n \nquatre\ncinq\n\nsept\n"),
    }
    texts, problems = met(paths)
    assert texts == [{"s": "1", "t": "un"}, {"s": "5", "t": "cinq"}, {"s": "7", "t": "sept"}]
    assert counts(problems) == {"invalid UTF-8": 1, "one side is blank": 2, "blank line": 1}
    assert (problems.num_seen, problems.num_invalid) == (6, 3)
    named = [str(sample) for sample in problems.categories["one side is blank"].samples]
    assert named == [f"{paths['t']}:3", f"{paths['s']}:4"]


# ---------------------------------------------------------------- compression


def test_a_gzip_that_ends_early_stops_the_run_unless_everything_is_accepted(tmp_path):
    lines = "".join(f"{zlib.crc32(bytes([n % 251, n // 251]))}\n" for n in range(20_000)).encode()
    path = write(tmp_path, "a.txt.gz", gzip.compress(lines)[:-60_000])
    with pytest.raises(TooManyProblems, match=r"a\.txt\.gz: the gzip data ends early, after [\d,]+ bytes of text"):
        fields_of(path, problems=Problems(max_invalid_fraction=0.5))
    texts, problems = met(path)
    assert 1000 < len(texts) < 20_000
    assert counts(problems) == {"gzip ends early": 1}


def test_a_gzip_without_its_last_bytes_has_lost_its_checksum(tmp_path):
    with pytest.raises(TooManyProblems, match="ends early"):
        fields_of(write(tmp_path, "a.txt.gz", gzip.compress(b"one\ntwo\n")[:-4]), problems=Problems())


def test_a_damaged_gzip(tmp_path):
    data = bytearray(gzip.compress(os.urandom(5000).hex().encode()))
    data[2000] ^= 0xFF
    with pytest.raises(TooManyProblems, match="gzip data is damaged"):
        fields_of(write(tmp_path, "a.txt.gz", bytes(data)), problems=Problems())


def test_something_else_called_gzip(tmp_path):
    with pytest.raises(TooManyProblems, match="the name says gzip, but the content is not gzip"):
        fields_of(write(tmp_path, "a.txt.gz", "<html>404 not found</html>\n"), problems=Problems())


@pytest.mark.parametrize("name", ["a.csv.gz", "a.json.gz"])
def test_a_plain_file_called_gzip_is_not_also_called_empty(tmp_path, name):
    with pytest.raises(
        QkvError, match=r"the content is not gzip; if it is plain, rename it to a\.(csv|json)$"
    ) as error:
        met(write(tmp_path, name, "text,label\nx,y\n"))
    assert "could not be used" not in str(error.value)
    assert "empty" not in str(error.value)


def test_a_zstd_that_ends_early(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    data = zstandard.ZstdCompressor().compress(os.urandom(300_000).hex().encode())
    with pytest.raises(TooManyProblems, match="zstd data ends early"):
        fields_of(write(tmp_path, "a.txt.zst", data[:-1]), problems=Problems())
    with pytest.raises(TooManyProblems, match="zstd data is damaged"):
        fields_of(write(tmp_path, "b.txt.zst", data + b"rubbish"), problems=Problems())


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_file_that_expands_without_end_is_given_up_soon(tmp_path, kind):
    """Much nothing in a small file: given up after 64 MiB, with little memory."""
    if kind == "gzip":
        packer = zlib.compressobj(6, wbits=31)
        data = b"".join(packer.compress(b"\0" * 2**24) for _ in range(8)) + packer.flush()
    else:
        data = pytest.importorskip("zstandard").ZstdCompressor(level=1).compress(bytes(2**30))
    path = write(tmp_path, "a.txt", data)
    tracemalloc.start()
    with pytest.raises(TooManyProblems, match=f"bytes of {kind} have grown to .* more than 200 times"):
        fields_of(path, problems=Problems())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150e6


def test_well_compressed_text_is_no_bomb(tmp_path):
    data = gzip.compress(b"the same line again\n" * 200_000, 9)
    assert len(data) * 200 < 4_000_000
    texts, problems = met(write(tmp_path, "a.txt.gz", data))
    assert (len(texts), counts(problems)) == (200_000, {})


# ---------------------------------------------------------------- Parquet


def test_a_damaged_parquet_file(tmp_path):
    pytest.importorskip("pyarrow")
    with pytest.raises(TooManyProblems, match="damaged, or not a Parquet file"):
        fields_of(write(tmp_path, "a.parquet", "this is no parquet file at all"), problems=Problems())


def test_a_parquet_text_that_is_not_utf8(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    raw = arrow.array([b"good", b"\xff\xfe", b"fine", None])
    text = arrow.Array.from_buffers(arrow.string(), 4, raw.buffers())
    parquet.write_table(arrow.table({"text": text}), tmp_path / "a.parquet")
    texts, problems = met(tmp_path / "a.parquet", columns=["text"])
    assert texts == [{"text": "good"}, {"text": "fine"}]
    assert counts(problems) == {"invalid UTF-8": 1, "missing field": 1}


# ---------------------------------------------------------------- the share


def jsonl(tmp_path, good: int, bad: int):
    return write(tmp_path, "a.jsonl", '{"text": "x"}\n' * good + "broken\n" * bad)


def test_one_percent_is_accepted_and_more_is_not(tmp_path):
    problems = Problems()
    assert len(fields_of(jsonl(tmp_path, 99, 1), problems=problems)) == 99
    with pytest.raises(TooManyProblems) as stopped:
        fields_of(jsonl(tmp_path, 98, 2), problems=Problems())
    message = str(stopped.value)
    assert "2 of 100 records could not be used (2 %; the limit is 1 %)" in message
    assert "a.jsonl:99: Expecting value at column 1" in message
    assert "max_invalid_fraction" in message


def test_a_run_stops_early_once_the_share_is_settled(tmp_path):
    problems = Problems(max_invalid_fraction=0.01)
    path = write(tmp_path, "a.jsonl", '{"text": "x"}\n' * 9_000 + "broken\n" * 2_000 + '{"text": "x"}\n' * 100_000)
    with pytest.raises(TooManyProblems):
        fields_of(path, problems=problems)
    assert problems.num_seen == 10_000


def test_bad_lines_at_the_start_of_a_large_file_do_not_stop_it(tmp_path):
    path = write(tmp_path, "a.jsonl", "broken\n" * 15 + '{"text": "x"}\n' * 2000)
    assert len(fields_of(path, problems=Problems())) == 2000


def test_nothing_bad_accepted_stops_at_the_first(tmp_path):
    problems = Problems(max_invalid_fraction=0)
    with pytest.raises(TooManyProblems, match="1 of 1"):
        fields_of(write(tmp_path, "a.jsonl", "broken\n" + '{"text": "x"}\n' * 10), problems=problems)


# ---------------------------------------------------------------- anything at all

WHOLE = {
    "a.txt": b"one\ntwo \xc3\xa9\nthree\n",
    "a.csv": b'text,label\n"a ""b""\nc",x\nd,y\n',
    "a.tsv": b"text\tlabel\na\tx\nb\ty\n",
    "a.jsonl": b'{"text": "a \\ud83d\\ude42", "n": [1, {"x": null}]}\n{"text": "b"}\n',
    "a.json": b'{"data": [{"paragraphs": [{"context": "ab", "qas": [{"question": "q", "id": "1", '
    b'"answers": [{"text": "b", "answer_start": 1}]}]}]}]}',
    "a.conll": b"-DOCSTART- O\n\na B-X\nb O\n\nc O\n",
    "a.conllu": b"# text = a\n1\ta\ta\tNOUN\t_\t_\t0\troot\t_\t_\n\n",
    "a.txt.gz": gzip.compress(b"one\ntwo\n" * 50, mtime=0),
}


@settings(deadline=None, max_examples=80)
@given(st.data())
@pytest.mark.parametrize("name", WHOLE)
def test_a_damaged_file_never_ends_in_a_traceback(tmp_path_factory, name, data):
    """Bytes changed, put in, cut out or doubled anywhere: records, problems, or an error that teaches."""
    content = bytearray(WHOLE[name])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content)))
        size = data.draw(st.integers(0, 6))
        content[place : place + size] = data.draw(st.one_of(st.binary(max_size=8), st.just(bytes(content[:place]))))
    path = tmp_path_factory.mktemp("damaged") / name
    path.write_bytes(content)
    with suppress(QkvError):
        for record in read(path, problems=Problems(max_invalid_fraction=1)):
            assert record.fields
