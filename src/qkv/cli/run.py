"""`qkv run`: run a model on texts. The options of all tasks become flags (`make_flags`)."""

import json as json_format
import sys
from collections.abc import Callable, Sequence
from dataclasses import field, make_dataclass
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

from cyclopts import Parameter

from qkv.api import Model, load
from qkv.cli.input_lines import WHY_LONG_PARTS, WHY_SENTENCES, InputLines, RunNotes
from qkv.cli.shared import (
    Int4,
    Int8,
    Json,
    StringList,
    check_minimum,
    print_notes,
    quantize_model,
    weight_precision,
)
from qkv.data.modalities import reads_files
from qkv.decode import GenerationOptions
from qkv.errors import UsageError
from qkv.files import replace_nonfinite
from qkv.models import Config
from qkv.progress import OnProgress
from qkv.tasks.calls import TaskCall
from qkv.tasks.run.generate import GeneratedText
from qkv.tasks.table import PAYLOAD_TASKS, TASKS, find_task, supported_tasks
from qkv.tasks.task import Task
from qkv.values import FieldInfo, find_fields
from qkv.values.types import is_union, strip_notes

GENERATION_FLAGS = ("max_tokens", "beam", "temperature", "top_k", "top_p", "seed", "stop", "draft")
"""The flags of `run` itself that are for models that generate text."""


def make_flags() -> Any:
    """The options of all tasks as one dataclass of flags. A flag that is not given is None."""
    rows: dict[str, list[tuple[Task, FieldInfo]]] = {}
    for task in (TASKS[name] for name in TASKS if name not in PAYLOAD_TASKS):
        for option in find_fields(task.Options):
            if not option.is_hidden and option.key not in GENERATION_FLAGS:
                rows.setdefault(option.key, []).append((task, option))
    made = []
    for name, users in rows.items():
        texts = dict.fromkeys(option.description for _, option in users)
        shown = [
            f"{'/'.join(task.name for task, option in users if option.description == text)}: {text}" for text in texts
        ]
        kind = flag_type(users[0][1].type)
        negative = () if kind is bool and users[0][1].default is False else None
        made.append(
            (name, Annotated[kind | None, Parameter(help=" ".join(shown), negative=negative)], field(default=None))
        )
    flags = make_dataclass("Flags", made, kw_only=True, frozen=True)
    flags.__module__ = __name__  # cyclopts does not look into the classes of the standard library
    return flags


def flag_type(expected: Any) -> Any:
    """The type of a flag: of a union the first type, and text for named choices, which the task checks."""
    bare, _ = strip_notes(expected)
    if is_union(bare):
        return flag_type(bare.__args__[0])
    if get_origin(bare) is list:
        return list[str]
    return str if get_origin(bare) is Literal else bare


