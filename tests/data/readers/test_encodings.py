"""Files that are not UTF-8: recognised by their characters, never at the cost of UTF-8 with a few broken lines."""

import pytest
from data_fakes import counts, fields_of, write

from qkv.data import Problems
from qkv.data.readers.encodings import recognise_encoding

TEXTS = {
    "cp1252": (
        "Señor, ¿mañana será otro día?",
        "Il était là, déjà près de l’été",
        "Größe, Füße, Übermut",
        "Og så på én gang",
    ),
    "cp1250": ("Příliš žluťoučký kůň úpěl", "Zażółć gęślą jaźń, wszyscy są wolni"),
    "iso8859-2": ("Příliš žluťoučký kůň úpěl", "Zażółć gęślą jaźń, wszyscy są wolni"),
    "cp1254": ("Bugün hava çok güzel, çocuklar bahçede oynuyor, dağ",),
    "cp1251": ("Сегодня хорошая погода, мы идём в парк.",),
    "koi8_r": ("Сегодня хорошая погода, мы идём в парк.",),
    "shift_jis": ("今日はとても良い天気です。公園に行きましょう。",),
    "euc_jp": ("今日はとても良い天気です。公園に行きましょう。",),
    "gb18030": ("今天天气很好，我们去公园散步。孩子们在草地上玩。",),
    "big5": ("今天天氣很好，我們去公園散步。孩子們在草地上玩。",),
    "euc_kr": ("오늘은 날씨가 매우 좋습니다. 우리는 공원에 갔습니다.",),
}


@pytest.mark.parametrize(("encoding", "text"), [(name, text) for name, texts in TEXTS.items() for text in texts])
def test_an_encoding_is_recognised_and_utf8_is_left_alone(encoding, text):
    assert recognise_encoding(f"A line.\n{text}\n".encode(encoding)) == encoding
    assert recognise_encoding(f"A line.\n{text}\n".encode()) == ""


def test_a_file_that_is_not_utf8_is_read_and_the_note_says_as_what(tmp_path):
    path, problems = write(tmp_path, "a.csv", "text,label\naño señor,sí\n".encode("latin-1")), Problems()
    assert fields_of(path, problems=problems) == [{"text": "año señor", "label": "sí"}]
    assert counts(problems) == {"not UTF-8": 1}
    assert "read as cp1252, judged by its characters; to choose another: --encoding" in str(problems.summary())
    assert fields_of(path, encoding="iso8859-15")[0]["text"] == "año señor"


@pytest.mark.parametrize(
    "data",
    [
        "größer als größer, größer\n".encode() + b"bad \xff\xfe\xfc here\n",  # UTF-8 with a broken line
        b"good\nbad \xff here\n",
        b"\x80\x81\x82\x90\x9d\x8f\n" * 9,  # no text at all
        b"PK\x03\x04\xe9\xe8\xe9\xe8",
    ],
)
def test_what_cannot_be_told_stays_utf8(data):
    assert recognise_encoding(data) == ""


def test_a_large_file_takes_little_time():
    """A megabyte of lines, which would take an hour if the time were quadratic in the length."""
    line = "Señor, mañana será otro día; el niño juega en el jardín\n"
    assert recognise_encoding((line * 20_000).encode("latin-1")) == "cp1252"
    assert recognise_encoding((line * 20_000).replace("\n", " ").encode("latin-1")) == "cp1252"
    assert recognise_encoding(b"a" * 2**20 + b"\n" + line.encode("latin-1")) == "cp1252"
