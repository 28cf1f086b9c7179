"""`qkv index` and `qkv search`: search in text files."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from qkv.cli.shared import Device, Json, check_minimum, print_json, print_notes, print_result
from qkv.errors import UsageError, count_nouns

MAX_SKIPPED_SHOWN = 5


def index(
    source: Path,
    /,
    *,
    out: Path,
    model: str | None = None,
    pooling: str | None = None,
    max_tokens: int | None = None,
    dtype: str | None = None,
    batch_size: int = 32,
    device: Device = "cpu",
    rebuild: Annotated[bool, Parameter(negative=())] = False,
    json: Json = False,
) -> None:
    """Index text files for search, or update an index: only new and changed files are embedded.

    Files are split into passages. The index stores a vector and the words of each passage. Hidden files, binary files,
    files that are not UTF-8, and files over 16 MiB are skipped. SVG files in a folder are skipped, too. If a build is
    interrupted, the old index stays unchanged.

    Examples:
        qkv index notes --model models/minilm --out notes.index
        qkv index notes --out notes.index
        qkv index book.txt --model models/bert --pooling mean --out book.index

    Parameters
    ----------
    source
        A folder, or a text file.
    out
        Folder of the index.
    model
        A model folder or hub id. Default when updating an index: the model that built it.
    pooling
        For a model without an embedding head: how to pool its hidden states (mean, first or last).
    max_tokens
        Maximum number of tokens of a passage. Default for a new index: 256.
    dtype
        Dtype of the stored vectors: float32 or float16. Default for a new index: float32.
    batch_size
        Number of passages in a batch.
    rebuild
        Replace an existing index, and embed all files.
    """
    from qkv.render.console import escape_controls
    from qkv.render.progress import stages_bar
    from qkv.search import Index

    totals: dict[str, int] = {}

    def announce(stage: str, done: int, total: int) -> None:
        totals[stage] = total
        if stage == "embedding" and done == 0:
            print_notes(
                str(source),
                [f"{count_nouns(totals['reading'], 'file')} found; embedding {count_nouns(total, 'passage')}"],
            )

    with stages_bar() as progress:
        built = Index.build(
            source,
            model=model,
            out=out,
            pooling=pooling,
            max_tokens=max_tokens,
            dtype=dtype,
            batch_size=batch_size,
            device=device,
            rebuild=rebuild,
            progress=progress or announce,
        )
    report = built.report
    assert report is not None
    print_notes(str(out), report.notes)
    skipped = list(report.skipped.items())
    shown = [escape_controls(f"{name}: skipped: {reason}") for name, reason in skipped[:MAX_SKIPPED_SHOWN]]
    more = len(skipped) - len(shown)
    print_notes(
        str(source), [*shown, *([f"… and {more:,} more files were skipped (--json lists them)"] if more else [])]
    )
    passages, embedded = (count_nouns(n, "passage") for n in (report.passages, report.embedded_passages))
    text = (
        f"{out}: {count_nouns(report.files, 'file')}, {passages}; embedded {embedded} "
        f"of {report.embedded_files:,} new or changed files, removed {count_nouns(report.removed_files, 'file')}"
    )
    print_result(json, text, {"index": str(out), **vars(report)})


def search(
    index: Path,
    /,
    *query: str,
    top: int = 10,
    method: Literal["fused", "dense", "bm25"] = "fused",
    model: str | None = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Search an index, and print the file and line of each match, its score and the text around it.

    Examples:
        qkv search notes.index how to renew a passport
        qkv search notes.index "passport" --method bm25 --top 3 --json

    Parameters
    ----------
    index
        The folder of an index, which `qkv index` has written.
    query
        What to search for: a question, a sentence or words.
    top
        Number of passages.
    method
        "dense" compares meanings by vectors, "bm25" compares words, and "fused" combines both rankings.
    model
        Path of the model that built the index, if it has moved.
    """
    check_minimum("top", top, 1)
    text = " ".join(query)
    if not text.strip():
        raise UsageError("the query is empty; give words to search for, such as: qkv search notes.index passport")

    from qkv.render.console import escape_controls
    from qkv.search import open_index

    result = open_index(index, model=model, device=device).search(text, top=top, method=method)
    if json:
        print_json(result.to_dict())
        return
    for row in result.rows():
        print(escape_controls("\t".join(row), keep="\t"))
    if not result.hits:
        print_notes(str(index), ["nothing found; try other words"])