def run(
    model: str,
    /,
    *texts: str,
    max_tokens: int | None = None,
    beam: int = 1,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
    stop: StringList = None,
    draft: str | None = None,
    out: Path | None = None,
    count: int = 1,
    guidance: float | None = None,
    speaker: str | None = None,
    speed: float = 1.0,
    srt: bool = False,
    flags: Annotated[Any, Parameter(name="*")] = None,  # the type is made by `make_command`
    batch_size: int = 16,
    device: str = "cpu",
    int8: Int8 = False,
    int4: Int4 = False,
    json: Json = False,
) -> None:
    """Run a model on texts: generate text, classify, tag, answer, embed, or fill masks.

    A decoder continues each text; an encoder-decoder produces a target for each source. The result of a single text
    keeps its line breaks; the results of several texts have one line each. If no texts are given, the command reads
    lines from stdin and writes one line for each, in order. It writes after every few batches; with --batch-size 1,
    after every line. On a terminal, a single text is streamed while a decoder generates it. A pair (a question and its
    context, or two texts to classify) is one line with a tab between the two texts. For texts on the command line, a
    tagger also lists the entities below each text; for lines on stdin, add --json.

    Examples:
        qkv run en-fr "The cat chased the mouse."
        qkv run models/mine "Once upon a time" --temperature 0.8 --seed 1
        qkv run models/translator --beam 5 < source.txt > target.txt
        qkv run models/translator "a dog runs" "two men" --json
        qkv run models/translator --sentences --align "Two men. A dog runs."
        qkv run models/reviews --top 3 --threshold 0.7 --json < reviews.txt
        qkv run models/mine "I am the ki" --top 3
        qkv run runs/scenes-draw "a red circle" --out picture.png
        qkv run runs/digits-speak "three nine" --out said.wav
        qkv run runs/transcribe meeting.flac --srt > meeting.srt

    Parameters
    ----------
    model
        A model folder, a hub id, or a bundled model (see qkv models), with a tokenizer.
    texts
        Prompts, source texts of an encoder-decoder, or texts to classify, tag or embed.
    max_tokens
        Maximum number of new tokens. By default, a decoder generates 64, and 8 for each suggestion of --top; the
        maximum of an encoder-decoder depends on the length of the source.
    beam
        Number of beams; 1 for no beam search.
    temperature
        Sampling temperature; 0 for greedy decoding.
    top_k
        Sample from the k most probable tokens; 0 for all.
    top_p
        Sample from the smallest set of most probable tokens with a total probability of at least p (nucleus sampling).
    seed
        Seed for sampling; the same seed gives the same text.
    stop
        A string at which generation stops; may be given several times.
    draft
        Speculative decoding, one text at a time: the folder of a smaller model with the same tokenizer, or "lookup".
    out
        A file for what a model draws or speaks: a PNG file, in which several pictures become one sheet; or a .wav,
        .flac, .ogg or .opus file, in which texts are spoken one after the other.
    count
        Number of pictures to draw of each text.
    speaker
        Voice of a model that speaks: the name of a speaker in its training data. Default: the first one.
    speed
        How fast to speak: 2 is twice as fast as the speaker.
    srt
        Print the transcript of a sound as SubRip subtitles.
    guidance
        Above 1, a picture follows its text more closely (classifier-free guidance).
    batch_size
        Number of texts in a batch.
    device
        Device: cpu, cuda or mps.
    int8
        Quantize the linear layers to int8: faster on a CPU, slightly less precise.
    int4
        Quantize the linear layers to int4, in groups of 32 weights: half the memory of int8, less precise.
    """
    check_minimum("batch-size", batch_size, 1)
    precision = weight_precision(int8, int4)
    everything: dict[str, Any] = {
        "max_tokens": max_tokens,
        "beam": beam,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
    }
    everything |= {"seed": seed, "stop": stop, "draft": draft}
    generation: dict[str, Any] = {
        name: value for name, value in everything.items() if value != signature(run).parameters[name].default
    }
    check_generation(generation)
    options = {name: value for name, value in (vars(flags) if flags else {}).items() if value is not None}
    loaded = load(model, device=device)
    if draft not in (None, "lookup"):
        generation["draft"] = load(draft, device=device)
    loaded = quantize_model(loaded, model, precision)
    lines = InputLines(texts, batch_size, names_files=reads_files(loaded.config))
    task = choose_task(loaded.config, options)
    if (options.get("top", 0) > 1 or options.get("align")) and not texts and not json:
        option = f"--top {options['top']}" if options.get("top", 0) > 1 else "--align"
        raise UsageError(f"{option} needs --json for lines on stdin, because each gives one line of output; add --json")
    if generation and not task.generates:
        raise UsageError(
            f"{list_flags(generation)[0]} is for models that generate text, but this one {task.description}; remove it"
        )
    if task.name == "draw":
        from qkv.cli.pictures import run_drawing

        guided = {} if guidance is None else {"guidance": guidance}
        return run_drawing(loaded, lines, {**generation, **options, **guided}, out, count, json)
    if task.name == "speak":
        from qkv.cli.speech import run_speech

        return run_speech(loaded, lines, speaker, speed, out, json)
    if out is not None or count != 1 or guidance is not None or speaker is not None or speed != 1:
        raise UsageError(
            "--out, --count and --guidance are for models that draw, and --out, --speaker and --speed for models that "
            f"speak, but this one {task.description}; remove them"
        )
    if srt and (task.name != "transcribe" or json):
        raise UsageError(f"--srt is for models that transcribe, without --json; this one {task.description}; remove it")
    if task.continues_by_default and options:
        check_completion(generation, options)
    notes = RunNotes(loaded, max_tokens or 0, find_why_parts(task, options))
    try:
        if draft is not None or (task.continues_by_default and not options):
            run_generation(loaded, task, options, generation, lines, json, notes)
        else:
            run_task(loaded, task, options, generation, lines, json, notes, srt)
    finally:
        print_notes(model, notes.messages())


def make_command() -> Callable[..., None]:
    """The command, with a flag for each option of the tasks that are registered now."""
    run.__annotations__["flags"] = Annotated[make_flags() | None, Parameter(name="*")]
    return run


def find_why_parts(task: Task, options: dict[str, Any]) -> str:
    """The reason why texts may be read in several parts; "" if the user chose it, or if the task never splits texts."""
    if GeneratedText not in task.results or "sentences" in options:
        return ""
    return WHY_LONG_PARTS if "too_long" in {one.key for one in find_fields(task.Options)} else WHY_SENTENCES


def check_generation(generation: dict[str, Any]) -> None:
    """Raise an error for generation flags that are wrong or do not go together, before the model is loaded."""
    if generation.get("draft") is not None and generation.get("beam", 1) > 1:
        raise UsageError(
            f"--draft with --beam {generation['beam']}: speculative decoding has no beam search; leave one of them out"
        )
    values = {name: value for name, value in generation.items() if name != "draft"}
    GenerationOptions(**{**values, "stop": tuple(values.get("stop") or ())}).check_values()
    unused = list_flags({name: value for name, value in generation.items() if name in ("top_k", "top_p", "seed")})
    if unused and not generation.get("temperature"):
        raise UsageError(
            f"{' and '.join(unused)}: only used for sampling, which is off at --temperature 0; add --temperature 1"
        )


