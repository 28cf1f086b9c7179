"""Write a recipe for the user's own files, for `qkv init TASK FILE…`: short, with a comment on every key.

Sizes depend on the data, the machine and the training time. The recipe maps columns to fields if their names differ.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import ceil
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from qkv.data import DataFiles, Problems
from qkv.data.builtin import DATASETS
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.readers.columns import get_nested, is_number, nested_names
from qkv.data.readers.decompress import COMPRESSION_BY_EXTENSION
from qkv.data.records import Record
from qkv.errors import UsageError, suggest_name
from qkv.tasks.prepare.columns import check_columns, field_names, match_columns
from qkv.tasks.prepare.sources import open_source, pair_text_files
from qkv.tasks.starter_sizes import (
    Machine,
    StarterSize,
    adapt_to_classification,
    choose_fine_tuning,
    choose_size,
    find_machine,
)
from qkv.train.recipe.schema import DataSection, ObjectiveSection, Recipe
from qkv.train.recipe.values import format_key, format_value
from qkv.train.run.load import load_model

RecipeLine = tuple[str, Any, str]
"""A key, its value and a comment. A key that starts with # is commented out."""

BERT_CHECKPOINT = "google-bert/bert-base-uncased"
SMOOTHING: RecipeLine = ("label_smoothing", 0.1, "probability spread over all other tokens or classes")

StarterShape = Literal["modern", "exportable"]
"""The shape of a new model: a current architecture, or a published one that other libraries can load."""


@dataclass(frozen=True)
class Starter:
    """A task that `qkv init` can write a recipe for."""

    description: str
    objective_kind: str
    example_file: str  # the file name in the recipe if the user gives no file
    max_length: int  # tokens of a sequence
    pretrained: str = ""  # a checkpoint that is usually fine-tuned for the task
    preset: str = ""  # a published architecture that is usually trained from scratch
    max_source_length: int = 0  # tokens of a source sequence; 0: derived from the data
    too_long: str = ""
    exportable_preset: str = ""  # a published architecture that other libraries can load; empty: the default can be
    objective_lines: tuple[RecipeLine, ...] = ()  # keys of [objective]


STARTERS: dict[str, Starter] = {
    "translate": Starter(
        "From one text to another: translation, spelling, anything with a source and a target.",
        "seq2seq",
        "train.tsv",
        256,
        preset="transformer-base",
        exportable_preset="marian",
        objective_lines=(SMOOTHING,),
    ),
    "summarise": Starter(
        "From a long text to a short one.",
        "seq2seq",
        "train.jsonl",
        256,
        preset="transformer-base",
        exportable_preset="marian",
        max_source_length=1024,
        too_long="truncate",
        objective_lines=(SMOOTHING,),
    ),
    "language": Starter("A language model: it continues a text.", "causal_lm", "book.txt", 512, preset="gpt2"),
    "classify": Starter(
        "The class of a text, or of two texts.",
        "classification",
        "train.csv",
        256,
        pretrained=BERT_CHECKPOINT,
        exportable_preset="bert-base",
        objective_lines=(SMOOTHING,),
    ),
    "tag": Starter(
        "A tag for each word: names, parts of speech.",
        "tagging",
        "train.conll",
        256,
        pretrained="google-bert/bert-base-cased",
        exportable_preset="bert-base",
    ),
    "answer": Starter(
        "The answer to a question, found in a passage.",
        "question_answering",
        "train.json",
        384,
        pretrained=BERT_CHECKPOINT,
        exportable_preset="bert-base",
        objective_lines=(("overlap", 128, "tokens that consecutive windows of a long passage share"),),
    ),
    "embed": Starter(
        "Embeddings: texts that belong together come close.",
        "contrastive",
        "train.tsv",
        256,
        pretrained="sentence-transformers/all-MiniLM-L6-v2",
        exportable_preset="bert-base",
        objective_lines=(("temperature", 0.05, "lower values separate similar texts more sharply"),),
    ),
    "pretrain": Starter(
        "An encoder that predicts masked words, as BERT; a start for classify, tag and others.",
        "masked_lm",
        "corpus.txt",
        512,
        preset="bert-base",
        exportable_preset="bert-base",
        objective_lines=(
            ("mask_prob", 0.15, "fraction of tokens to mask"),
            ("whole_word_masking", False, "true: mask whole words, not single subwords"),
        ),
    ),
    "spans": Starter(
        "An encoder-decoder that generates spans removed from a text, as T5.",
        "span_corruption",
        "corpus.txt",
        512,
        preset="t5-small",
        exportable_preset="t5-small",
        objective_lines=(
            ("mask_prob", 0.15, "fraction of tokens to remove"),
            ("mean_span_length", 3.0, "tokens of a removed span, on average"),
        ),
    ),
    "denoise": Starter(
        "An encoder-decoder that restores corrupted texts, as BART.",
        "denoising",
        "corpus.txt",
        512,
        preset="bart-base",
        exportable_preset="bart-base",
        objective_lines=(
            ("mask_prob", 0.3, "fraction of tokens to remove"),
            ("permute_sentences", True, "shuffle the sentences, too"),
        ),
    ),
}


