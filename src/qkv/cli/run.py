"""`qkv run`: run a model on texts."""

import json as json_format
import sys
from collections.abc import Sequence
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from qkv.cli.run_notes import WHY_LONG_PARTS, WHY_SENTENCES, RunNotes
from qkv.cli.shared import (
    Int4,
    Int8,
    Json,
    StringList,
    app,
    check_minimum,
    fast_imports,
    print_notes,
    quantize_model,
    weight_precision,
)
from qkv.errors import ContextLengthError, UsageError
from qkv.files import replace_nonfinite

if TYPE_CHECKING:
    from qkv.api import Model
    from qkv.cli.input_lines import InputLines
    from qkv.progress import OnProgress
    from qkv.tasks.results import Completion
    from qkv.tasks.task import Task

TASK_OPTIONS: dict[str, tuple[str, ...]] = {
    "text_to_text": ("top", "sentences", "align", "prefix", "too_long"),
    "language": ("top",),
    "fill": ("top", "too_long"),
    "classify": ("top", "threshold", "too_long"),
    "tag": (),
    "answer": ("top", "must_answer"),
    "embed": ("too_long",),
}
"""The options of `qkv run` that are for some tasks only."""


@app.command
def run(
    model: str,
    /,
    *texts: str,
    max_tokens: int = 64,
    beam: int = 1,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
    stop: StringList = None,
    top: int = 0,
    threshold: float | None = None,
    too_long: str = "",
    sentences: bool | None = None,
    align: Annotated[bool, Parameter(negative=())] = False,
    prefix: str = "",
    must_answer: Annotated[bool, Parameter(negative=())] = False,
    draft: str | None = None,
    batch_size: int = 16,
    device: str = "cpu",
    int8: Int8 = False,
    int4: Int4 = False,
    json: Json = False,
) -> None:
    """Run a model on texts: generate text, classify, tag, answer, embed, or fill masks.

    A decoder continues each text; an encoder-decoder produces a target for each source. The result of a single text
    keeps its line breaks; several texts have one line each. If no texts are given, the command reads lines from stdin
    and writes one line for each, in order. Output comes in chunks of several batches; with --batch-size 1 it comes line
    by line. On a terminal, a single text is streamed while it is generated, unless the model reads sentence by
    sentence. A pair (a question and its context, or two texts to classify) is one line with a tab between the two
    texts. A tagger lists the entities below each text of the command line; for lines on stdin, add --json.

    Examples:
        qkv run en-fr "The cat chased the mouse."
        qkv run models/mine "Once upon a time" --temperature 0.8 --seed 1
        qkv run models/translator --beam 5 < source.txt > target.txt
        qkv run models/translator "a dog runs" "two men" --json
        qkv run models/translator --sentences --align "Two men. A dog runs."
        qkv run models/reviews --top 3 --threshold 0.7 --json < reviews.txt
        qkv run models/mine "I am the ki" --top 3

    Parameters
    ----------
    model
        A model folder, a hub id, or a bundled model (see qkv models), with a tokenizer.
    texts
        Prompts, source texts of an encoder-decoder, or texts to classify, tag or embed.
    max_tokens
        Maximum number of new tokens. Sentence by sentence, the default depends on the length of the sentence.
    beam
        Number of beams; 1 for no beam search.
    temperature
        Sampling temperature; 0 for greedy decoding.
    top_k
        Sample from the k most probable tokens; 0 for all.
    top_p
        Sample from the most probable tokens, whose probabilities add up to p (nucleus sampling).
    seed
        Seed for sampling; the same seed gives the same text.
    stop
        A string at which generation stops; may be given several times.
    top
        Number of results: hypotheses of a beam search, classes, answers, words for a mask, or, of a decoder,
        suggestions of at most 8 tokens (--max-tokens) that complete the text; 0 for the default. For lines on stdin,
        add --json.
    threshold
        Probability that a class must have; below it, the text has no class (out of scope).
    too_long
        What happens to a text that is too long to classify or embed: error (the default) or truncate; split into parts,
        to classify it. To fill in masks: window (the default), which reads the text around them, or error.
    sentences
        Encoder-decoders: generate sentence by sentence, for texts of any length. The default for a model that was
        trained on pairs of sentences, such as en-fr.
    align
        Encoder-decoders: list the source word that each generated word depends on most. For lines on stdin, add --json.
    prefix
        Encoder-decoders: the text that the output must begin with.
    must_answer
        Question answering: return the most likely span even if "no answer" is more likely.
    draft
        Speculative decoding, one text at a time: the folder of a smaller model with the same tokenizer, or "lookup".
    batch_size
        Number of texts in a batch.
    device
        Device: cpu, cuda or mps.
    int8
        Quantize the linear layers to int8: faster on a CPU, slightly less precise.
    int4
        Quantize the linear layers to int4, in groups of 32 weights: half the memory of int8, less precise.
    """
    with fast_imports():
        from qkv.api import load
        from qkv.cli.input_lines import InputLines
        from qkv.decode import GenerationOptions
        from qkv.tasks.evaluate import find_task

    check_minimum("batch-size", batch_size, 1)
    check_minimum("top", top, 0)
    precision = weight_precision(int8, int4)
    options: dict[str, Any] = {"max_tokens": max_tokens, "beam": beam, "temperature": temperature, "top_k": top_k}
    options |= {"top_p": top_p, "seed": seed, "stop": stop}
    GenerationOptions(**{**options, "stop": tuple(stop or ())}).check_values()  # an error before the model is loaded
    if draft is not None and beam > 1:
        raise UsageError(f"--draft with --beam {beam}: speculative decoding has no beam search; leave one of them out")
    loaded = load(model, device=device)
    options["draft"] = draft if draft in (None, "lookup") else load(draft, device=device)
    loaded = quantize_model(loaded, model, precision)
    lines = InputLines(texts, batch_size)
    task = find_task(loaded.config)
    of_task: dict[str, Any] = {"top": top, "threshold": threshold, "too_long": too_long, "must_answer": must_answer}
    of_task |= {"sentences": sentences, "align": align, "prefix": prefix}
    chosen = check_task_options(of_task, task)
    if (top > 1 or align) and not texts and not json:
        option = f"--top {top}" if top > 1 else "--align"
        raise UsageError(f"{option} needs --json for lines on stdin: each has one line of output; add --json")
    if task.name == "text_to_text" and too_long:
        if unused := given_options({name: chosen[name] for name in chosen if name not in ("top", "too_long")}):
            raise UsageError(f"--too-long is for summaries, which have no {' and '.join(unused)}; remove one of them")
    elif task.name == "text_to_text" and sentences is None and draft is None and loaded.config.reads_sentences:
        chosen["sentences"] = True
    elif sentences is False:
        del chosen["sentences"]
    if not task.generates:
        for option in given_options(options):
            raise UsageError(f"{option} is for models that generate text, but this one {task.description}; remove it")
        return run_task(loaded, task, chosen, lines, json)
    unused = given_options({name: options[name] for name in ("top_k", "top_p", "seed")})
    if unused and not temperature:
        raise UsageError(
            f"{' and '.join(unused)}: only used for sampling, which is off at --temperature 0; add --temperature 1"
        )
    if chosen:
        if draft is not None:
            raise UsageError(f"--draft does not go with {' and '.join(given_options(chosen))}; leave one of them out")
        given = {name: value for name, value in options.items() if given_options({name: value})}
        if task.name == "language":
            check_complete_options(given, top)
        elif not too_long:
            chosen = {"sentences": False, **chosen}
        why_parts = WHY_LONG_PARTS if too_long else WHY_SENTENCES if sentences is None else ""
        if task.name != "text_to_text":
            why_parts = ""  # its results have no parts
        notes = RunNotes(loaded, given.get("max_tokens", 0), why_parts)
        run_task(loaded, task, {**chosen, **given}, lines, json, notes)
        return print_notes(model, notes.messages())
    notes = RunNotes(loaded, max_tokens)
    try:
        run_generation(loaded, options, lines, json, notes)
    except ContextLengthError as error:
        hint = ", or add --too-long split, which summarises it part by part" if task.name == "text_to_text" else ""
        raise ContextLengthError(f"{error}{hint}") from error
    finally:
        print_notes(model, notes.messages())
    return None


