"""The token cache gives back exactly what the encode made, is reused when it may be, and rebuilt when it must be."""

import json
import multiprocessing
import os
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from data_fakes import ByteEncode, counts, write
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data.cache import writer as cache_writer
from qkv.data.cache.file_hashes import FileHashes
from qkv.data.cache.token_cache import DamagedCache, TokenCache, find_or_build, token_cache
from qkv.data.encode.encoders import EncodeText
from qkv.data.problems import Problems, TooManyProblems
from qkv.data.readers import DataFiles, ReadLimits, ReadOptions
from qkv.data.records import FileLocation, Record
from qkv.data.split import ValidationSplit
from qkv.errors import QkvError, UsageError
from qkv.text import Tokenizer


class TableEncode:
    """Gives back arrays that were written into the records."""

    fingerprint = "table"

    def __init__(self, *fields: str):
        self.fields = fields
        self.calls = 0

    def __call__(self, records):
        self.calls += 1
        return [record.fields for record in records]


def table_records(rows: list[dict]) -> list[Record]:
    return [Record(row, FileLocation("made.up", n + 1)) for n, row in enumerate(rows)]


def build(folder: Path, rows: list[dict], **options) -> TokenCache:
    return TokenCache.build(table_records(rows), TableEncode(*rows[0]), folder / "cache", **options)


NUMBERS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6)
SMALL = st.lists(st.integers(0, 2**16 - 1), max_size=6)
ROWS = st.lists(st.fixed_dictionaries({"ids": st.one_of(NUMBERS, SMALL), "label": SMALL}), min_size=1, max_size=30)


# ---------------------------------------------------------------- what goes in comes out


@settings(deadline=None, max_examples=50)
@given(ROWS, st.sampled_from([1, 3, 4096]), st.sampled_from([1, 3]), st.booleans())
def test_what_goes_in_comes_out(tmp_path_factory, rows, batch, workers, arrays):
    """Any numbers of 32 bits, in any batches, with any number in flight; the widening of uint16 falls anywhere."""
    folder = tmp_path_factory.mktemp("cache")
    given_rows = [{k: np.array(v, np.int64) for k, v in row.items()} for row in rows] if arrays else rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_writer, "BATCH_RECORDS", batch)
        cache = build(folder, given_rows, workers=workers)
    assert len(cache) == len(rows)
    assert [{k: v.tolist() for k, v in cache[n].items()} for n in range(len(cache))] == rows
    assert all(value.dtype == np.int32 for value in cache[0].values())
    for field in ("ids", "label"):
        assert cache.lengths(field).tolist() == [len(row[field]) for row in rows]


@settings(deadline=None, max_examples=50)
@given(ROWS, st.data())
def test_gather_is_indexing_many_times(tmp_path_factory, rows, data):
    cache = build(tmp_path_factory.mktemp("cache"), rows)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12))
    flat, offsets = cache.gather("ids", np.array(chosen, np.int64))
    assert flat.dtype == np.int32
    assert [flat[a:b].tolist() for a, b in pairwise(offsets)] == [rows[n]["ids"] for n in chosen]
    starts = [data.draw(st.integers(0, len(rows[n]["ids"]))) for n in chosen]
    sizes = [data.draw(st.integers(0, len(rows[n]["ids"]) - start)) for n, start in zip(chosen, starts, strict=True)]
    flat, offsets = cache.gather("ids", np.array(chosen, np.int64), np.array(starts, int), np.array(sizes, int))
    expected = [rows[n]["ids"][start : start + size] for n, start, size in zip(chosen, starts, sizes, strict=True)]
    assert [flat[a:b].tolist() for a, b in pairwise(offsets)] == expected


def test_gathering_long_examples_is_gathering_short_ones(tmp_path, monkeypatch):
    """Both ways of fetching, on the same examples."""
    rows = [{"ids": list(range(n, 3 * n))} for n in range(60)]
    cache = build(tmp_path, rows)
    chosen = np.array([50, 3, 0, 59, 50])
    found = []
    for long in (0, 10**9):
        monkeypatch.setattr("qkv.data.cache.examples.MIN_TOKENS_TO_COPY", long)
        found.append(cache.gather("ids", chosen)[0].tolist())
    assert found[0] == found[1] == [number for n in chosen for number in rows[n]["ids"]]


