"""The recipe that `qkv init TASK FILE…` writes for a user's own files: short, every key with a word on what it does.

Sizes follow from how much data there is; columns are filled in where the files have other names than the objective.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

from qkv.data import Files, Problems
from qkv.data.builtin import DATASETS
from qkv.data.readers.columns import looks_like_data, names_of
from qkv.data.readers.find import EXTENSIONS, extension
from qkv.data.records import Record
from qkv.errors import UsageError, nearest
from qkv.tasks.prepare_data import DOCUMENT_KINDS, IN_STEP
from qkv.tasks.prepare_fields import FIELDS, recognise
from qkv.train.recipe_value import key_of, toml_of

Line = tuple[str, Any, str]  # a key, its value, what it does; a key that starts with # is only shown


@dataclass(frozen=True)
class Task:
    """A task that a recipe can be started for."""

    does: str
    kind: str  # of the objective
    file: str  # what its data is called where no file is given
    length: int  # places in a row
    pretrained: str = ""  # a model that is usually gone on from
    source_length: int = 0  # 0: in proportion
    too_long: str = ""
    more: tuple[Line, ...] = ()  # keys of [objective]


TASKS: dict[str, Task] = {
    "translate": Task("From a text to another: translation, spelling, anything with a source and a target.", "pairs",
                      "train.tsv", 256, more=(("label_smoothing", 0.1, "a little doubt about every token"),)),
    "summarise": Task("A long text to a short one.", "pairs", "train.jsonl", 256, source_length=1024, too_long="cut",
                      more=(("label_smoothing", 0.1, "a little doubt about every token"),)),
    "language": Task("A language model: it goes on from a text.", "next_token", "book.txt", 512),
    "classify": Task("The class of a text, or of two.", "classify", "train.csv", 256,
                     pretrained="google-bert/bert-base-uncased"),
    "tag": Task("A tag for each word: names, parts of speech.", "tags", "train.conll", 256,
                pretrained="google-bert/bert-base-cased"),
    "answer": Task("The answer to a question, found in a passage.", "answers", "train.json", 384,
                   pretrained="google-bert/bert-base-uncased",
                   more=(("overlap", 128, "tokens that two windows of a long passage share"),)),
    "embed": Task("Vectors of texts: what belongs together comes close.", "contrast", "train.tsv", 256,
                  pretrained="sentence-transformers/all-MiniLM-L6-v2",
                  more=(("temperature", 0.05, "the lower, the sharper near misses are told apart"),)),
    "pretrain": Task("An encoder that fills in hidden words, as BERT; classify, tag and others go on from it.",
                     "masked", "corpus.txt", 512,
                     more=(("share", 0.15, "of the tokens, how many are hidden"),
                           ("whole_words", False, "true: hide words, not pieces of them"))),
    "spans": Task("An encoder and decoder that write what was cut out of a text, as T5.", "spans", "corpus.txt", 512,
                  more=(("share", 0.15, "of the tokens, how many are cut out"),
                        ("mean_span", 3.0, "tokens in a stretch, on average"))),
    "denoise": Task("An encoder and decoder that write a spoiled text back whole, as BART.", "denoise", "corpus.txt",
                    512,
                    more=(("share", 0.3, "of the tokens, how many are taken away"),
                          ("permute", True, "put sentences in another order, too"))),
}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """What suits so much data."""

    up_to: float  # bytes
    pieces: int
    width: int
    layers: int
    dropout: float
    batch_tokens: int
    minutes: int
    lr: float
    valid_share: float


SIZES = (
    Size(2e6, 2000, 128, 2, 0.2, 4096, 10, 2e-3, 0.1),
    Size(2e8, 8000, 256, 4, 0.1, 16384, 60, 1e-3, 0.05),
    Size(float("inf"), 32_000, 512, 6, 0.1, 65536, 24 * 60, 6e-4, 0.01),
)


FIRST, SHORT = 100, 32
"""So many records show how long texts are; with so few letters each, letters are what a small model learns from."""


def starter(task: str, files: Sequence[str] | Mapping[str, str] = (), run: str = "") -> str:
    """A commented recipe for a task, fitted to the files (field → file for files that go in step) if they are given.

    >>> print(starter("translate").splitlines()[0])
    # From a text to another: translation, spelling, anything with a source and a target.
    """
    if task not in TASKS:
        raise UsageError(f"unknown task {task!r}; {nearest(task, TASKS)}")
    chosen = TASKS[task]
    seen = look(chosen.kind, files) if files else Seen({"train": chosen.file}, 2e7)
    size = next(one for one in SIZES if seen.bytes <= one.up_to)
    sections = {
        "": [("run", run or f"runs/{task}", "where the run is kept; it becomes the model's folder")],
        "data": _data(chosen, seen, size),
        "tokenizer": [
            _kind(chosen, seen, size),
            ("size", size.pieces, "how many pieces at most"),
            ("#from", "models/mine", "or take another model's, instead of training one"),
        ],
        "model": _model(chosen, size),
        "objective": [("kind", chosen.kind, "what is learnt"), *chosen.more],
        "train": [
            ("minutes", float(size.minutes), "how long (or steps = …, or epochs = …)"),
            ("batch_tokens", size.batch_tokens, "places in a step; lower it if memory runs out"),
            ("lr", size.lr, "the highest learning rate; try a third or three times as much"),
            ("#optimizer", "muon", "often learns a small model in fewer steps than adamw; try lr = 0.005"),
            ("final", "best", "keep the weights that did best on validation data (or last)"),
        ],
    }
    text = f"# {chosen.does}\n#\n#     qkv train RECIPE --dry-run    what it would do\n#     qkv train RECIPE\n"
    for name, lines in sections.items():
        text += "\n" + (f"[{name}]\n" if name else "") + _written(lines)
    return text


def _written(lines: Sequence[Line]) -> str:
    """Lines of TOML with their comments side by side."""
    left = [
        f"# {key_of(key[1:])} = {toml_of(value)}" if key.startswith("#") else f"{key_of(key)} = {toml_of(value)}"
        for key, value, _ in lines
    ]
    wide = max(len(one) for one in left if len(one) <= 48)
    return "".join(f"{one:<{wide}}  # {comment}\n" for one, (_, _, comment) in zip(left, lines, strict=True))


def _data(task: Task, seen: "Seen", size: Size) -> list[Line]:
    by_field = isinstance(seen.files["train"], dict)
    told = (
        "field = file; line n of each belongs together" if by_field else "a file, a list of files, a folder or a glob"
    )
    lines: list[Line] = [("train", seen.files["train"], told)]
    if seen.columns:
        lines.append(("columns", seen.columns, "field = column" + (": please check" if seen.guessed else "")))
    elif not seen.bytes_known:
        fields = {field.name: field.name for field in FIELDS[task.kind] if not field.optional}
        if len(fields) > 1 or task.kind not in DOCUMENT_KINDS:
            fields |= {"label": "label"} if task.kind == "classify" else {}
            lines.append(("#columns", fields, "field = column, where the file has other names"))
    lines += [
        ("#valid", "valid" + _ending(task.file), "files to validate on; without them:"),
        ("valid_share", size.valid_share, "the share that is held out for validation"),
        ("length", task.length, "places in a row of tokens" + _rows(task)),
    ]
    if task.source_length:
        lines.append(("source_length", task.source_length, "places in a row of source tokens"))
    if task.too_long:
        lines.append(("too_long", task.too_long, "records longer than a row: cut, skip or error"))
    return lines


def _rows(task: Task) -> str:
    if task.kind != "pairs":
        return ""
    return " of the target" + ("; source rows follow in proportion" if not task.source_length else "")


def _ending(file: str) -> str:
    return file[file.rindex(".") :]


def _model(task: Task, size: Size) -> list[Line]:
    lines: list[Line] = []
    if task.pretrained:
        lines.append(("#from", task.pretrained, "better: go on from a trained model (lr = 5e-5, no width)"))
    else:
        lines.append(("#preset", PRESETS[task.kind], "a published shape, or by hand:"))
    return [
        *lines,
        ("width", size.width, "numbers in a vector"),
        ("layers", size.layers, "blocks in a stack"),
        ("dropout", size.dropout, "more where there is little data"),
    ]


PRESETS = {
    "pairs": "transformer-base",
    "next_token": "gpt2",
    "masked": "bert-base",
    "spans": "t5-small",
    "denoise": "bart-base",
}


def _kind(task: Task, seen: "Seen", size: Size) -> Line:
    """The tokenizer: pieces of words, but for few and short pairs, whose words hardly come twice."""
    if task.kind == "pairs" and size is SIZES[0] and seen.letters <= SHORT:
        return (
            "kind",
            "char",
            "letters, as these texts are few and short (for longer ones: byte-bpe, unigram, wordpiece)",
        )
    return "kind", "byte-bpe", "pieces of words; no text is unknown to it (others: unigram, wordpiece, char)"


# -------------------------------------------------------------------- the user's files


@dataclass(frozen=True)
class Seen:
    """What the user's files say about themselves."""

    files: dict[str, Any]
    bytes: float
    columns: dict[str, str] | None = None
    guessed: bool = False
    bytes_known: bool = False
    letters: float = float("inf")  # of a text, on average over the first ones


