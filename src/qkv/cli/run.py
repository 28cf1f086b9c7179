"""`qkv run`: a model on texts."""

import json as json_format
import sys
from typing import TYPE_CHECKING, Any

from qkv.cli.shared import Int8, Json, Words, app, finite, print_notes
from qkv.errors import UsageError

if TYPE_CHECKING:
    from qkv.cli.lines import Lines

USUAL = {"max_tokens": 64, "beam": 1, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": None, "stop": None}


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
    stop: Words = None,
    batch: int = 16,
    device: str = "cpu",
    int8: Int8 = False,
    json: Json = False,
) -> None:
    """Run a model on texts: go on from a prompt, answer a source, or say a label, tags, an answer, a vector.

    Without texts it reads lines from stdin and writes one line for each, in order, some batches at a time (with
    --batch 1, each line as it comes). A single text is shown as it is written, where stdout is a terminal. Two texts
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
    batch
        How many lines to run at a time.
    device
        Where to run: cpu, cuda, mps.
    int8
        With the linear maps in int8: faster on a CPU, for a little less precision.
    """
    from qkv.api import load
    from qkv.cli.lines import Lines
    from qkv.decode import Options
    from qkv.tasks.evaluate import task_of

    if batch < 1:
        raise UsageError(f"--batch {batch}: at least 1")
    options: dict[str, Any] = {"max_tokens": max_tokens, "beam": beam, "temperature": temperature, "top_k": top_k}
    options |= {"top_p": top_p, "seed": seed, "stop": stop}
    Options(**{**options, "stop": tuple(stop or ())}).check_values()  # before a large model is read
    loaded = load(model, device=device)
    if int8:
        loaded = loaded.quantise()
    lines = Lines(texts, batch)
    task = task_of(loaded.config)
    if not task.generates:
        refuse_writing_options(task.does, options)
        return look(loaded, task.pairs, lines, json)
    idle = [f"--{name.replace('_', '-')}" for name in ("top_k", "top_p", "seed") if options[name] != USUAL[name]]
    if idle and not temperature:
        raise UsageError(f"{' and '.join(idle)}: tokens are drawn only with a --temperature above 0, as 1")
    notes = Notes(loaded, max_tokens)
    shown = beam == 1 and not json and sys.stdout.isatty() and lines.one_by_one
    try:
        for some in lines:
            if shown and some[0].strip():
                results = loaded.generate(some, **options, on_text=lambda _, piece: print(piece, end="", flush=True))
                print()
            else:
                with lines.bar() as progress:
                    results = loaded.generate_lines(some, batch=batch, progress=progress, **options)
                show(some, results, json)
            notes.take(some, results)
    finally:
        print_notes(model, notes.told())
    return None


def show(lines: list[str], results: Any, json: bool) -> None:
    for line, result in zip(lines, results, strict=True):
        if json:
            row = {
                "input": line,
                "text": result.text,
                "score": result.score,
                "reason": result.reason,
                "ids": result.ids,
            }
            print(json_format.dumps(finite(row), ensure_ascii=False, allow_nan=False))
        else:
            print(" ".join(result.text.splitlines()))  # one line for each line
    sys.stdout.flush()


class Notes:
    """What a reader of the results may not see in them: answers that were cut, texts that could not be read whole."""

    def __init__(self, model: Any, max_tokens: int) -> None:
        self.model, self.max_tokens = model, max_tokens
        self.all = self.cut = self.blind = 0
        self.first = ""

    def take(self, lines: list[str], results: Any) -> None:
        self.all += len(lines)
        if self.model.config.family == "seq2seq":  # a decoder alone goes on as long as it may
            self.cut += sum(result.reason == "length" for result in results)
        unknown = self.model.tokenizer.roles.unknown
        read = [] if unknown is None else self.model.tokenizer.encode_batch(lines)
        blind = [line for line, ids in zip(lines, read, strict=False) if unknown in ids]
        self.first = self.first or next(iter(blind), "")
        self.blind += len(blind)

    def told(self) -> list[str]:
        notes = []
        if self.cut:
            more = f"were cut after {self.max_tokens} tokens; --max-tokens gives them more"
            notes.append(f"{self.cut} of {self.all} answers {more}")
        if self.blind:
            notes.append(f"{self.blind} of {self.all} texts hold what this model never saw, as {self.first[:60]!r}")
        return notes


def refuse_writing_options(does: str, options: dict[str, Any]) -> None:
    """Raise where something is asked of a model that only means something to one that writes."""
    for name, value in options.items():
        if value != USUAL[name]:
            told = name.replace("_", "-")
            raise UsageError(f"--{told} is for models that write; this one {does}")


def look(model: Any, pairs: bool, lines: "Lines", json: bool) -> None:
    """Run a model that does not write, and print what it says of each line; nothing of an empty one."""
    from qkv.render.results import as_line, as_values

    for some in lines:
        filled = [line for line in some if line.strip()]
        texts = [tuple(line.split("\t")) if pairs and line.count("\t") == 1 else line for line in filled]
        with lines.bar() as progress:
            results = iter(model.run(texts, batch=lines.batch, progress=progress) if texts else [])
        for line in some:
            result = next(results) if line.strip() else None
            if json:
                row = finite({"input": line, **as_values(result)})
                print(json_format.dumps(row, ensure_ascii=False, allow_nan=False))
            else:
                print(as_line(result))
        sys.stdout.flush()
