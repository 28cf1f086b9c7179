"""`qkv run`: a model on texts."""

import json as json_format
import sys
from typing import TYPE_CHECKING, Any

from qkv.cli.shared import Int8, Json, StringList, app, print_notes, replace_nonfinite
from qkv.errors import UsageError

if TYPE_CHECKING:
    from qkv.cli.input_lines import InputLines

DEFAULTS: dict[str, Any] = {
    **{"max_tokens": 64, "beam": 1, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": None, "stop": None},
    "draft": None,
}


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
    draft: str | None = None,
    batch_size: int = 16,
    device: str = "cpu",
    int8: Int8 = False,
    json: Json = False,
) -> None:
    """Run a model on texts: go on from a prompt, answer a source, or say a label, tags, an answer, a vector.

    Without texts it reads lines from stdin and writes one line for each, in order, some batches at a time (with
    --batch-size 1, each line as it comes). A single text is shown as it is written, where stdout is a terminal. Two texts
    that belong together (a question and its passage, a pair to classify) are one line with a tab between them.

    Examples:
        qkv run models/mine "Once upon a time" --temperature 0.8 --seed 1
        qkv run models/translator --beam 5 < source.txt > target.txt
        qkv run models/translator "a dog runs" "two men" --json
        qkv run models/reviews < reviews.txt

    Parameters
    ----------
    model
        A model folder or hub id, with a tokenizer.
    texts
        Prompts, sources for an encoder and decoder, or texts to look at.
    max_tokens
        How many tokens to write at most.
    beam
        Search with so many hypotheses; 1 takes the likeliest token each time.
    temperature
        Above 0, draw tokens: flatter above 1, sharper below.
    top_k
        Draw among the k likeliest; 0: all.
    top_p
        Draw among the likeliest that together have this probability.
    seed
        The same seed gives the same text.
    stop
        A text that ends the answer; may be given several times.
    draft
        Speculative decoding, for one text at a time: the folder of a smaller model with the same tokenizer, or
        "lookup" to propose what followed the last tokens where they occurred before. The text stays the same.
    batch_size
        How many lines to run at a time.
    device
        Where to run: cpu, cuda, mps.
    int8
        With the linear maps in int8: faster on a CPU, for a little less precision.
    """
    from qkv.api import load
    from qkv.cli.input_lines import InputLines
    from qkv.decode import GenerationOptions
    from qkv.tasks.evaluate import find_task

    if batch_size < 1:
        raise UsageError(f"--batch-size {batch_size}: at least 1")
    options: dict[str, Any] = {"max_tokens": max_tokens, "beam": beam, "temperature": temperature, "top_k": top_k}
    options |= {"top_p": top_p, "seed": seed, "stop": stop}
    GenerationOptions(**{**options, "stop": tuple(stop or ())}).check_values()  # before a large model is read
    if draft is not None and beam > 1:
        raise UsageError(f"--draft with --beam {beam}: speculative decoding has no beam search; leave one of them out")
    loaded = load(model, device=device)
    options["draft"] = draft if draft in (None, "lookup") else load(draft, device=device)
    if int8:
        loaded = loaded.quantize()
    lines = InputLines(texts, batch_size)
    task = find_task(loaded.config)
    if not task.generates:
        check_no_generation_options(task.description, options)
        return run_task(loaded, task.accepts_pairs, lines, json)
    idle = [f"--{name.replace('_', '-')}" for name in ("top_k", "top_p", "seed") if options[name] != DEFAULTS[name]]
    if idle and not temperature:
        raise UsageError(f"{' and '.join(idle)}: tokens are drawn only with a --temperature above 0, as 1")
    notes = RunNotes(loaded, max_tokens)
    shown = beam == 1 and not json and sys.stdout.isatty() and lines.is_interactive
    try:
        for some in lines:
            if shown and some[0].strip():
                results = loaded.generate(some, **options, on_text=lambda _, piece: print(piece, end="", flush=True))
                print()
            else:
                with lines.show_progress() as progress:
                    results = loaded.generate_lines(some, batch_size=batch_size, progress=progress, **options)
                print_results(some, results, json)
            notes.add(some, results)
    finally:
        print_notes(model, notes.messages())
    return None


def print_results(lines: list[str], results: Any, json: bool) -> None:
    for line, result in zip(lines, results, strict=True):
        if json:
            row = {
                "input": line,
                "text": result.text,
                "score": result.score,
                "finish_reason": result.finish_reason,
                "ids": result.ids,
            }
            print(json_format.dumps(replace_nonfinite(row), ensure_ascii=False, allow_nan=False))
        else:
            print(" ".join(result.text.splitlines()))  # one line for each line
    sys.stdout.flush()


class RunNotes:
    """What a reader of the results may not see in them: answers that were cut, texts that could not be read whole."""

    def __init__(self, model: Any, max_tokens: int) -> None:
        self.model, self.max_tokens = model, max_tokens
        self.num_lines = self.num_truncated = self.num_with_unknown = 0
        self.first_with_unknown = ""

    def add(self, lines: list[str], results: Any) -> None:
        self.num_lines += len(lines)
        if self.model.config.family == "seq2seq":  # a decoder alone goes on as long as it may
            self.num_truncated += sum(result.finish_reason == "length" for result in results)
        unknown = self.model.tokenizer.special_tokens.unk
        read = [] if unknown is None else self.model.tokenizer.encode_batch(lines)
        blind = [line for line, ids in zip(lines, read, strict=False) if unknown in ids]
        self.first_with_unknown = self.first_with_unknown or next(iter(blind), "")
        self.num_with_unknown += len(blind)

    def messages(self) -> list[str]:
        notes = []
        if self.num_truncated:
            more = f"were cut after {self.max_tokens} tokens; --max-tokens gives them more"
            notes.append(f"{self.num_truncated} of {self.num_lines} answers {more}")
        if self.num_with_unknown:
            notes.append(
                f"{self.num_with_unknown} of {self.num_lines} texts hold what this model never saw, as {self.first_with_unknown[:60]!r}"
            )
        return notes


def check_no_generation_options(does: str, options: dict[str, Any]) -> None:
    """Raise where something is asked of a model that only means something to one that writes."""
    for name, value in options.items():
        if value != DEFAULTS[name]:
            told = name.replace("_", "-")
            raise UsageError(f"--{told} is for models that write; this one {does}")


def run_task(model: Any, pairs: bool, lines: "InputLines", json: bool) -> None:
    """Run a model that does not write, and print what it says of each line; nothing of an empty one."""
    from qkv.render.task_results import format_result, result_to_dict

    for some in lines:
        filled = [line for line in some if line.strip()]
        texts = [tuple(line.split("\t")) if pairs and line.count("\t") == 1 else line for line in filled]
        with lines.show_progress() as progress:
            results = iter(model.run(texts, batch_size=lines.batch_size, progress=progress) if texts else [])
        for line in some:
            result = next(results) if line.strip() else None
            if json:
                row = replace_nonfinite({"input": line, **result_to_dict(result)})
                print(json_format.dumps(row, ensure_ascii=False, allow_nan=False))
            else:
                print(format_result(result))
        sys.stdout.flush()
