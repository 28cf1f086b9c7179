"""The recipe that `qkv init TASK FILE…` writes for a user's own files: short, every key with a word on what it does.

Sizes follow from how much data there is; columns are filled in where the files have other names than the objective.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

from qkv.data import DataFiles, Problems
from qkv.data.builtin import DATASETS
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.readers.columns import looks_like_data, nested_names
from qkv.data.readers.find_files import FORMAT_BY_EXTENSION, format_extension
from qkv.data.records import Record
from qkv.errors import UsageError, suggest_name
from qkv.tasks.prepare.columns import field_names, match_columns
from qkv.train.recipe.values import format_key, format_value

RecipeLine = tuple[str, Any, str]  # a key, its value, what it does; a key that starts with # is only shown


@dataclass(frozen=True)
class Starter:
    """A task that a recipe can be started for."""

    description: str
    kind: str  # of the objective
    example_file: str  # what its data is called where no file is given
    max_length: int  # places in a row
    pretrained: str = ""  # a model that is usually gone on from
    max_source_length: int = 0  # 0: in proportion
    too_long: str = ""
    objective_lines: tuple[RecipeLine, ...] = ()  # keys of [objective]


STARTERS: dict[str, Starter] = {
    "translate": Starter("From a text to another: translation, spelling, anything with a source and a target.", "seq2seq",
                      "train.tsv", 256, objective_lines=(("label_smoothing", 0.1, "a little doubt about every token"),)),
    "summarise": Starter("A long text to a short one.", "seq2seq", "train.jsonl", 256, max_source_length=1024, too_long="truncate",
                      objective_lines=(("label_smoothing", 0.1, "a little doubt about every token"),)),
    "language": Starter("A language model: it goes on from a text.", "causal_lm", "book.txt", 512),
    "classify": Starter("The class of a text, or of two.", "classification", "train.csv", 256,
                     pretrained="google-bert/bert-base-uncased"),
    "tag": Starter("A tag for each word: names, parts of speech.", "tagging", "train.conll", 256,
                pretrained="google-bert/bert-base-cased"),
    "answer": Starter("The answer to a question, found in a passage.", "question_answering", "train.json", 384,
                   pretrained="google-bert/bert-base-uncased",
                   objective_lines=(("overlap", 128, "tokens that two windows of a long passage share"),)),
    "embed": Starter("Vectors of texts: what belongs together comes close.", "contrastive", "train.tsv", 256,
                  pretrained="sentence-transformers/all-MiniLM-L6-v2",
                  objective_lines=(("temperature", 0.05, "the lower, the sharper near misses are told apart"),)),
    "pretrain": Starter("An encoder that fills in hidden words, as BERT; classify, tag and others go on from it.",
                     "masked_lm", "corpus.txt", 512,
                     objective_lines=(("mask_prob", 0.15, "of the tokens, how many are hidden"),
                           ("whole_word_masking", False, "true: hide words, not pieces of them"))),
    "spans": Starter("An encoder and decoder that write what was cut out of a text, as T5.", "span_corruption", "corpus.txt", 512,
                  objective_lines=(("mask_prob", 0.15, "of the tokens, how many are cut out"),
                        ("mean_span_length", 3.0, "tokens in a stretch, on average"))),
    "denoise": Starter("An encoder and decoder that write a spoiled text back whole, as BART.", "denoising", "corpus.txt",
                    512,
                    objective_lines=(("mask_prob", 0.3, "of the tokens, how many are taken away"),
                          ("permute_sentences", True, "put sentences in another order, too"))),
}  # fmt: skip


@dataclass(frozen=True)
class StarterSize:
    """What suits so much data."""

    max_bytes: float  # bytes
    vocab_size: int
    width: int
    layers: int
    dropout: float
    batch_tokens: int
    minutes: int
    lr: float
    valid_fraction: float


SIZES = (
    StarterSize(2e6, 2000, 128, 2, 0.2, 4096, 10, 2e-3, 0.1),
    StarterSize(2e8, 8000, 256, 4, 0.1, 16384, 60, 1e-3, 0.05),
    StarterSize(float("inf"), 32_000, 512, 6, 0.1, 65536, 24 * 60, 6e-4, 0.01),
)


INSPECTED_RECORDS, SHORT_TEXT_CHARS = 100, 32
"""So many records show how long texts are; with so few letters each, letters are what a small model learns from."""


def starter_recipe(task: str, files: Sequence[str] | Mapping[str, str] = (), run: str = "") -> str:
    """A commented recipe for a task, fitted to the files (field → file for files that go in step) if they are given.

    >>> print(starter_recipe("translate").splitlines()[0])
    # From a text to another: translation, spelling, anything with a source and a target.
    """
    if task not in STARTERS:
        raise UsageError(f"unknown task {task!r}; {suggest_name(task, STARTERS)}")
    chosen = STARTERS[task]
    seen = inspect_files(chosen.kind, files) if files else FileSummary({"train": chosen.example_file}, 2e7)
    size = next(one for one in SIZES if seen.bytes <= one.max_bytes)
    sections = {
        "": [("run", run or f"runs/{task}", "where the run is kept; it becomes the model's folder")],
        "data": _data_lines(chosen, seen, size),
        "tokenizer": [
            _tokenizer_line(chosen, seen, size),
            ("vocab_size", size.vocab_size, "how many pieces at most"),
            ("#from", "models/mine", "or take another model's, instead of training one"),
        ],
        "model": _model_lines(chosen, size),
        "objective": [("kind", chosen.kind, "what is learnt"), *chosen.objective_lines],
        "train": [
            ("minutes", float(size.minutes), "how long (or steps = …, or epochs = …)"),
            ("batch_tokens", size.batch_tokens, "places in a step; lower it if memory runs out"),
            ("lr", size.lr, "the highest learning rate; try a third or three times as much"),
            ("#optimizer", "muon", "often learns a small model in fewer steps than adamw; try lr = 0.005"),
            ("final", "best", "keep the weights that did best on validation data (or last)"),
        ],
    }
    text = f"# {chosen.description}\n#\n#     qkv train RECIPE --dry-run    what it would do\n#     qkv train RECIPE\n"
    for name, lines in sections.items():
        text += "\n" + (f"[{name}]\n" if name else "") + _format_lines(lines)
    return text


def _format_lines(lines: Sequence[RecipeLine]) -> str:
    """Lines of TOML with their comments side by side."""
    left = [
        f"# {format_key(key[1:])} = {format_value(value)}"
        if key.startswith("#")
        else f"{format_key(key)} = {format_value(value)}"
        for key, value, _ in lines
    ]
    wide = max(len(one) for one in left if len(one) <= 48)
    return "".join(f"{one:<{wide}}  # {comment}\n" for one, (_, _, comment) in zip(left, lines, strict=True))


def _data_lines(task: Starter, seen: "FileSummary", size: StarterSize) -> list[RecipeLine]:
    by_field = isinstance(seen.files["train"], dict)
    told = (
        "field = file; line n of each belongs together" if by_field else "a file, a list of files, a folder or a glob"
    )
    lines: list[RecipeLine] = [("train", seen.files["train"], told)]
    if seen.columns:
        lines.append(("columns", seen.columns, "field = column" + (": please check" if seen.columns_guessed else "")))
    elif not seen.has_files:
        spec = OBJECTIVES[task.kind]
        fields = {name: name for name in spec.required_fields}
        if len(fields) > 1 or not spec.reads_documents:
            lines.append(("#columns", fields, "field = column, where the file has other names"))
    lines += [
        ("#valid", "valid" + _extension(task.example_file), "files to validate on; without them:"),
        ("valid_fraction", size.valid_fraction, "the share that is held out for validation"),
        ("max_length", task.max_length, "places in a row of tokens" + _length_note(task)),
    ]
    if task.max_source_length:
        lines.append(("max_source_length", task.max_source_length, "places in a row of source tokens"))
    if task.too_long:
        lines.append(("too_long", task.too_long, "records longer than a row: truncate, skip or error"))
    return lines


def _length_note(task: Starter) -> str:
    if task.kind != "seq2seq":
        return ""
    return " of the target" + ("; source rows follow in proportion" if not task.max_source_length else "")


def _extension(file: str) -> str:
    return file[file.rindex(".") :]


def _model_lines(task: Starter, size: StarterSize) -> list[RecipeLine]:
    lines: list[RecipeLine] = []
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
    "seq2seq": "transformer-base",
    "causal_lm": "gpt2",
    "masked_lm": "bert-base",
    "span_corruption": "t5-small",
    "denoising": "bart-base",
}


def _tokenizer_line(task: Starter, seen: "FileSummary", size: StarterSize) -> RecipeLine:
    """The tokenizer: pieces of words, but for few and short pairs, whose words hardly come twice."""
    if task.kind == "seq2seq" and size is SIZES[0] and seen.mean_chars <= SHORT_TEXT_CHARS:
        return (
            "kind",
            "char",
            "letters, as these texts are few and short (for longer ones: byte-bpe, unigram, wordpiece)",
        )
    return "kind", "byte-bpe", "pieces of words; no text is unknown to it (others: unigram, wordpiece, char)"


# -------------------------------------------------------------------- the user's files


@dataclass(frozen=True)
class FileSummary:
    """What the user's files say about themselves."""

    files: dict[str, Any]
    bytes: float
    columns: dict[str, str] | None = None
    columns_guessed: bool = False
    has_files: bool = False
    mean_chars: float = float("inf")  # of a text, on average over the first ones