EXAMPLE_BYTES = 2e7  # the assumed size of the data if the user gives no file

READING_COMMENTS = {
    "format": "the format of the files",
    "records_key": "where in the JSON document the list of records is",
}
MAX_SCORES = 100_000  # records whose scores are read to find the largest one
TEXT_COMPRESSION = 3  # text is about this many times as large as its compressed file
INSPECTED_RECORDS = 100  # records from which the mean length of a text is computed
SHORT_TEXT_CHARS = 32  # if texts have at most this mean length, a small model learns best from characters


def starter_recipe(
    task: str,
    files: Sequence[str] | Mapping[str, str] = (),
    run: str = "",
    *,
    valid: Sequence[str] | Mapping[str, str] = (),
    test: Sequence[str] | Mapping[str, str] = (),
    reading: DataSection | None = None,
    base_model: str = "",
    shape: StarterShape = "modern",
    minutes: float = 0.0,
    machine: Machine | None = None,
) -> str:
    """A commented recipe for a task, adapted to the files if there are any (field → file for line-aligned files).

    With `base_model`, the recipe fine-tunes this model. Otherwise it trains a new one, whose size depends on the data,
    the machine (this one by default) and the `minutes` of training. The shape "exportable" is a published one, which
    other libraries can load. `reading` has the format, columns and key that the user chose for all files.

    >>> print(starter_recipe("translate").splitlines()[0])
    # From one text to another: translation, spelling, anything with a source and a target.
    """
    if task not in STARTERS:
        raise UsageError(f"unknown task {task!r}; {suggest_name(task, STARTERS)}")
    starter = STARTERS[task]
    if files:
        summary = inspect_files(starter.objective_kind, files, reading or DataSection())
        summary = add_splits(starter.objective_kind, summary, {"valid": valid, "test": test})
    else:
        summary = FileSummary({"train": starter.example_file}, EXAMPLE_BYTES)
    machine = machine or find_machine()
    size = choose_size(summary.bytes, machine, minutes)
    if starter.objective_kind == "classification":
        size = adapt_to_classification(size, summary.bytes)
    sections = {
        "": [("run", run or f"runs/{task}", "folder of the run, which becomes the model's folder")],
        "data": _data_lines(starter, summary, size),
    }
    if base_model:
        model, train = _fine_tuning_lines(starter, base_model, summary, machine, minutes)
    else:
        sections["tokenizer"] = _tokenizer_lines(starter, summary, size)
        model, train = _model_lines(starter, size, shape), _train_lines(starter, size)
    sections["model"] = model
    sections["objective"] = [("kind", starter.objective_kind, "what the model learns"), *starter.objective_lines]
    sections["train"] = train
    text = f"# {starter.description}\n#\n#     qkv train RECIPE --dry-run    what it would do\n#     qkv train RECIPE\n"
    text += f"#\n# Sizes suit {machine}; for another training time write the recipe again with --minutes.\n"
    for name, lines in sections.items():
        text += "\n" + (f"[{name}]\n" if name else "") + _format_lines(lines)
    return text


def _format_lines(lines: Sequence[RecipeLine]) -> str:
    """Lines of TOML with aligned comments."""
    pairs = []
    for key, value, _ in lines:
        mark = "# " if key.startswith("#") else ""
        pairs.append(f"{mark}{format_key(key.removeprefix('#'))} = {format_value(value)}")
    width = max((len(pair) for pair in pairs if len(pair) <= 48), default=0)
    return "".join(f"{pair:<{width}}  # {comment}\n" for pair, (_, _, comment) in zip(pairs, lines, strict=True))


