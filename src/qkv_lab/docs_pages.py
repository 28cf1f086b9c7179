"""The pages of the lab: a chapter for each part of the notes, written from results.

write_pages(Path("docs/lab"))     # reads docs/lab/results, writes docs/lab/*.md and docs/lab/pictures
"""

import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path

from qkv import QkvError
from qkv.files import save_text, write_atomically
from qkv.render.formatting import format_number
from qkv_lab.chart import draw_claim
from qkv_lab.claim import CHAPTERS, SIZES, Chart, Claim
from qkv_lab.registry import all_claims
from qkv_lab.run import ClaimResult, load_result, results_path
from qkv_lab.table import Table

MAX_COLUMNS = 9
"""A table has at most this number of points on the x axis; more are thinned out."""
INTRODUCTION = """# The lab

Lecture notes make claims about the Transformer: its cost is quadratic, post-norm needs warm-up, beam search beats
greedy decoding. Each claim below is tested by an experiment on the engine that qkv trains with. Most are quoted from
notes; where the notes only touch a subject, the quotation says what the experiment is about. You can run every one:

```sh
qkv lab                      # list the claims
qkv lab score-scaling        # run one: its numbers, its picture, whether it holds
```

The figures are means over seeds, ± half of their 95 % confidence interval (Student's t). A check holds if it holds
for the means and for every seed alone, or for the interval if it names one. A claim holds if its first check holds,
which the tables below list; it holds in part if another check fails. `make lab` runs all claims and writes these pages;
`qkv lab NAME --seed 100 --out runs/fresh` tests a verdict with seeds that nobody has looked at.
[CONTRIBUTING](../../CONTRIBUTING.md) describes how to add a claim, and [common mistakes in lecture
notes](../notes.md) lists what is wrong in them."""


def write_pages(folder: Path) -> list[Path]:
    """Write the index, the chapters and the pictures into a folder, from the results in `folder/results`."""
    results = {claim.name: find_result(folder / "results", claim) for claim in all_claims().values()}
    pages = {"README.md": write_index(results)}
    for number, chapter in enumerate(CHAPTERS, start=1):
        chosen = [result for result in results.values() if result.claim.chapter == chapter]
        pages[chapter_file(number, chapter)] = write_chapter(CHAPTERS[chapter], chosen)
    for result in results.values():
        save_text(folder / "pictures" / f"{result.claim.name}.svg", draw_claim(result.claim, result.table))
    for name, page in pages.items():
        write_atomically(folder / name, page)
    return [folder / name for name in pages]


def find_result(folder: Path, claim: Claim) -> ClaimResult:
    """The results of a claim, of the largest size that was run."""
    for size in reversed(SIZES):
        path = results_path(folder, claim, size)
        if path.exists():
            return load_result(claim, path)
    raise QkvError(f"{folder} has no results of {claim.name}; run it first: qkv lab {claim.name} --out {folder}")


def chapter_file(number: int, chapter: str) -> str:
    """The file name of a chapter."""
    return f"{number}-{chapter}.md"


def write_index(results: dict[str, ClaimResult]) -> str:
    """The first page: all claims with their verdicts."""
    parts = [INTRODUCTION]
    for number, (chapter, title) in enumerate(CHAPTERS.items(), start=1):
        parts += [
            f"## {number}. [{title}]({chapter_file(number, chapter)})",
            "| claim | verdict | expected | measured |\n|---|---|---|---|",
        ]
        for result in results.values():
            if result.claim.chapter == chapter:
                link = f"[{result.claim.title}]({chapter_file(number, chapter)}#{result.claim.name})"
                check = result.checks()[0]
                parts[-1] += f"\n| {link} | {result.verdict()} | {check.statement} | {check.found} |"
    return "\n\n".join(parts) + "\n"


def write_chapter(title: str, results: list[ClaimResult]) -> str:
    """A chapter: its claims, one after another."""
    return "\n\n".join([f"# {title}", "[All chapters](README.md)", *(write_claim(result) for result in results)]) + "\n"


def write_claim(result: ClaimResult) -> str:
    """The section of a claim."""
    claim, table = result.claim, result.table
    quotes = "\n>\n".join(f"> {quote}" for quote in claim.quotes)
    checks = "\n".join(
        f"- {'✓' if check.holds else '✗'} {check.statement}: {check.found}." for check in result.checks()
    )
    minutes = f"{result.seconds / 60:.1f} minutes" if result.seconds >= 60 else f"{max(result.seconds, 1):.0f} seconds"
    seeds = f"{len(result.points)} seeds" if len(result.points) > 1 else "one seed"
    threads = result.made_with["threads"]
    made = f"size `{result.size}`, {seeds}, {minutes} on {threads} CPU thread{'s' if threads > 1 else ''}"
    command = f"qkv lab {claim.name}" + (f" --data {result.data}" if result.data else "")
    parts = [
        f'<a id="{claim.name}"></a>\n\n## {claim.title}',
        quotes,
        wrap(f"**{claim.question}** {claim.method}"),
        f"![{claim.title}](pictures/{claim.name}.svg)",
        *(markdown_table(chart, table) for chart in claim.charts_of(table)),
        f"**The claim {result.verdict()}.**",
        checks,
        wrap(claim.lesson),
        wrap(f"*Limits.* {claim.limits}"),
        f"`{command}` runs it ({made}). The idea in a few lines:",
        f"```python\n{example_code(claim.example)}```",
    ]
    return "\n\n".join(part for part in parts if part)


def markdown_table(chart: Chart, table: Table) -> str:
    """The numbers of a chart."""
    xs = table.xs(chart.measure)
    xs = xs[:: -(-len(xs) // MAX_COLUMNS)]
    head = [chart.measure, *(x if isinstance(x, str) else f"{x:,g}" for x in xs)]
    lines = [head, ["---"] + ["---:"] * len(xs)]
    for series in table.series(chart.measure):
        lines.append([series, *(format_cell(table, chart.measure, series, x) for x in xs)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_cell(table: Table, measure: str, series: str, x: float | str) -> str:
    """A mean with its interval, or nothing."""
    if not table.has(measure, series, x):
        return ""
    mean, half = table.mean(measure, series, x), table.half_interval(measure, series, x)
    return format_value(mean) + (f" ± {half:.2g}" if half > 1e-9 * abs(mean) else "")  # less is rounding


def format_value(value: float) -> str:
    """A number for a table. Whole numbers are counts: they have no decimals.

    >>> format_value(0.21434), format_value(2048.0), format_value(3.4e9)
    ('0.2143', '2,048', '3.4e+09')
    """
    if abs(value) >= 1e7:
        return f"{value:.3g}"
    whole = round(value, 9) if abs(value) >= 1 else value
    return f"{whole:,.0f}" if whole.is_integer() else format_number(value)


def example_code(example: Callable[[], None]) -> str:
    """The body of a function, as code of its own."""
    source = textwrap.dedent(inspect.getsource(example))
    lines = source.splitlines()
    body = lines[next(i for i, line in enumerate(lines) if line.rstrip().endswith(":")) + 1 :]
    code = textwrap.dedent("\n".join(body)).strip()
    if code.startswith('"""'):
        code = code.split('"""', 2)[2].strip()
    return code + "\n"


def wrap(paragraph: str) -> str:
    """A paragraph in lines of at most 140 characters."""
    return textwrap.fill(paragraph, 140, break_long_words=False, break_on_hyphens=False)