def inspect_files(kind: str, files: Sequence[str] | Mapping[str, str]) -> FileSummary:
    """How large the files are, and which of their columns the objective's fields would be."""
    if isinstance(files, Mapping):
        return inspect_aligned_files(kind, files)
    if len(files) == 1 and files[0] in DATASETS:
        return FileSummary({"train": files[0]}, 2e7, has_files=True)
    formats = {file: FORMAT_BY_EXTENSION.get(format_extension(Path(file))) for file in files if Path(file).is_file()}
    aligned = OBJECTIVES[kind].aligned_fields
    if aligned and len(files) == len(formats) == 2 and set(formats.values()) <= {None, "text"}:
        return inspect_aligned_files(kind, dict(zip(aligned, files, strict=True)))
    if None in formats.values():
        unknown = next(file for file, format in formats.items() if format is None)
        raise UsageError(
            f"the name of {unknown} does not tell its format: give it an ending that does (as .txt, .tsv or .jsonl), "
            "or start a recipe without files and write data.train and data.format into it"
        )
    paths: Any = files[0] if len(files) == 1 else list(files)
    told = DataFiles(paths)
    parts = told.find_groups(Problems(max_invalid_fraction=1))
    size = sum(path.stat().st_size for part in parts for path in part.paths if path.is_file())
    records = told.records(Problems(max_invalid_fraction=1))
    some = [next(records), *islice(records, INSPECTED_RECORDS - 1)]
    names = nested_names(some[0].fields)
    try:
        columns = match_columns(kind, names, told.describe_paths())
        same = all(name == column for name, column in columns.items())
        letters = mean_characters(some, columns.values())
        return FileSummary({"train": paths}, size, None if same else columns, has_files=True, mean_chars=letters)
    except UsageError:
        if parts[0].format in ("tsv", "csv") and any(map(looks_like_data, names)):
            names = [str(place) for place in range(len(names))]  # no header: columns by number
        guessed = guess_columns(kind, names)
        return FileSummary(
            {"train": paths}, size, guessed, columns_guessed=True, has_files=True, mean_chars=mean_characters(some)
        )