def _data_lines(starter: Starter, summary: "FileSummary", size: StarterSize) -> list[RecipeLine]:
    """The keys of [data]."""
    by_field = isinstance(summary.files["train"], dict)
    comment = "field = file, aligned line by line" if by_field else "a file, a list of files, a folder or a glob"
    lines: list[RecipeLine] = [("train", summary.files["train"], comment)]
    if summary.columns:
        check = ": please check" if summary.columns_guessed else ""
        lines.append(("columns", summary.columns, f"field = column{check}"))
    elif not summary.is_given:
        spec = OBJECTIVES[starter.objective_kind]
        fields = {name: name for name in spec.required_fields}
        if len(fields) > 1 or not spec.reads_documents:
            lines.append(("#columns", fields, "field = column, if the file has other names"))
    length_comment = "tokens of a sequence"
    if starter.objective_kind == "seq2seq":
        length_comment = "tokens of a target sequence"
        length_comment += "" if starter.max_source_length else "; the source length follows in proportion"
    for name in ("format", "records_key"):
        if value := getattr(summary.reading, name):
            lines.append((name, value, READING_COMMENTS[name]))
    if summary.max_score != 1:
        lines.append(("max_score", summary.max_score, "the largest score; scores are divided by it"))
    if "valid" in summary.files:
        lines.append(("valid", summary.files["valid"], "files to validate on"))
    else:
        lines += [
            ("#valid", "valid" + Path(starter.example_file).suffix, "files to validate on; without them:"),
            ("valid_fraction", size.valid_fraction, "fraction of the data that is held out for validation"),
        ]
    if "test" in summary.files:
        lines.append(("test", summary.files["test"], "files that qkv eval uses"))
    lines.append(("max_length", starter.max_length, length_comment))
    if starter.max_source_length:
        lines.append(("max_source_length", starter.max_source_length, "tokens of a source sequence"))
    if starter.too_long:
        lines.append(("too_long", starter.too_long, "records longer than a sequence: truncate, skip or error"))
    return lines


def _model_lines(starter: Starter, size: StarterSize, shape: StarterShape) -> list[RecipeLine]:
    """The keys of [model] for a new model."""
    sizes: list[RecipeLine] = [
        ("width", size.width, "size of the hidden states"),
        ("layers", size.layers, "blocks in a stack"),
        ("dropout", size.dropout, "more if there is little data"),
    ]
    if shape == "exportable" and starter.exportable_preset:
        return [("preset", starter.exportable_preset, "a published architecture, in this size:"), *sizes]
    if starter.objective_kind == "classification":
        head = {"pool": "mean", "dense": "none", "dropout": size.dropout}
        sizes.append(("head", head, "a linear layer on the mean of all tokens (BERT: first token, dense layer)"))
    if starter.pretrained:
        return [("#from", starter.pretrained, "often better: fine-tune a trained model (qkv init … --from)"), *sizes]
    return [("#preset", starter.preset, "a published architecture, or by hand:"), *sizes]


def _tokenizer_lines(starter: Starter, summary: "FileSummary", size: StarterSize) -> list[RecipeLine]:
    """The keys of [tokenizer]: words for a classifier, characters for few short pairs of texts, else subwords."""
    kind: RecipeLine = ("kind", "byte-bpe", "subwords of any text, without unknown tokens (others: unigram, char)")
    if starter.objective_kind == "classification":
        kind = ("kind", "wordpiece", "frequent words are one token each (others: byte-bpe, unigram, char)")
    elif starter.objective_kind == "seq2seq" and size.vocab_size <= 2000 and summary.mean_chars <= SHORT_TEXT_CHARS:
        kind = ("kind", "char", "characters, as these texts are few and short (longer: byte-bpe, unigram, wordpiece)")
    lines = [kind, ("vocab_size", size.vocab_size, "maximum number of tokens in the vocabulary")]
    if starter.objective_kind == "classification":
        lines.append(("lowercase", True, "upper and lower case are the same"))
    return [*lines, ("#from", "models/mine", "or use the tokenizer of another model instead of training one")]


def _batch_tokens(starter: Starter, suited: int) -> int:
    """The tokens of a step: those that suit the data and the machine, but at least one sequence."""
    longest = starter.max_length + starter.max_source_length
    return max(suited, 1 << (longest - 1).bit_length())


def _train_lines(starter: Starter, size: StarterSize) -> list[RecipeLine]:
    """The keys of [train] for a new model."""
    lines: list[RecipeLine] = [("minutes", float(size.minutes), "training time (or steps = …, or epochs = …)")]
    if size.max_epochs:
        lines.append(("epochs", size.max_epochs, "passes over the data, at most: more would memorise it"))
    lines += [
        ("batch_tokens", _batch_tokens(starter, size.batch_tokens), "tokens per step; lower it if memory runs out"),
        ("lr", size.lr, "peak learning rate; try a third and three times as much"),
        ("#optimizer", "muon", "often needs fewer steps than adamw for a small model; try lr = 0.005"),
        ("final", "best", "keep the weights with the best validation result (or last)"),
    ]
    if size.ema_decay:
        lines.insert(-1, ("ema_decay", size.ema_decay, "use a moving average of the weights, over about 100 steps"))
    return lines


