"""Payloads from files to batches: cached, planned without decoding, decoded as a function of seed and example."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from square_files import SquareFiles, colours_to_vectors, describe_colours, file_colours, make_file
from synthetic_data import record, tokenizer

from qkv.data import EncodeText, InMemoryExamples, Problems, TokenCache
from qkv.data.cache.folder import DamagedCache
from qkv.data.cache.writer import FieldStorage
from qkv.data.encode.encoders import EncodeClass, EncodeTexts
from qkv.data.encode.payloads import EncodePayloads
from qkv.data.load.batch import Batch
from qkv.data.load.loader import Loader
from qkv.data.objectives import IGNORE_INDEX, Objective
from qkv.data.objectives.classification import ClassificationObjective
from qkv.data.objectives.payload_lm import PayloadLMObjective
from qkv.data.objectives.seq2seq import Seq2SeqObjective
from qkv.data.stream.random_bits import EpochRng
from qkv.data.stream.sequences import SequenceStream
from qkv.errors import QkvError, UsageError

FILES = [make_file(1 + n % 3, 1 + n % 4, seed=n) for n in range(40)]
RECORDS = [record(image=file, text=describe_colours(file), label=str(n % 3)) for n, file in enumerate(FILES)]


def encoder(name: str, format: SquareFiles) -> EncodePayloads:
    texts = {
        "seq2seq": lambda: EncodeTexts("target", tokenizer(), {"target": "text"}),
        "causal_lm": lambda: EncodeText(tokenizer()),
        "classification": lambda: EncodeClass(tokenizer(), None, label="label", classes=("0", "1", "2")),
    }[name]()
    return EncodePayloads(
        texts, {{"seq2seq": "source", "causal_lm": "image", "classification": "first"}[name]: ("image", format)}
    )


def objective(name: str, examples: object, format: SquareFiles, **options: object) -> Objective:
    if name == "seq2seq":
        options = {"max_length": 160, "max_source_length": 32, "source_payloads": {"source": format}, **options}
        return Seq2SeqObjective(examples, tokenizer(), **options)
    if name == "causal_lm":
        return PayloadLMObjective(examples, tokenizer(), formats={"image": format}, **{"max_length": 160, **options})
    return ClassificationObjective(
        examples, tokenizer(), first_format=format, num_classes=3, **{"max_length": 32, **options}
    )


NAMES = ("seq2seq", "causal_lm", "classification")


def make(name: str, format: SquareFiles | None = None, **options: object) -> Objective:
    format = format or SquareFiles()
    return objective(name, InMemoryExamples.from_records(RECORDS, encoder(name, format)), format, **options)


def payload_of(batch: Batch, name: str):
    inputs = batch.inputs.source if name == "seq2seq" else batch.inputs
    return inputs, inputs.payloads["squares"]


@pytest.mark.parametrize("as_array", [False, True])
def test_a_cache_holds_payloads_as_they_are(as_array: bool, tmp_path: Path) -> None:
    format = SquareFiles(as_array=as_array)
    cache = TokenCache.build(RECORDS, encoder("seq2seq", format), tmp_path / "cache")
    in_memory = InMemoryExamples.from_records(RECORDS, encoder("seq2seq", format))
    stored, offsets = cache.gather("source", np.array([7, 0, 7]))
    assert stored.dtype == (np.float16 if as_array else np.uint8)
    for start, end, file in zip(offsets[:-1], offsets[1:], (FILES[7], FILES[0], FILES[7]), strict=True):
        expected = colours_to_vectors(np.array(file_colours(file))) if as_array else np.frombuffer(file, np.uint8)
        np.testing.assert_array_equal(stored[start:end], expected)
    for number in range(len(FILES)):
        assert cache[number]["source_size"].tolist() == [FILES[number][2], FILES[number][3]]
        np.testing.assert_array_equal(cache[number]["source"], in_memory[number]["source"])
    stored_bytes = (tmp_path / "cache" / "source.tokens.bin").stat().st_size
    assert stored_bytes == sum(len(file_colours(file)) * 6 if as_array else len(file) for file in FILES)


@pytest.mark.parametrize("as_array", [False, True])
def test_a_cache_with_missing_bytes_is_damaged(as_array: bool, tmp_path: Path) -> None:
    TokenCache.build(RECORDS, encoder("seq2seq", SquareFiles(as_array=as_array)), tmp_path / "cache")
    file = tmp_path / "cache" / "source.tokens.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DamagedCache, match=r"source.tokens.bin has [\d,]+ bytes, but should have"):
        TokenCache.open(tmp_path / "cache")


def test_an_encoder_must_keep_to_its_storage(tmp_path: Path) -> None:
    format = SquareFiles()
    format.storage = FieldStorage("float16", (3,))
    with pytest.raises(QkvError, match="'source' has an array of uint8 with rows of shape"):
        TokenCache.build(RECORDS, encoder("seq2seq", format), tmp_path / "cache")


def test_damaged_files_are_counted_by_name(tmp_path: Path) -> None:
    broken = [RECORDS[0].fields["image"][:-1], b"JPEG", FILES[1][:4] + b"\x07" + FILES[1][5:] + b"x", None]
    records = [*RECORDS, *(record(image=file, text="a") for file in broken), record(text="a")]
    problems = Problems(max_invalid_fraction=1)
    cache = TokenCache.build(records, encoder("seq2seq", SquareFiles()), tmp_path / "cache", problems=problems)
    assert len(cache) == len(RECORDS)
    assert {name: one.count for name, one in problems.categories.items()} == {"damaged file": 4, "missing field": 1}


@pytest.mark.parametrize("name", NAMES)
def test_batches_are_planned_without_decoding(name: str) -> None:
    format = SquareFiles()
    stream = SequenceStream(make(name, format), batch_tokens=400, pool_size=20)
    stream.plan_pool(0)
    assert format.num_decoded == 0
    next(iter(Loader(stream)))
    assert format.num_decoded > 0


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("name", NAMES)
def test_every_placeholder_has_its_vector(name: str, layout: str) -> None:
    made = make(name, SquareFiles(mirrors=False))
    seen = set()
    for batch in Loader(SequenceStream(made, batch_tokens=400, pool_size=20, layout=layout), epochs=1):
        inputs, payload = payload_of(batch, name)
        assert (
            len(payload.values) == int(payload.sizes.prod(1).sum()) == len(payload.rows) == int(payload.lengths.sum())
        )
        documents = inputs.document_ids.flatten()[payload.rows].split(payload.lengths.tolist())
        rows = (payload.rows // inputs.ids.shape[1]).split(payload.lengths.tolist())
        vectors = payload.values.split(payload.lengths.tolist())
        for document, row, found in zip(documents, rows, vectors, strict=True):
            assert len(set(document.tolist())) == len(set(row.tolist())) == 1
            number = batch.examples[int(row[0])][int(document[0]) - 1]
            expected = colours_to_vectors(np.array(file_colours(FILES[number])))
            assert found.numpy().tolist() == expected.tolist()
            seen.add(number)
        first = payload.starts
        if name != "causal_lm":  # [CLS] is before the placeholders of each document
            assert (inputs.positions.flatten()[first] == len(made_template(made).prefix)).all()
    assert seen == set(range(len(FILES)))


def made_template(made: Objective):
    return made.source_template if isinstance(made, Seq2SeqObjective) else made.template


def test_a_payload_in_a_causal_sequence_has_one_position() -> None:
    made = make("causal_lm", SquareFiles(mirrors=False))
    built = made.build(np.arange(len(FILES)), EpochRng(0))
    special, end = tokenizer().special_tokens, 0
    for number, length in enumerate(built.lengths.tolist()):
        part = slice(end, end + length)
        end += length
        count = len(file_colours(FILES[number]))
        text = tokenizer().encode(describe_colours(FILES[number]), add_special_tokens=False)
        assert built.ids[part].tolist() == [special.bos, *[special.pad] * count, *text]
        assert built.labels["tokens"][part].tolist() == [*[IGNORE_INDEX] * count, *text, special.eos]
        assert built.positions[part].tolist() == [0, *[1] * count, *range(2, 2 + len(text))]


@pytest.mark.parametrize("name", NAMES)
def test_lengths_are_those_of_what_is_built(name: str) -> None:
    made, rng = make(name), EpochRng(3)
    numbers = np.arange(made.num_examples(rng))
    built = made.build(numbers, rng)
    sides = [built.lengths, *([] if built.source_lengths is None else [built.source_lengths])]
    assert made.lengths(numbers, rng).tolist() == np.stack(sides, axis=1).tolist()


def equal(batches: list[Batch], others: list[Batch]) -> bool:
    pairs = list(zip(batches, others, strict=True))
    tensors = (pair for one, other in pairs for pair in zip(one.tensors, other.tensors, strict=True))
    return all(one.examples == other.examples for one, other in pairs) and all(torch.equal(*pair) for pair in tensors)


@pytest.mark.parametrize("name", NAMES)
def test_augmentation_is_a_function_of_seed_epoch_and_example(name: str) -> None:
    def batches(num_workers: int = 0, seed: int = 1, skipped: int = 0) -> list[Batch]:
        loader = Loader(SequenceStream(make(name), batch_tokens=400, pool_size=20, seed=seed), num_workers=num_workers)
        if skipped:
            first = Loader(SequenceStream(make(name), batch_tokens=400, pool_size=20, seed=seed))
            list(islice(first, skipped))
            loader.load_state_dict(first.state_dict())
        found = list(islice(loader, 12 - skipped))
        loader.close()
        return found

    whole = batches()
    assert equal(whole, batches(num_workers=2))
    assert equal(whole[5:], batches(skipped=5))
    assert not equal(whole, batches(seed=2))
    vectors = {}
    for batch in whole:  # an example that occurs in several epochs is mirrored in some of them
        inputs, payload = payload_of(batch, name)
        documents = inputs.document_ids.flatten()[payload.starts]
        rows = payload.starts // inputs.ids.shape[1]
        for row, document, values in zip(rows, documents, payload.values.split(payload.lengths.tolist()), strict=True):
            vectors.setdefault(batch.examples[int(row)][int(document) - 1], set()).add(str(values.tolist()))
    assert max(map(len, vectors.values())) == 2


@pytest.mark.parametrize("name", NAMES)
def test_a_split_batch_keeps_its_payloads(name: str) -> None:
    batch = next(iter(Loader(SequenceStream(make(name), batch_tokens=900, pool_size=20))))
    inputs, payload = payload_of(batch, name)
    parts = batch.split(3)
    pieces = [payload_of(part, name) for part in parts]
    assert sum(len(piece.rows) for _, piece in pieces) == len(payload.rows)
    width = inputs.ids.shape[1]
    starts = np.cumsum([0, *(part.batch_size for part in parts)])
    whole = torch.zeros(inputs.ids.numel(), 3)
    whole[payload.rows] = payload.values
    for (_, piece), start, end in zip(pieces, starts[:-1], starts[1:], strict=True):
        found = torch.zeros((end - start) * width, 3)
        found[piece.rows] = piece.values
        assert torch.equal(found, whole[start * width : end * width])


@pytest.mark.parametrize("name", NAMES)
def test_payloads_are_left_out_but_never_truncated(name: str) -> None:
    limit = {"seq2seq": {"max_source_length": 8}, "classification": {"max_length": 8}, "causal_lm": {"max_length": 8}}[
        name
    ]
    with pytest.raises(UsageError, match="only texts can be truncated"):
        make(name, too_long="truncate", **limit)
    kept = make(name, too_long="skip", **limit)
    assert 0 < kept.counts.skipped < len(FILES)
    assert (kept.lengths(np.arange(len(FILES)), EpochRng(0))[:, 0] == 0).sum() == kept.counts.skipped


def test_a_front_end_may_make_fewer_vectors_than_it_reads() -> None:
    format = SquareFiles(mirrors=False, merge=2)
    files = [make_file(1 + n % 2, 2 + 2 * (n % 3), seed=n) for n in range(12)]
    records = [record(image=file, text="a", label="0") for file in files]
    examples = InMemoryExamples.from_records(records, encoder("classification", format))
    made = objective("classification", examples, format)
    batch = next(iter(Loader(SequenceStream(made, batch_tokens=400))))
    payload = batch.inputs.payloads["squares"]
    assert payload.lengths.tolist() == (payload.sizes.prod(1) // 2).tolist()
    assert len(payload.values) == int(payload.sizes.prod(1).sum()) == 2 * len(payload.rows)
