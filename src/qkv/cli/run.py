"""`qkv run`: run a model on texts."""

import json as json_format
import sys
from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

from qkv.cli.shared import Int8, Json, StringList, app, check_minimum, print_notes, replace_nonfinite
from qkv.errors import UsageError

if TYPE_CHECKING:
    from qkv.api import Model
    from qkv.cli.input_lines import InputLines


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
    """Run a model on texts: generate text, classify, tag, answer, embed, or fill masks.

    A decoder continues each text; an encoder-decoder produces a target for each source. If no texts are given, the
    command reads lines from stdin and writes one line for each, in order. Output comes in chunks of several batches;
    with --batch-size 1 it comes line by line. On a terminal, a single text is streamed while it is generated. A pair (a
    question and its context, or two texts to classify) is one line with a tab between the two texts.

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
        Prompts, source texts of an encoder-decoder, or texts to classify, tag or embed.
    max_tokens
        Maximum number of new tokens.
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
    draft
        Speculative decoding, one text at a time: the folder of a smaller model with the same tokenizer, or "lookup".
    batch_size
        Number of texts in a batch.
    device
        Device: cpu, cuda or mps.
    int8
        Quantize the linear layers to int8: faster on a CPU, slightly less precise.
    """
    from qkv.api import load
    from qkv.cli.input_lines import InputLines
    from qkv.decode import GenerationOptions
    from qkv.tasks.evaluate import find_task

    check_minimum("batch-size", batch_size, 1)
    options: dict[str, Any] = {"max_tokens": max_tokens, "beam": beam, "temperature": temperature, "top_k": top_k}
    options |= {"top_p": top_p, "seed": seed, "stop": stop}
    GenerationOptions(**{**options, "stop": tuple(stop or ())}).check_values()  # an error before the model is loaded
    if draft is not None and beam > 1:
        raise UsageError(f"--draft with --beam {beam}: speculative decoding has no beam search; leave one of them out")
    loaded = load(model, device=device)
    options["draft"] = draft if draft in (None, "lookup") else load(draft, device=device)
    if int8:
        loaded = loaded.quantize()
    lines = InputLines(texts, batch_size)
    task = find_task(loaded.config)
    if not task.generates:
        for option in given_options(options):
            raise UsageError(f"{option} is for models that generate text, but this one {task.description}; remove it")
        return run_task(loaded, task.accepts_pairs, lines, json)
    unused = given_options({name: options[name] for name in ("top_k", "top_p", "seed")})
    if unused and not temperature:
        raise UsageError(
            f"{' and '.join(unused)}: only used for sampling, which is off at --temperature 0; add --temperature 1"
        )
    notes = RunNotes(loaded, max_tokens)
    streams = beam == 1 and not json and sys.stdout.isatty() and lines.is_interactive
    try:
        for chunk in lines:
            if streams and chunk[0].strip():
                results = loaded.generate(chunk, **options, on_text=lambda _, text: print(text, end="", flush=True))
                print()
            else:
                with lines.show_progress() as progress:
                    results = loaded.generate_lines(chunk, batch_size=batch_size, progress=progress, **options)
                for line, result in zip(chunk, results, strict=True):
                    values = {name: getattr(result, name) for name in ("text", "score", "finish_reason", "ids")}
                    print_line(line, values, " ".join(result.text.splitlines()), json)
                sys.stdout.flush()
            notes.add(chunk, results)
    finally:
        print_notes(model, notes.messages())
    return None


def print_line(line: str, values: dict[str, Any], text: str, json: bool) -> None:
    """Print the result for one input line: its values as JSON, or its text."""
    if json:
        row = replace_nonfinite({"input": line, **values})
        print(json_format.dumps(row, ensure_ascii=False, allow_nan=False))
    else:
        print(text)


class RunNotes:
    """Counts outputs that were cut off and texts with unknown tokens, for notes after the results."""

    def __init__(self, model: "Model", max_tokens: int) -> None:
        self.model, self.max_tokens = model, max_tokens
        self.num_lines = self.num_truncated = self.num_with_unknown = 0
        self.first_with_unknown = ""

    def add(self, lines: list[str], results: Sequence[Any]) -> None:
        """Count the lines of a chunk."""
        self.num_lines += len(lines)
        if self.model.config.family == "seq2seq":  # a decoder-only model usually stops only at max_tokens
            self.num_truncated += sum(result.finish_reason == "length" for result in results)
        tokenizer = self.model.tokenizer
        if tokenizer is None or tokenizer.special_tokens.unk is None:
            return
        unk = tokenizer.special_tokens.unk
        with_unknown = [line for line, ids in zip(lines, tokenizer.encode_batch(lines), strict=True) if unk in ids]
        self.first_with_unknown = self.first_with_unknown or next(iter(with_unknown), "")
        self.num_with_unknown += len(with_unknown)

    def messages(self) -> list[str]:
        """The notes on all lines so far."""
        notes = []
        if self.num_truncated:
            notes.append(
                f"{self.num_truncated} of {self.num_lines} outputs were cut off after {self.max_tokens} tokens; "
                "raise --max-tokens for longer ones"
            )
        if self.num_with_unknown:
            notes.append(
                f"{self.num_with_unknown} of {self.num_lines} texts have characters or words that are not in the "
                f"vocabulary; the first is {self.first_with_unknown[:60]!r}"
            )
        return notes


def given_options(options: dict[str, Any]) -> list[str]:
    """The options that differ from the defaults of `qkv run`, as on the command line."""
    known = signature(run).parameters
    return [f"--{name.replace('_', '-')}" for name, value in options.items() if value != known[name].default]


def run_task(model: "Model", accepts_pairs: bool, lines: "InputLines", json: bool) -> None:
    """Run a model that does not generate text, and print a result for each line; an empty one for an empty line."""
    from qkv.render.task_results import format_result, result_to_dict

    for chunk in lines:
        filled = [line for line in chunk if line.strip()]
        texts = [tuple(line.split("\t")) if accepts_pairs and line.count("\t") == 1 else line for line in filled]
        with lines.show_progress() as progress:
            results = iter(model.run(texts, batch_size=lines.batch_size, progress=progress) if texts else [])
        for line in chunk:
            result = next(results) if line.strip() else None
            print_line(line, result_to_dict(result), format_result(result), json)
        sys.stdout.flush()
