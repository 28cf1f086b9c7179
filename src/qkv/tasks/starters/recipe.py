"""Write a recipe for the user's own files, for `qkv init TASK FILE…`: short, with a comment on every key.

Sizes depend on the data, the machine and the training time. The recipe maps columns to fields if their names differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from qkv.data.objectives.table import OBJECTIVES
from qkv.errors import UsageError, suggest_name
from qkv.plugins import find_plugins
from qkv.tasks.metrics.text import ROUGE_NAMES, has_rouge
from qkv.tasks.starters.files import (
    EXAMPLE_BYTES,
    FileSummary,
    add_splits,
    check_classes,
    check_texts,
    count_tokens,
    find_out_of_scope,
    inspect_files,
)
from qkv.tasks.starters.images import choose_image_size, image_data_lines, image_model_lines, image_train_lines
from qkv.tasks.starters.sizes import (
    Machine,
    StarterSize,
    adapt_to_classification,
    adapt_to_language,
    adapt_to_pairs,
    adapt_to_proteins,
    adapt_to_variants,
    adapt_to_words,
    choose_fine_tuning,
    choose_size,
    find_machine,
)
from qkv.tasks.starters.sounds import find_longest, sound_data_lines, sound_model_lines, sound_train_lines
from qkv.tasks.starters.speech import (
    speech_data_lines,
    speech_model_lines,
    speech_tokenizer_lines,
    speech_train_lines,
)
from qkv.tasks.starters.starter import RecipeLine, Starter, find_task_name
from qkv.tasks.table import TASKS, find_starters
from qkv.train.recipe.schema import DataSection
from qkv.train.recipe.toml import format_key, format_value
from qkv.train.run.load import load_model

StarterShape = Literal["modern", "exportable"]
"""The shape of a new model: a current architecture, or a published one that other libraries can load."""

READING_COMMENTS = {
    "format": "the format of the files",
    "encoding": "the encoding of the files",
    "modality": "the texts are residues of proteins (text: ordinary text)",
    "records_key": "where in the JSON document the list of records is",
}
VARIANT_OBJECTIVES = ("classification", "contrastive")
MAX_WORDS = 128  # of a sequence, if each word is one token
SHORT_TEXT_CHARS = 32  # if the mean length of texts is at most this, a small model learns best from characters


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
    notes: list[str] | None = None,
) -> str:
    """A commented recipe for a task, adapted to the files if there are any (field → file for line-aligned files).

    With `base_model`, the recipe fine-tunes this model. Otherwise it trains a new one, whose size depends on the data,
    the machine (this one by default) and the `minutes` of training. With the shape "exportable", it has a published
    architecture, which other libraries can load. `reading` has the format, columns and key that the user chose for all
    files. `notes` gets messages for the user, such as the columns that are not read.

    >>> print(starter_recipe("translate").splitlines()[0])
    # From one text to another: translation, spelling, anything with a source and a target.
    """
    starters = find_starters()
    if task not in starters and task in TASKS:
        task = TASKS[task].starter_name
    task = find_task_name(task, starters)
    if task not in starters:
        raise UsageError(f"unknown task {task!r}; {suggest_name(task, starters)}")
    starter = starters[task]
    if files:
        summary = inspect_files(starter.objective, files, reading or DataSection(), starter.shortens)
        check_classes(starter.objective, summary)
        summary = add_splits(starter.objective, summary, {"valid": valid, "test": test})
        check_texts(starter.objective, summary)
    else:
        summary = FileSummary({"train": starter.example_file}, EXAMPLE_BYTES)
    if notes is not None and summary.left_out:
        notes.append(f"not read: {', '.join(summary.left_out)}")
    if notes is not None and summary.reading.modality != (reading or DataSection()).modality:
        notes.append("the texts are proteins, recognised by their letters (--modality text reads them as text)")
    machine = machine or find_machine()
    family = OBJECTIVES[starter.objective].families[0]
    size = choose_size(summary.bytes, machine, minutes, num_stacks=2 if family == "seq2seq" else 1)
    if starter.is_small:
        size = adapt_to_classification(size, summary.bytes)
    elif family == "decoder":
        size = adapt_to_language(size, summary.bytes)
    elif starter.objective == "seq2seq":
        size = adapt_to_pairs(size)
    is_protein = summary.reading.modality == "protein"
    if starter.hashes_words and (base_model or shape == "exportable" or is_protein):
        starter = replace(starter, hashes_words=False)
    if starter.hashes_words:
        starter, size = replace(starter, max_length=MAX_WORDS), adapt_to_words(size, summary.bytes)
    if is_protein:
        size = adapt_to_proteins(size, summary.bytes, is_encoder=family == "encoder")
        if summary.num_residues and starter.objective in VARIANT_OBJECTIVES and not base_model and shape == "modern":
            size = adapt_to_variants(size, summary.num_residues)
            if notes is not None:
                notes.append(
                    f"nearly all proteins have {summary.num_residues} residues, like variants of one protein, so the "
                    "head also reads which residue is at which position (model.head.one_hot_positions)"
                )
        starter = replace(starter, max_length=512, pretrained="", preset="esm2-8m", exportable_preset="esm2-8m")
    sections = {
        "": [("run", run or f"runs/{task}", "folder of the run, which becomes the model's folder")],
        "data": _data_lines(starter, summary, size),
    }
    if plugins := find_plugins([("task", task), ("objective", starter.objective)]):
        modules = [plugin.module for plugin in plugins]
        sections[""].append(("plugins", modules, "modules that register the task and its objective"))
    if base_model:
        model, train = _fine_tuning_lines(starter, base_model, summary, machine, minutes, notes)
    else:
        sections["tokenizer"] = _tokenizer_lines(starter, summary, size)
        model, train = _model_lines(starter, size, shape), _train_lines(starter, size)
    if starter.draws and not base_model:
        sections["tokenizer"].append(("image_codes", 512, "different patches that pictures are drawn from"))
        pixels, patch = choose_image_size(summary.first)
        shapes = {"size": pixels, "patch": patch}
        model = [model[0], ("image", shapes, "pixels of a picture and of a patch"), *model[1:]]
    elif starter.speaks:
        longest = find_longest(summary.first)
        sections["tokenizer"] = speech_tokenizer_lines()
        if not base_model:
            model, train = speech_model_lines(), speech_train_lines(longest, minutes)
        data = [line for line in sections["data"] if line[0] not in ("max_length", "too_long")]
        sections["data"] = [*data, *speech_data_lines(longest)]
    elif summary.has_sounds or starter.reads_sounds:
        longest = find_longest(summary.first)
        if starter.reads_sounds:
            sections["tokenizer"] = [("kind", "char", "characters (others: byte-bpe, unigram, wordpiece)")]
        else:
            sections.pop("tokenizer", None)
        if not base_model:
            model, train = sound_model_lines(starter), sound_train_lines(longest, minutes)
        data = [line for line in sections["data"] if line[0] not in ("max_length", "too_long")]
        sections["data"] = [*data, *sound_data_lines(longest)]
    elif num_images := summary.num_images or int(starter.is_image_to_text):
        if not starter.is_image_to_text:
            sections.pop("tokenizer", None)
        if not base_model:
            model = image_model_lines(starter, *choose_image_size(summary.first))
            train = image_train_lines(starter, num_images, minutes)
        data = [line for line in sections["data"] if line[0] not in ("max_length", "max_source_length", "too_long")]
        sections["data"] = [*data, *image_data_lines(starter, num_images)]
    sections["model"] = model
    objective = [("kind", starter.objective, "what the model learns"), *starter.objective_lines]
    if files and (label := find_out_of_scope(starter.objective, summary)):
        objective.append(("out_of_scope", label, "label of texts that belong to no class; the training files lack it"))
    sections["objective"] = objective
    sections["train"] = [*train, *_metric_lines(starter)]
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


def _data_lines(starter: Starter, summary: FileSummary, size: StarterSize) -> list[RecipeLine]:
    """The keys of [data]."""
    by_field = isinstance(summary.files["train"], dict)
    comment = "field = file, aligned line by line" if by_field else "a file, a list of files, a folder or a glob"
    lines: list[RecipeLine] = [("train", summary.files["train"], comment)]
    if summary.columns:
        check = ": please check" if summary.columns_guessed else ""
        unread = f"; not read: {', '.join(summary.left_out)}" if summary.left_out else ""
        lines.append(("columns", summary.columns, f"field = column{check}{unread}"))
    elif not summary.is_given:
        spec = OBJECTIVES[starter.objective]
        fields = {name: name for name in spec.required_fields}
        if len(fields) > 1 or not spec.reads_documents:
            lines.append(("#columns", fields, "field = column, if the file has other names"))
    for name in READING_COMMENTS:
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
    lines.append(("max_length", starter.max_length, starter.length_comment))
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
    if size.embedding_window:
        sizes += [
            ("embedding_width", size.embedding_width, "size of the vector of a token, before a projection"),
            ("embedding_window", size.embedding_window, "neighbours on each side that this projection reads, too"),
        ]
    if positions := size.one_hot_positions:
        head = {"pool": "mean", "dense": "none", "one_hot_positions": positions, "dropout": 0.0}
        sizes.append(("head", head, "a linear layer on the mean of all tokens and of one-hot features"))
    elif starter.is_small:
        head = {"pool": "mean", "dense": "none", "dropout": size.dropout}
        sizes.append(("head", head, "a linear layer on the mean of all tokens (BERT: first token, dense layer)"))
    if starter.hashes_words:
        sizes.append(("words", {"dropout": 0.2}, "in training, the fraction of the features of words that are dropped"))
    if starter.pretrained:
        return [("#from", starter.pretrained, "often better: fine-tune a trained model (qkv init … --from)"), *sizes]
    preset: RecipeLine = ("#preset", starter.preset, "a published architecture, or by hand:")
    return [preset, *sizes] if starter.preset else sizes


def _tokenizer_lines(starter: Starter, summary: FileSummary, size: StarterSize) -> list[RecipeLine]:
    """The keys of [tokenizer]: words for classifiers and taggers, characters for proteins and few short pairs, …"""
    if summary.reading.modality == "protein":
        comment = "one token for each residue; a new encoder has the tokens of ESM-2"
        return [("kind", "char", comment), ("#from", "models/mine", "or use the tokenizer of another model")]
    kind: RecipeLine = ("kind", "byte-bpe", "subwords of any text, without unknown tokens (others: unigram, char)")
    if starter.is_small:
        kind = ("kind", "wordpiece", "frequent words are one token each (others: byte-bpe, unigram, char)")
    elif starter.may_have_characters and size.vocab_size <= 2000 and summary.mean_chars <= SHORT_TEXT_CHARS:
        kind = ("kind", "char", "characters, as these texts are few and short (longer: byte-bpe, unigram, wordpiece)")
    if starter.hashes_words:
        return [("kind", "hash", "words are read by their letters and shape, so none is unknown (subwords: byte-bpe)")]
    lines = [kind, ("vocab_size", size.vocab_size, "maximum number of tokens in the vocabulary")]
    if starter.is_small:
        lines.append(("lowercase", True, "upper and lower case are the same"))
    return [*lines, ("#from", "models/mine", "or use the tokenizer of another model instead of training one")]


def _batch_tokens(starter: Starter, suited: int) -> int:
    """The tokens of a step: the number that suits the data and the machine, but at least one sequence."""
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
        _optimizer_line(size),
        ("final", "best", "keep the weights with the best validation result (or last)"),
    ]
    if size.ema_decay:
        lines.insert(-1, ("ema_decay", size.ema_decay, "use a moving average of the weights, over about 100 steps"))
    return lines


def _optimizer_line(size: StarterSize) -> RecipeLine:
    if size.optimizer:
        return ("optimizer", size.optimizer, "needs fewer steps than adamw (for that, try lr = 0.002)")
    return ("#optimizer", "muon", "often needs fewer steps than adamw for a small model; try lr = 0.005")


def _metric_lines(starter: Starter) -> list[RecipeLine]:
    """The key `train.metric`, commented out if the package that computes the metric is not installed."""
    if starter.metric in ROUGE_NAMES and not has_rouge():
        return [("#metric", starter.metric, "better than BLEU for summaries; first pip install 'qkv[rouge]'")]
    return [("metric", starter.metric, "selects the best weights, and is reported")] if starter.metric else []


def _fine_tuning_lines(
    starter: Starter,
    base_model: str,
    summary: FileSummary,
    machine: Machine,
    minutes: float,
    notes: list[str] | None,
) -> tuple[list[RecipeLine], list[RecipeLine]]:
    """The keys of [model] and [train] for fine-tuning."""
    config = load_model(base_model, device="meta").config
    stack = config.stack
    tokens = count_tokens(starter.objective, summary)
    chosen = choose_fine_tuning(stack.width, stack.layers, tokens, machine)
    if notes is not None and summary.is_given:
        notes.append(chosen.describe_budget(minutes, starter.min_epochs))
    model: list[RecipeLine] = [("from", base_model, "the model to fine-tune; its shape and tokenizer are used")]
    if config.has_blocks:  # by default, only attention matrices get adapters
        model.append(("#lora_rank", 8, "train small adapters instead of all weights; try lr = 1e-3"))
    budget: RecipeLine = ("epochs", chosen.epochs, "passes over the data (or minutes = …, or steps = …)")
    if minutes:
        budget = ("minutes", float(minutes), "training time (or epochs = …, or steps = …)")
    head = OBJECTIVES[starter.objective].head
    lr = round(chosen.lr / 3, 6) if head == "classify" else chosen.lr  # one label for a text: little to learn from
    train: list[RecipeLine] = [
        budget,
        ("batch_tokens", _batch_tokens(starter, chosen.batch_tokens), "tokens per step; lower it if memory runs out"),
        ("lr", lr, "peak learning rate; small, so that the model keeps what it has learnt"),
        ("warmup", 0.1, "fraction of the budget in which the learning rate rises"),
        ("final", "best", "keep the weights with the best validation result (or last)"),
    ]
    if head == "span":
        train.insert(3, ("head_lr_factor", 10.0, "the learning rate of the new head is lr times this number"))
    if head in ("classify", "tag", "span"):
        train.insert(-1, ("ema_decay", 0.98, "use a moving average of the weights, over about 50 steps"))
    return model, train