def test_numbers_take_two_bytes_where_they_fit_and_four_where_not(tmp_path):
    small = TokenCache.build(table_records([{"ids": [0, 65535]}]), TableEncode("ids"), tmp_path / "small")
    large = TokenCache.build(table_records([{"ids": [0, 65536]}]), TableEncode("ids"), tmp_path / "large")
    ignored = TokenCache.build(table_records([{"ids": [5]}, {"ids": [-100]}]), TableEncode("ids"), tmp_path / "neg")
    sizes = [(cache.folder / "ids.tokens.bin").stat().st_size for cache in (small, large, ignored)]
    assert sizes == [4, 8, 8]
    assert ignored[1]["ids"].tolist() == [-100]


def test_a_cache_of_a_real_tokenizer_holds_what_it_gives(tmp_path):
    texts = [f"naïve text № {n}" for n in range(50)]
    tokenizer = Tokenizer.train("byte-bpe", iter(texts), vocab_size=300)
    cache = token_cache(
        DataFiles(write(tmp_path, "a.txt", "\n".join(texts))), EncodeText(tokenizer), tmp_path / "caches"
    )
    assert [cache[n]["ids"].tolist() for n in range(50)] == [
        tokenizer.encode(text, add_special_tokens=False) for text in texts
    ]


def test_single_numbers_and_fractions(tmp_path):
    rows = [{"label": 3, "score": 4.5}, {"label": 1, "score": 0.25}]
    cache = build(tmp_path, rows)
    assert cache[0]["label"].tolist() == [3]
    assert cache[1]["score"].dtype == np.float32
    assert cache.gather("score", np.array([1, 0]))[0].tolist() == [0.25, 4.5]


@pytest.mark.parametrize("value", [[2**31], [1.5], np.array([2**40]), np.array(["x"])])
def test_what_does_not_fit_is_refused(tmp_path, value):
    with pytest.raises(QkvError, match="the encoded field 'ids'"):
        build(tmp_path, [{"ids": value}])
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == []


def test_whole_numbers_and_fractions_do_not_mix(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_writer, "BATCH_RECORDS", 1)
    with pytest.raises(QkvError, match="integers in some records and fractions in others"):
        build(tmp_path, [{"ids": np.array([1])}, {"ids": np.array([0.5])}])


def test_indices_out_of_range(tmp_path):
    cache = build(tmp_path, [{"ids": [1]}, {"ids": [2, 3]}])
    assert cache[-1]["ids"].tolist() == [2, 3]
    for wrong in (2, -3):
        with pytest.raises(IndexError):
            cache[wrong]
    for wrong in ([0, 2], [-1]):
        with pytest.raises(IndexError):
            cache.gather("ids", np.array(wrong))
    with pytest.raises(
        IndexError, match="tokens 0 to 1 of example 0 were requested; its field 'ids' has tokens 0 to 0"
    ):
        cache.gather("ids", np.array([0]), np.array([0]), np.array([2]))
    with pytest.raises(UsageError, match="no field 'idz'; did you mean 'ids'"):
        cache.lengths("idz")


def test_every_example_knows_its_file_and_line(tmp_path):
    paths = [write(tmp_path, "a.txt", "one\n\ntwo\n"), write(tmp_path, "b.txt", "three\n")]
    cache = token_cache(DataFiles(paths), ByteEncode(), tmp_path / "caches")
    assert [str(cache.location(n)) for n in range(3)] == [f"{paths[0]}:1", f"{paths[0]}:3", f"{paths[1]}:1"]


def test_field_names_become_file_names_and_must_be_plain(tmp_path):
    with pytest.raises(UsageError, match="cannot be the name of an encoded field"):
        build(tmp_path, [{"../ids": [1]}])


# ---------------------------------------------------------------- bad records


def test_what_cannot_be_encoded_is_counted_and_named(tmp_path):
    path = write(tmp_path, "a.txt", "good\n" * 150 + "bad one\n")
    problems = Problems()
    cache = token_cache(DataFiles(path), ByteEncode(), tmp_path / "caches", problems=problems)
    assert (len(cache), counts(problems)) == (150, {"not encodable": 1})
    assert f"{path}:151: the text is bad" in str(problems.summary())


def test_too_many_that_cannot_be_encoded_leave_no_cache(tmp_path):
    path = write(tmp_path, "a.txt", "good\n" * 10 + "bad one\n")
    with pytest.raises(TooManyProblems, match="1 of 11"):
        token_cache(DataFiles(path), ByteEncode(), tmp_path / "caches")
    assert not [p for p in (tmp_path / "caches").iterdir() if p.is_dir()]