def check_task_options(options: dict[str, Any], task: "Task") -> dict[str, Any]:
    """The given options of the model's task; an error for an option of another task."""
    from qkv.tasks.evaluate import TASKS

    chosen = {name: value for name, value in options.items() if given_options({name: value})}
    for name in chosen:
        if name not in TASK_OPTIONS[task.name]:
            users = " or ".join(TASKS[other].description for other, names in TASK_OPTIONS.items() if name in names)
            (option,) = given_options({name: chosen[name]})
            raise UsageError(f"{option} is for a model that {users}, but this one {task.description}; remove it")
    return chosen


def check_complete_options(options: dict[str, Any], top: int) -> None:
    """Raise an error if `m.complete`, which makes the suggestions of --top, does not have a given option."""
    from qkv.tasks.calls import COMPLETE_OPTIONS

    unused = given_options({name: value for name, value in options.items() if name not in COMPLETE_OPTIONS})
    if unused:
        raise UsageError(
            f"{' and '.join(unused)} with --top {top}: the {top} most likely completions of a text are found without "
            f"sampling; remove --top to generate one text, or remove {' and '.join(unused)}"
        )


def print_result(line: str, result: Any, json: bool, *, whole: bool = False, all: bool = False) -> None:
    """Print the result for one input line, as JSON or as one line; None is the result of an empty line.

    With `whole`, a generated text keeps its line breaks. With `all`, the details follow, such as the other classes with
    their probabilities, or the entities of a text.
    """
    is_vector = hasattr(result, "tolist")
    if json:
        values = {} if result is None else {"vector": result.tolist()} if is_vector else result.to_dict()
        print(json_format.dumps(replace_nonfinite({"input": line, **values}), ensure_ascii=False, allow_nan=False))
    elif is_vector:
        print(" ".join(f"{value:.6g}" for value in result.tolist()))
    elif result is None:
        print()
    elif all:
        print(result)
    elif result.summary():
        print(result.body() if whole else result.summary())
    else:  # on a terminal, "(no answer)"; for a program, a line that is empty
        print(result.body().strip() if sys.stdout.isatty() else "")


