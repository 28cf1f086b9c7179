"""`qkv look`: show what happens inside a model on one text."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from qkv.cli.shared import Device, Json, StdoutConsole, StringList, check_minimum, fast_imports, print_notes
from qkv.errors import UsageError

if TYPE_CHECKING:
    from qkv.inside.look.page import Look

SUFFIXES = (".html", ".svg", ".json")
Mask = Annotated[bool, Parameter(name="--mask", negative=())]


def look(
    model: str,
    /,
    *texts: str,
    target: StringList = None,
    mask: Mask = False,
    layers: str | None = None,
    heads: str | None = None,
    beam: int = 4,
    max_tokens: int = 32,
    length: int | None = None,
    map_file: Annotated[Path | None, Parameter(name="--map")] = None,
    out: Path | None = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Show what happens inside a model on one text: a heat map in the terminal, and everything else in a web page.

    The page shows tokens, embeddings, all attention heads with each step of their computation in numbers, predictions
    after each layer, neurons, the tree of a beam search, and the alignment of an encoder-decoder. It is one file that
    needs no network. With --mask, the page shows only the attention mask, and why each masked cell is masked; several
    texts are packed into one sequence. With --map, a picture shows the embeddings of all texts of a file as points.
    --json writes a page only if --out names one.

    Examples:
        qkv look runs/dates "Dienstag, 4. Mai 2021"
        qkv look runs/dates "le 14 juillet 1989" --target 1989-07-14 --out july.html
        qkv look models/gpt2 "The cat chased the mouse" --layers 0-3 --heads 5
        qkv look models/bert "Paris is [MASK]." --out heads.svg
        qkv look models/gpt2 "a cat" "two dogs" --mask --length 12
        qkv look runs/embed --map family.csv --out family.svg

    Parameters
    ----------
    model
        A model folder, a hub id, or a bundled model (see qkv models), with a tokenizer.
    texts
        The text; for an encoder-decoder, the source. An encoder reads a pair of texts with a tab between them.
    target
        The target text of an encoder-decoder. Default: the model's own output. With --mask, one --target for each text.
    mask
        Show only the mask: padding, future, other documents, sliding window.
    layers
        Layers to show, such as 0,2 or 4-7. Default: all.
    heads
        Heads to show, such as 0,2 or 4-7. Default: all.
    beam
        Number of beams of the search; 1: no search.
    max_tokens
        Maximum number of tokens that the search generates.
    length
        With --mask, pad the sequence to this number of tokens.
    map_file
        A file of texts, such as FASTA, or a table with labels or scores, which become colours.
    out
        File to write: a page (.html), a picture of the heads (.svg), or the numbers (.json). Default: look.html.
    """
    if map_file is not None:
        draw_map(model, map_file, texts, out or Path("map.svg"), device)
        return
    if not texts:
        raise UsageError('no text to look at; write it after the model, for example: qkv look runs/dates "4 May 2021"')
    if len(texts) > 1 and not mask:
        raise UsageError(
            f"{len(texts)} texts, but a page shows one text; put the text in quotes (only --mask takes several texts)"
        )
    if target is not None and len(target) > 1 and not mask:
        raise UsageError(f"{len(target)} targets for one text; give one --target")
    if not all(text.strip() for text in texts):
        raise UsageError("the text is empty; write at least one character that is not a space")
    if length is not None and not mask:
        raise UsageError("--length pads the mask; add --mask or leave it out")
    if out is not None and out.suffix not in SUFFIXES:
        raise UsageError(f"--out {out}: the name must end in .html (a page), .svg (a picture) or .json (the numbers)")
    if mask and out is not None and out.suffix == ".svg":
        raise UsageError(f"--out {out}: a mask is drawn as a page; choose a name that ends in .html")
    check_minimum("beam", beam, 1)
    check_minimum("max-tokens", max_tokens, 1)
    chosen = {"layers": parse_numbers("layers", layers), "heads": parse_numbers("heads", heads)}

    with fast_imports():
        from qkv.api import load
        from qkv.data.modalities import reads_files
        from qkv.tasks.table import find_task

    loaded = load(model, device=device)
    if mask:
        result = loaded.look_at_mask(list(texts), target or [], length=length, layers=chosen["layers"], name=model)
    else:
        is_pair = loaded.config.family == "encoder" and texts[0].count("\t") == 1
        first, _, second = texts[0].partition("\t")
        text: Any = (first, second) if is_pair else texts[0]
        if reads_files(loaded.config):  # a path, or paths and a question
            text = find_task(loaded.config).read_line(texts[0])
        one_target = target[0] if target else None
        result = loaded.look(text, one_target, **chosen, beam=beam, max_tokens=max_tokens, name=model)
    path = Path("look.html") if out is None and not json else out
    if path is not None:  # before anything is printed, because a reader such as `head` may end the printing
        save_look(result, path)
    print_notes(model, result.document["notes"])
    if json:
        print(result.to_json())
    else:
        print_look(result)
    if path is not None:
        hint = "" if path.suffix == ".json" else "; open it in a browser"
        print_notes(str(path), [f"written, {path.stat().st_size / 1e3:,.0f} kB{hint}"])


def draw_map(model: str, file: Path, texts: tuple[str, ...], out: Path, device: str) -> None:
    """Draw the embeddings of the texts of a file as points (--map)."""
    if texts:
        raise UsageError(f"--map reads its texts from {file}; leave out the texts in the command")
    if out.suffix != ".svg":
        raise UsageError(f"--out {out}: a map is a picture; choose a name that ends in .svg")
    with fast_imports():
        from qkv.api import load
        from qkv.files import save_text
        from qkv.render.vector_map import draw_vector_map
        from qkv.tasks.run.vector_map import map_texts
        from qkv.tasks.text_model import TextModel, require_tokenizer

    loaded, notes = load(model, device=device), list[str]()
    text_model = TextModel(loaded.network, require_tokenizer(loaded.tokenizer), loaded.config)
    found = map_texts(text_model, file, notes)
    save_text(out, draw_vector_map(found, f"{model} on {file.name}"))
    shown = " and ".join(f"{100 * one:.0f} %" for one in found.explained)
    print_notes(str(out), [*notes, f"written; the axes show {shown} of the variance"])


def print_look(look: "Look") -> None:
    """Print the heat map, or the counts of a mask."""
    from qkv.render.heatmap import print_heatmap, print_masks

    console = StdoutConsole(highlight=False)
    if "attention" in look.document["views"]:
        print_heatmap(look.document, console)
    else:
        print_masks(look.document, console)


def save_look(look: "Look", path: Path) -> None:
    """Write a page, a picture or the numbers, by the suffix of the file name."""
    if path.suffix == ".svg":
        from qkv.files import save_text
        from qkv.render.attention_svg import draw_attention

        save_text(path, draw_attention(look.document))
    else:
        look.save(path)


def parse_numbers(option: str, value: str | None) -> tuple[int, ...] | None:
    """The numbers of a list such as "0,2" or "4-7".

    >>> parse_numbers("layers", "0,4-6")
    (0, 4, 5, 6)
    """
    if value is None:
        return None
    numbers: list[int] = []
    for part in value.split(","):
        found = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
        if not found:
            raise UsageError(f"--{option} {value}: {part!r} is not a number; write it like 0,2 or 4-7")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise UsageError(f"--{option} {value}: {part.strip()} counts down; write the smaller number first")
        numbers += range(first, last + 1)
    return tuple(numbers)