def look(kind: str, files: Sequence[str] | Mapping[str, str]) -> Seen:
    """How large the files are, and which of their columns the objective's fields would be."""
    if isinstance(files, Mapping):
        return look_by_field(kind, files)
    if len(files) == 1 and files[0] in DATASETS:
        return Seen({"train": files[0]}, 2e7, bytes_known=True)
    formats = {file: EXTENSIONS.get(extension(Path(file))) for file in files if Path(file).is_file()}
    if kind in IN_STEP and len(files) == len(formats) == 2 and set(formats.values()) <= {None, "text"}:
        return look_by_field(kind, dict(zip(IN_STEP[kind], files, strict=True)))  # lines of text alone are no pairs
    if None in formats.values():
        unknown = next(file for file, format in formats.items() if format is None)
        raise UsageError(
            f"the name of {unknown} does not tell its format: give it an ending that does (as .txt, .tsv or .jsonl), "
            "or start a recipe without files and write data.train and data.format into it"
        )
    paths: Any = files[0] if len(files) == 1 else list(files)
    told = Files(paths)
    parts = told.parts(Problems(max_bad=1))
    size = sum(path.stat().st_size for part in parts for path in part.paths if path.is_file())
    records = told.records(Problems(max_bad=1))
    some = [next(records), *islice(records, FIRST - 1)]
    names = names_of(some[0].fields)
    try:
        columns = recognise(kind, names, told.told())
        same = all(name == column for name, column in columns.items())
        letters = letters_of(some, columns.values())
        return Seen({"train": paths}, size, None if same else columns, bytes_known=True, letters=letters)
    except UsageError:
        if parts[0].format in ("tsv", "csv") and any(map(looks_like_data, names)):
            names = [str(place) for place in range(len(names))]  # no header: columns by number
        guessed = guess(kind, names)
        return Seen({"train": paths}, size, guessed, guessed=True, bytes_known=True, letters=letters_of(some))