def test_records_of_another_source_are_counted_too(tmp_path):
    records = [Record({"text": "good"}, FileLocation("x", n)) for n in range(200)] + [
        Record({"text": "bad"}, FileLocation("x", 7))
    ]
    problems = Problems()
    TokenCache.build(records, ByteEncode(), tmp_path / "cache", problems=problems)
    assert (problems.num_seen, problems.num_invalid) == (201, 1)


def test_a_reused_cache_reports_its_problems_again_and_checks_the_limit(tmp_path):
    path = write(tmp_path, "a.txt", b"good\n\xff\n")
    first, again = Problems(max_invalid_fraction=1), Problems(max_invalid_fraction=1)
    token_cache(DataFiles(path), ByteEncode(), tmp_path / "caches", problems=first)
    token_cache(DataFiles(path), ByteEncode(), tmp_path / "caches", problems=again)
    assert again.summary() == first.summary()
    assert again.num_invalid == 1
    with pytest.raises(TooManyProblems, match="1 of 2"):
        token_cache(DataFiles(path), ByteEncode(), tmp_path / "caches", problems=Problems())


def test_nothing_to_cache_is_an_error(tmp_path):
    with pytest.raises(QkvError, match="no record can be used for training"):
        TokenCache.build([], ByteEncode(), tmp_path / "cache")


# ---------------------------------------------------------------- reuse


class Counting(ByteEncode):
    calls = 0

    def __call__(self, records):
        Counting.calls += 1
        return super().__call__(records)


@pytest.fixture
def encodings(monkeypatch):
    """How often something was encoded since the last look."""
    monkeypatch.setattr(Counting, "calls", 0)

    def look() -> int:
        calls, Counting.calls = Counting.calls, 0
        return calls

    return look


def age(path: Path) -> Path:
    """Make a file look a minute old, so that its hash may be remembered."""
    os.utime(path, (time.time() - 60, time.time() - 60))
    return path


def test_a_cache_is_reused_until_content_reading_or_encode_change(tmp_path, encodings):
    path = age(write(tmp_path, "a.txt", "one\ntwo\n"))
    caches = tmp_path / "caches"

    def ids(encode=None, **options):
        cache = token_cache(DataFiles(path, options=ReadOptions(**options)), encode or Counting(), caches)
        return [bytes(cache[n]["ids"].tolist()).decode() for n in range(len(cache))]

    assert (ids(), encodings()) == (["one", "two"], 1)
    assert (ids(), encodings()) == (["one", "two"], 0)
    assert (ids(unit="document"), encodings()) == (["one\ntwo"], 1)
    assert (ids(limits=ReadLimits(max_line_bytes=2048)), encodings()) == (["one", "two"], 1)
    assert (ids(Counting(shift=1)), encodings()) == (["pof", "uxp"], 1)
    write(tmp_path, "a.txt", "one\ntwo\nthree\n")
    assert (ids(), encodings()) == (["one", "two", "three"], 1)
    age(write(tmp_path, "a.txt", "one\ntwo\n"))
    assert (ids(), encodings()) == (["one", "two"], 0), "the old content has its old cache"


def test_the_same_content_elsewhere_is_the_same_cache(tmp_path, encodings):
    for name in ("a.txt", "b.txt"):
        token_cache(DataFiles(write(tmp_path, name, "one\n")), Counting(), tmp_path / "caches")
    assert encodings() == 1


def test_both_sides_of_a_split_have_their_own_cache(tmp_path):
    path = write(tmp_path, "a.txt", "".join(f"text {n}\n" for n in range(100)))
    sides = [
        token_cache(DataFiles(path), ByteEncode(), tmp_path / "caches", split=ValidationSplit(0.2), split_name=side)
        for side in ("train", "validation")
    ]
    assert len(sides[0]) + len(sides[1]) == 100
    assert sides[0].fingerprint != sides[1].fingerprint


def test_a_split_by_tail_reports_bad_lines_once(tmp_path):
    path = write(tmp_path, "a.txt", b"one\n\xff\ntwo\n")
    problems = Problems(max_invalid_fraction=1)
    token_cache(
        DataFiles(path),
        ByteEncode(),
        tmp_path / "caches",
        split=ValidationSplit(0.5, split_by="tail"),
        problems=problems,
    )
    assert (problems.num_seen, problems.num_invalid) == (3, 1)