def inspect_aligned_files(kind: str, files: Mapping[str, str]) -> FileSummary:
    """The same for files that go in step, each under the field that it holds."""
    known = field_names(kind)
    for name in files:
        if name not in known:
            raise UsageError(f"{name}={files[name]}: {kind} has no field {name!r}; {suggest_name(name, known)}")
    told = DataFiles(dict(files))
    try:
        match_columns(kind, files, told.describe_paths())
    except UsageError:
        missing = [f"{name}=FILE" for name in OBJECTIVES[kind].required_fields if name not in files]
        raise UsageError(f"{kind} needs more than {', '.join(files)}: give {' '.join(missing)}, too") from None
    records = told.records(Problems(max_invalid_fraction=1))
    letters = mean_characters([next(records), *islice(records, INSPECTED_RECORDS - 1)])
    size = sum(
        path.stat().st_size for part in told.find_groups(Problems(max_invalid_fraction=1)) for path in part.paths
    )
    return FileSummary({"train": dict(files)}, size, has_files=True, mean_chars=letters)


def mean_characters(records: Sequence[Record], columns: Collection[str] = ()) -> float:
    """How many letters a text of these records has on average, of all columns or of some."""
    texts = [text for one in records for name, text in one.fields.items() if not columns or name in columns]
    return mean(len(str(text)) for text in texts) if texts else float("inf")


def guess_columns(kind: str, names: Sequence[str]) -> dict[str, str]:
    """Columns in their order for the fields that are needed, for the user to correct.

    >>> guess_columns("seq2seq", ["en", "de"])
    {'source': 'en', 'target': 'de'}
    """
    wanted = OBJECTIVES[kind].required_fields
    left = [name for name in names if name.lower() != "id"]
    if len(left) < len(wanted):
        listed = ", ".join(names)
        raise UsageError(f"the data has the columns {listed}; {kind} needs {len(wanted)}: {', '.join(wanted)}")
    return dict(zip(wanted, left, strict=False))