def look_by_field(kind: str, files: Mapping[str, str]) -> Seen:
    """The same for files that go in step, each under the field that it holds."""
    known = [field.name for field in FIELDS[kind]]
    for name in files:
        if name not in known:
            raise UsageError(f"{name}={files[name]}: {kind} has no field {name!r}; {nearest(name, known)}")
    told = Files(dict(files))
    try:
        recognise(kind, files, told.told())
    except UsageError:
        missing = [f"{name}=FILE" for name in needed(kind) if name not in files]
        raise UsageError(f"{kind} needs more than {', '.join(files)}: give {' '.join(missing)}, too") from None
    records = told.records(Problems(max_bad=1))
    letters = letters_of([next(records), *islice(records, FIRST - 1)])
    size = sum(path.stat().st_size for part in told.parts(Problems(max_bad=1)) for path in part.paths)
    return Seen({"train": dict(files)}, size, bytes_known=True, letters=letters)


def letters_of(records: Sequence[Record], columns: Collection[str] = ()) -> float:
    """How many letters a text of these records has on average, of all columns or of some."""
    texts = [text for one in records for name, text in one.fields.items() if not columns or name in columns]
    return mean(len(str(text)) for text in texts) if texts else float("inf")


def guess(kind: str, names: Sequence[str]) -> dict[str, str]:
    """Columns in their order for the fields that are needed, for the user to correct.

    >>> guess("pairs", ["en", "de"])
    {'source': 'en', 'target': 'de'}
    """
    wanted = needed(kind)
    left = [name for name in names if name.lower() != "id"]
    if len(left) < len(wanted):
        listed = ", ".join(names)
        raise UsageError(f"the data has the columns {listed}; {kind} needs {len(wanted)}: {', '.join(wanted)}")
    return dict(zip(wanted, left, strict=False))


def needed(kind: str) -> list[str]:
    """The fields that an objective's records cannot do without."""
    always = [field.name for field in FIELDS[kind] if not field.optional]
    return [*always, *{"classify": ["label"], "next_token": ["text"]}.get(kind, [])]