def test_a_file_that_changes_while_it_is_read_leaves_no_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_writer, "BATCH_RECORDS", 1)  # so that the first is encoded before the last is read
    path = age(write(tmp_path, "a.txt", "one\ntwo\nthree\nfour\n"))

    class Meddling(ByteEncode):
        def __call__(self, records):
            write(tmp_path, "a.txt", "other\n")
            return super().__call__(records)

    with pytest.raises(QkvError, match="changed while it was read"):
        token_cache(DataFiles(path), Meddling(), tmp_path / "caches")
    assert not [p for p in (tmp_path / "caches").iterdir() if p.is_dir()]


def test_remembered_hashes_are_trusted_only_while_size_and_time_stay(tmp_path):
    path = age(write(tmp_path, "a.txt", "one"))
    memory = tmp_path / "contents.json"
    first = FileHashes(memory).get(path)
    stamp = path.stat().st_mtime_ns
    write(tmp_path, "a.txt", "two")
    assert FileHashes(memory).get(path) != first, "another time of change"
    os.utime(path, ns=(stamp, stamp))
    assert FileHashes(memory).get(path) == first, "the same size and time: trusted, and wrong; that is the bargain"
    assert FileHashes(memory, trust_mtime=False).get(path) != first


def test_a_file_changed_this_moment_is_not_remembered(tmp_path):
    path = write(tmp_path, "a.txt", "one")
    memory = tmp_path / "contents.json"
    FileHashes(memory).get(path)
    assert not memory.exists()


def test_a_memory_that_cannot_be_read_is_forgotten(tmp_path):
    path = age(write(tmp_path, "a.txt", "one"))
    memory = write(tmp_path, "contents.json", "{broken")
    assert FileHashes(memory).get(path) == FileHashes().get(path)
    assert list(json.loads(memory.read_text())) == [str(path.resolve())]


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("name", ["ids.tokens.bin", "ids.offsets.bin", "ids.lengths.bin", "location.lines.bin"])
def test_a_file_cut_short_or_gone_is_seen_at_open_and_rebuilt(tmp_path, name, encodings):
    path = write(tmp_path, "a.txt", "one\ntwo\n")
    cache = token_cache(DataFiles(path), Counting(), tmp_path / "caches")
    whole = (cache.folder / name).read_bytes()
    for damage in (lambda file: file.write_bytes(whole[:-1]), lambda file: file.unlink()):
        damage(cache.folder / name)
        with pytest.raises(DamagedCache, match=name):
            TokenCache.open(cache.folder)
        encodings()
        problems = Problems()
        again = token_cache(DataFiles(path), Counting(), tmp_path / "caches", problems=problems)
        assert encodings() == 1
        assert again[1]["ids"].tolist() == list(b"two")
        assert "damaged token cache" in counts(problems)


def test_a_changed_or_foreign_meta_file_is_refused(tmp_path):
    cache = build(tmp_path, [{"ids": [1, 2]}])
    meta = cache.folder / "meta.json"
    whole = meta.read_text()
    for text, match in [
        (whole.replace('"examples": 1', '"examples": 2'), "the checksum that it contains"),
        (whole[:50], "cannot be read"),
        ("[]", "cannot be read"),
    ]:
        meta.write_text(text)
        with pytest.raises(DamagedCache, match=match):
            TokenCache.open(cache.folder)
    with pytest.raises(DamagedCache, match=r"no meta\.json"):
        TokenCache.open(tmp_path / "nowhere")


def test_a_cache_holds_no_pickle(tmp_path):
    cache = build(tmp_path, [{"ids": [1, 2]}])
    assert {p.suffix for p in cache.folder.iterdir()} == {".bin", ".json"}
    assert TokenCache.__reduce__(cache) == (TokenCache.open, (cache.folder,)), "what travels is a name"


# ---------------------------------------------------------------- other processes


def _sum(cache: TokenCache) -> int:
    return sum(int(cache[n]["ids"].sum()) for n in range(len(cache)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_it_however_they_start(tmp_path, method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} on this system")
    cache = build(tmp_path, [{"ids": list(range(n))} for n in range(100)])
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(_sum, [cache] * 3) == [_sum(cache)] * 3


def test_generated_records_can_be_cached_under_a_name_of_their_own(tmp_path):
    made = []

    def records(problems):
        made.append(1)
        return [Record({"text": "made up"}, FileLocation("generator", 1))]

    for _ in range(2):
        cache = find_or_build(tmp_path, "generator, seed 1", ByteEncode(), records, problems=Problems())
    assert (len(cache), len(made)) == (1, 1)
    find_or_build(tmp_path, "generator, seed 2", ByteEncode(), records, problems=Problems())
    assert len(made) == 2