def check_completion(generation: dict[str, Any], options: dict[str, Any]) -> None:
    """Raise an error if suggestions, which are found by a search, cannot have a flag that is given."""
    if unused := list_flags({name: value for name, value in generation.items() if name != "max_tokens"}):
        flags = " and ".join(list_flags(options))
        raise UsageError(
            f"{' and '.join(unused)} with {flags}: the most likely completions of a text are found without sampling; "
            f"remove {flags} to generate one text, or remove {' and '.join(unused)}"
        )


def choose_task(config: Config, options: dict[str, Any]) -> Task:
    """The model's task that has the given options; an error for an option of another task."""
    if not options:
        return find_task(config)  # without importing the modules of other tasks
    own = supported_tasks(config) or [find_task(config)]
    for task in own:
        if set(options) <= {one.key for one in find_fields(task.Options)}:
            return task
    known = {task.name: {one.key for one in find_fields(task.Options)} for task in TASKS.values()}
    for name in options:
        (flag,) = list_flags({name: options[name]})
        if not any(name in known[task.name] for task in own):
            users = " or ".join(dict.fromkeys(task.description for task in TASKS.values() if name in known[task.name]))
            raise UsageError(f"{flag} is for a model that {users}, but this one {own[0].description}; remove it")
    both = " and ".join(list_flags(options))
    users = ", ".join(
        f"{task.name} has {' and '.join(list_flags(one) or ['none'])}"
        for task in own
        for one in [{name: value for name, value in options.items() if name in known[task.name]}]
    )
    raise UsageError(f"{both} do not go together, because they are for different tasks: {users}; remove some")


def list_flags(options: dict[str, Any]) -> list[str]:
    """Options as on the command line."""
    return [f"--{'no-' if value is False else ''}{name.replace('_', '-')}" for name, value in options.items()]


def print_result(
    line: str, result: Any, json: bool, *, whole: bool = False, all: bool = False, srt: bool = False
) -> None:
    """Print the result for one input line, as JSON, subtitles or one line; None is the result of an empty line.

    With `whole`, a generated text keeps its line breaks. With `all`, the details follow, such as the other classes with
    their probabilities, or the entities of a text.
    """
    if json:
        values = {} if result is None else result.to_dict()
        print(json_format.dumps(replace_nonfinite({"input": line, **values}), ensure_ascii=False, allow_nan=False))
    elif result is None:
        print()
    elif srt:
        print(result.to_srt())
    elif all:
        print(result)
    elif result.summary():
        print(result.body() if whole else result.summary())
    else:  # on a terminal, "(no answer)"; for a program, a line that is empty
        print(result.body().strip() if sys.stdout.isatty() else "")


def run_generation(
    model: Model,
    task: Task,
    options: dict[str, Any],
    generation: dict[str, Any],
    lines: InputLines,
    json: bool,
    notes: RunNotes,
) -> None:
    """Generate a text for each line, and print it; on a terminal, a single text is printed while it is generated."""
    if options:
        raise UsageError(f"--draft cannot be combined with {' and '.join(list_flags(options))}; leave one out")
    streams = generation.get("beam", 1) == 1 and not json and sys.stdout.isatty() and lines.is_interactive
    for chunk in lines:
        if streams and chunk[0].strip():
            results = model.generate(chunk, **generation, on_text=lambda _, text: print(text, end="", flush=True))
            print()
        else:
            with lines.show_progress() as progress:
                results = model.generate_lines(chunk, batch_size=lines.batch_size, progress=progress, **generation)
            for line, result in zip(chunk, results, strict=True):
                print_result(line, GeneratedText.from_generation(line, result), json, whole=len(lines.texts) == 1)
            sys.stdout.flush()
        notes.add(chunk, results)


def run_task(
    model: Model,
    task: Task,
    options: dict[str, Any],
    generation: dict[str, Any],
    lines: InputLines,
    json: bool,
    notes: RunNotes,
    srt: bool = False,
) -> None:
    """Run a model's task, and print a result for each line; an empty one for an empty line."""
    call: TaskCall[Any] = TaskCall(model, task)
    given = {**options, **generation}
    empty = call("") if GeneratedText in task.results and not lines.names_files else None
    # The details of a result take several lines, so the results for lines on stdin have no details.
    has_more = options.get("top", 0) > 1 or options.get("align", False) or task.shows_details
    has_details = has_more and bool(lines.texts)

    def run_lines(chunk: list[str], progress: OnProgress | None = None) -> None:
        filled = [line for line in chunk if line.strip()]
        texts = [task.read_line(line) for line in filled]
        found: Sequence[Any] = call(texts, batch_size=lines.batch_size, progress=progress, **given) if texts else []
        if task.generates:
            notes.add(filled, found)
        results = iter(found)
        for line in chunk:
            result = next(results) if line.strip() else empty
            print_result(line, result, json, whole=len(lines.texts) == 1, all=has_details, srt=srt)
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