def _fine_tuning_lines(
    starter: Starter, base_model: str, summary: "FileSummary", machine: Machine, minutes: float
) -> tuple[list[RecipeLine], list[RecipeLine]]:
    """The keys of [model] and [train] for fine-tuning."""
    config = load_model(base_model, device="meta").config
    stack = config.stack
    chosen = choose_fine_tuning(stack.width, stack.layers, summary.bytes, machine, minutes)
    model: list[RecipeLine] = [("from", base_model, "the model to fine-tune; its shape and tokenizer are used")]
    if chosen.frozen_layers and config.family != "seq2seq":
        name = "layers" if config.is_recurrent else "blocks"
        blocks = [f"{config.family}.{name}.{number}.*" for number in range(chosen.frozen_layers)]
        comment = "not trained, as the time is short; leave it out if you have more"
        model.append(("freeze", ["embedding.*", *blocks], comment))
    if not config.is_recurrent:  # adapters are for the matrices of attention
        model.append(("#lora_rank", 8, "train small adapters instead of all weights; try lr = 1e-3"))
    budget: RecipeLine = ("epochs", chosen.epochs, "passes over the data (or minutes = …, or steps = …)")
    if minutes:
        budget = ("minutes", float(minutes), "training time (or epochs = …, or steps = …)")
    train: list[RecipeLine] = [
        budget,
        ("batch_tokens", _batch_tokens(starter, chosen.batch_tokens), "tokens per step; lower it if memory runs out"),
        ("lr", chosen.lr, "peak learning rate; small, so that the model keeps what it has learnt"),
        ("warmup", 0.1, "fraction of the budget in which the learning rate rises"),
        ("final", "best", "keep the weights with the best validation result (or last)"),
    ]
    if OBJECTIVES[starter.objective_kind].head in ("classify", "tag", "span"):
        train.insert(3, ("head_lr", 10.0, "the new head learns from scratch, with a rate of lr times this number"))
    return model, train


# -------------------------------------------------------------------- the user's files


@dataclass(frozen=True)
class FileSummary:
    """Facts about the user's data that determine the recipe."""

    files: dict[str, Any]
    bytes: float
    columns: dict[str, str] | None = None
    columns_guessed: bool = False
    is_given: bool = False  # whether the user gave files or a built-in dataset
    reading: DataSection = field(default_factory=DataSection)  # the format and the key that the user chose
    max_score: float = 1.0  # the number that scores are divided by
    mean_chars: float = float("inf")  # mean characters of a text, over the first records


def inspect_files(kind: str, files: Sequence[str] | Mapping[str, str], reading: DataSection) -> FileSummary:
    """Inspect files: their size, and the columns that match the objective's fields."""
    if isinstance(files, Mapping):
        return inspect_aligned_files(kind, files)
    if len(files) == 1 and files[0] in DATASETS:
        return FileSummary({"train": files[0]}, EXAMPLE_BYTES, is_given=True)
    paths: Any = files[0] if len(files) == 1 else list(files)
    if not reading.format:
        paths = pair_text_files(kind, paths)
    if isinstance(paths, Mapping):
        return inspect_aligned_files(kind, paths)
    check_columns(kind, reading.columns, "--columns")
    chosen = dict(reading.columns)
    data = DataFiles.from_options(
        paths, reading.format or None, columns=chosen or None, records_key=reading.records_key or None
    )
    records = first_records(data)
    names = nested_names(records[0].fields)
    found = FileSummary({"train": paths}, total_bytes(data), is_given=True, reading=reading)
    try:
        matched = match_columns(kind, names, data.describe_paths())
        columns = chosen or matched
    except UsageError:
        if chosen:
            raise
        columns = guess_columns(kind, names, records)
        found = replace(found, columns_guessed=True)
    scores = {"score": "score"} if chosen else columns
    max_score = guess_max_score(data, scores["score"]) if kind == "contrastive" and "score" in columns else 1.0
    is_same = all(name == column for name, column in columns.items())
    chars = mean_characters(records, columns if chosen else columns.values())
    return replace(found, columns=None if is_same else columns, mean_chars=chars, max_score=max_score)