def given_options(options: dict[str, Any]) -> list[str]:
    """The options that differ from the defaults of `qkv run`, as on the command line."""
    known = signature(run).parameters
    given = {name: value for name, value in options.items() if value != known[name].default}
    return [f"--{'no-' if value is False else ''}{name.replace('_', '-')}" for name, value in given.items()]


def complete_texts(
    model: "Model", texts: Sequence[str], *, batch_size: int, progress: "OnProgress | None" = None, **options: Any
) -> list["Completion"]:
    """Suggestions for each text. They are made one text at a time, whatever the batch size."""
    found = []
    for done, text in enumerate(texts, 1):
        found.append(model.complete(text, **options))
        if progress is not None:
            progress(done, len(texts))
    return found


def run_generation(model: "Model", options: dict[str, Any], lines: "InputLines", json: bool, notes: RunNotes) -> None:
    """Generate a text for each line, and print it; on a terminal, a single text is printed while it is generated."""
    from qkv.tasks.results import GeneratedText

    streams = options["beam"] == 1 and not json and sys.stdout.isatty() and lines.is_interactive
    for chunk in lines:
        if streams and chunk[0].strip():
            results = model.generate(chunk, **options, on_text=lambda _, text: print(text, end="", flush=True))
            print()
        else:
            with lines.show_progress() as progress:
                results = model.generate_lines(chunk, batch_size=lines.batch_size, progress=progress, **options)
            for line, result in zip(chunk, results, strict=True):
                print_result(line, GeneratedText.from_generation(line, result), json, whole=len(lines.texts) == 1)
            sys.stdout.flush()
        notes.add(chunk, results)


def run_task(
    model: "Model",
    task: "Task",
    options: dict[str, Any],
    lines: "InputLines",
    json: bool,
    notes: RunNotes | None = None,
) -> None:
    """Run a model's task, and print a result for each line; an empty one for an empty line."""
    if options.pop("must_answer", False):
        options["no_answer"] = False
    call: Any = model.run
    if task.name == "language":
        call = partial(complete_texts, model)
    elif task.generates:
        call = model.summarise if "too_long" in options else model.translate
    empty = model.translate("") if task.name == "text_to_text" else None
    # The details of a result take several lines, so lines on stdin have none.
    has_more = options.get("top", 0) > 1 or options.get("align", False) or task.name == "tag"
    has_details = has_more and bool(lines.texts)

    def run_lines(chunk: list[str], progress: "OnProgress | None" = None) -> None:
        filled = [line for line in chunk if line.strip()]
        texts = [tuple(line.split("\t")) if task.accepts_pairs and line.count("\t") == 1 else line for line in filled]
        found = call(texts, batch_size=lines.batch_size, progress=progress, **options) if texts else []
        if notes is not None:
            notes.add(filled, found)
        results = iter(found)
        for line in chunk:
            result = next(results) if line.strip() else empty
            print_result(line, result, json, whole=len(lines.texts) == 1, all=has_details)
        sys.stdout.flush()

    for chunk in lines:
        try:
            with lines.show_progress() as progress:
                run_lines(chunk, progress)
        except UsageError:
            if len(chunk) == 1:
                raise
            for number, line in enumerate(chunk, lines.done + 1):  # the results before the line that fails
                try:
                    run_lines([line])
                except UsageError as error:
                    raise UsageError(f"line {number}: {error}") from error