def add_splits(kind: str, summary: FileSummary, splits: Mapping[str, Sequence[str] | Mapping[str, str]]) -> FileSummary:
    """The summary with validation and test files, which must be readable in the same way as the training files."""
    section = replace(summary.reading, columns=summary.columns or {})
    recipe = Recipe(data=section, objective=ObjectiveSection(kind=kind))
    files = dict(summary.files)
    for name, given in splits.items():
        if given:
            paths: Any = given if isinstance(given, Mapping) else given[0] if len(given) == 1 else tuple(given)
            open_source(recipe, section, paths, "valid")
            files[name] = list(paths) if isinstance(paths, tuple) else paths
    return replace(summary, files=files)


def inspect_aligned_files(kind: str, files: Mapping[str, str]) -> FileSummary:
    """Inspect line-aligned files, given as field → file."""
    known = field_names(kind)
    for name in files:
        if name not in known:
            raise UsageError(f"{name}={files[name]}: {kind} has no field {name!r}; {suggest_name(name, known)}")
    data = DataFiles(dict(files))
    try:
        match_columns(kind, files, data.describe_paths())
    except UsageError:
        missing = OBJECTIVES[kind].describe_missing(files)
        added = " ".join(f"{name.partition(' or ')[0]}=FILE" for name in missing)
        raise UsageError(f"{kind} also needs a file for {' and '.join(missing)}; add {added} to the command") from None
    chars = mean_characters(first_records(data))
    return FileSummary({"train": dict(files)}, total_bytes(data), is_given=True, mean_chars=chars)


def first_records(data: DataFiles) -> list[Record]:
    """The first records of the data; no record is an error."""
    records = data.records(Problems(max_invalid_fraction=1))
    return [next(records), *islice(records, INSPECTED_RECORDS - 1)]


def total_bytes(data: DataFiles) -> int:
    """The size of the text in all files, in bytes; for compressed files an estimate."""
    groups = data.find_groups(Problems(max_invalid_fraction=1))
    files = [path for group in groups for path in group.paths if path.is_file()]
    return sum(
        path.stat().st_size * (TEXT_COMPRESSION if path.suffix in COMPRESSION_BY_EXTENSION else 1) for path in files
    )


def mean_characters(records: Sequence[Record], columns: Collection[str] = ()) -> float:
    """The mean number of characters of a text, over all columns or the given ones."""
    texts = [text for one in records for name, text in one.fields.items() if not columns or name in columns]
    return mean(len(str(text)) for text in texts) if texts else float("inf")


def guess_columns(kind: str, names: Sequence[str], records: Sequence[Record] = ()) -> dict[str, str]:
    """Assign the columns, in their order, to the required fields; the user can correct the guess.

    For embeddings, the first other column that has a number in each of the `records` is the score. The label of a
    classifier is the column with the fewest different values, and its text is the longest of the other columns.

    >>> guess_columns("seq2seq", ["en", "de"])
    {'source': 'en', 'target': 'de'}
    """
    required = OBJECTIVES[kind].required_fields
    columns = [name for name in names if name.lower() != "id"]
    if len(columns) < len(required):
        raise UsageError(
            f"the data has the columns {', '.join(names)}, but {kind} needs {len(required)} ({', '.join(required)}); "
            "add the missing columns"
        )
    if OBJECTIVES[kind].class_field == "label" and records:
        values = {name: [str(get_nested(record.fields, name)) for record in records] for name in columns}
        label = min(columns, key=lambda name: (len(set(values[name])), sum(map(len, values[name]))))
        text = max((name for name in columns if name != label), key=lambda name: sum(map(len, values[name])))
        return {"text": text, "label": label}
    guessed = dict(zip(required, columns, strict=False))
    for name in columns[len(required) :] if kind == "contrastive" and records else ():
        if all(is_number(str(get_nested(record.fields, name))) for record in records):
            return {**guessed, "score": name}
    return guessed


def guess_max_score(data: DataFiles, column: str) -> float:
    """The number by which scores must be divided to be at most 1: a round one for the first `MAX_SCORES` records."""
    highest = 0.0
    for record in islice(data.records(Problems(max_invalid_fraction=1)), MAX_SCORES):
        value = str(get_nested(record.fields, column))
        highest = max(highest, abs(float(value)) if is_number(value) else 0.0)
    return next((scale for scale in (1.0, 5.0, 10.0, 100.0) if highest <= scale), float(ceil(highest)))
