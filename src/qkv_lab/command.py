"""`qkv lab`: claims of lecture notes, measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from qkv import UsageError
from qkv.cli.shared import Json, StdoutConsole, check_minimum, fast_imports, print_json, print_notes

if TYPE_CHECKING:
    from rich.table import Table as Grid

    from qkv_lab.claim import Chart, Claim, Size
    from qkv_lab.run import ClaimResult
    from qkv_lab.table import Table

Flag = Parameter(negative=())
SIZE_NAMES = ("mini", "small", "full")


def lab(
    *names: str,
    all: Annotated[bool, Flag] = False,
    size: str = "small",
    seeds: int = 0,
    seed: int = 0,
    again: Annotated[bool, Flag] = False,
    data: Path | None = None,
    out: Path = Path("runs/lab"),
    book: Path | None = None,
    json: Json = False,
) -> None:
    """Test a claim about the Transformer: run its experiment, print the numbers, draw a picture, say whether it holds.

    Without a name, it lists the claims. Results are saved after each seed. If you run a claim again, seeds that are
    already there are not computed again.

    Examples:
        qkv lab
        qkv lab score-scaling
        qkv lab attention-cost recall --size full --seeds 5
        qkv lab --all --size mini --out runs/mini
        qkv lab my_claim.py

    Parameters
    ----------
    names
        The names of claims, or files with claims of your own.
    all
        Run all claims. Without --data, claims that need data are skipped; with --again, so are those with results from
        data.
    size
        small takes minutes on a CPU, full takes longer and measures more; mini only tests the code.
    seeds
        The number of seeds; 0 is the claim's default.
    seed
        The first seed. Seeds that no one has looked at test a verdict: `qkv lab recall --seed 100 --out runs/fresh`.
    again
        Run all seeds again, also those that already have results.
    data
        The data of a claim: a file or folder. The list of claims says which claims need data, and which accept it.
    out
        The folder of the results: NAME.SIZE.json and NAME.svg.
    book
        Write the pages of docs/lab into this folder. It must contain a folder named results, with all results.
    """
    if size not in SIZE_NAMES:
        raise UsageError(f"--size {size}: unknown size; choose {', '.join(SIZE_NAMES)}")
    check_minimum("seeds", seeds, 0)
    check_minimum("seed", seed, 0)
    if all and names:
        raise UsageError("--all runs every claim; leave out the names, or leave out --all")
    with fast_imports():
        from qkv_lab.registry import all_claims, find_claim

    if book is not None:
        from qkv_lab.docs_pages import write_pages

        written = write_pages(book)
        print_notes(str(book), [f"{len(written)} pages written"])
        return
    if not names and not all:
        list_claims(json)
        return
    claims = [find_claim(name) for name in names]
    if all:
        claims = [claim for claim in all_claims().values() if data is not None or not claim.data]
        skipped = {claim.name: "it needs --data" for claim in all_claims().values() if claim not in claims}
        if again and data is None:  # the new results would lack what the earlier ones measured with data
            earlier = {claim.name: data_of_results(claim, size, out) for claim in claims}  # type: ignore[arg-type]
            skipped |= {name: f"its results were made with --data {one}" for name, one in earlier.items() if one}
        claims = [claim for claim in claims if claim.name not in skipped]
        print_notes("--all", [f"{name} is left out: {reason}" for name, reason in skipped.items()])
    results = [run_one(claim, size, seeds, seed, again, data, out, json) for claim in claims]  # type: ignore[arg-type]
    if json:
        print_json([result.to_dict() for result in results])
    elif len(results) > 1:
        print_summary(results)


def data_of_results(claim: "Claim", size: "Size", out: Path) -> str:
    """The name of the data with which the saved results of a claim were made; "" if there was none."""
    from qkv_lab.run import load_result, results_path

    path = results_path(out, claim, size)
    return load_result(claim, path).data if path.exists() else ""


def run_one(
    claim: "Claim", size: "Size", seeds: int, seed: int, again: bool, data: Path | None, out: Path, json: bool
) -> "ClaimResult":
    """Run one claim, save its picture, and print its results."""
    from qkv.files import save_text
    from qkv.render.progress import stages_bar
    from qkv_lab.chart import draw_claim
    from qkv_lab.run import run_claim

    with stages_bar() as progress:
        result = run_claim(
            claim, size, seeds=seeds, first_seed=seed, again=again, folder=out, data=data, progress=progress
        )
    picture = out / f"{claim.name}.svg"
    save_text(picture, draw_claim(claim, result.table))
    if not json:
        print_claim(result)
    print_notes(claim.name, [f"picture written to {picture}"])
    return result


def print_claim(result: "ClaimResult") -> None:
    """Print a claim: the quotation, the question, the numbers, the checks, the verdict and the limits."""
    claim, table, console = result.claim, result.table, StdoutConsole(highlight=False, markup=False)
    console.print(f"\n{claim.title}", style="bold")
    for quote in claim.quotes:
        console.print(f"  {quote}", style="italic")
    console.print(f"\n{claim.question} {claim.method}\n")
    for chart in claim.charts_of(table):
        console.print(chart.measure, style="bold")
        console.print(make_grid(chart, table))
        console.print()
    for check in result.checks():
        console.print(f"  {'✓' if check.holds else '✗'} {check.statement}: {check.found}")
    seeds = f"{len(result.points)} seeds" if len(result.points) > 1 else "one seed"
    console.print(
        f"\nThe claim {result.verdict()} ({seeds}, size {result.size}, {result.seconds:.0f} s).", style="bold"
    )
    console.print(claim.lesson)
    console.print(f"Limits: {claim.limits}\n", style="dim")


def make_grid(chart: "Chart", table: "Table") -> "Grid":
    """The numbers of a chart: a line for each series or, if the positions on the x axis are names, for each name."""
    from qkv.render.formatting import plain_table
    from qkv_lab.docs_pages import MAX_COLUMNS, format_cell

    xs, names = table.xs(chart.measure), table.series(chart.measure)
    xs = xs[:: -(-len(xs) // MAX_COLUMNS)]
    cells = {(name, x): format_cell(table, chart.measure, name, x) for name in names for x in xs}
    if any(isinstance(x, str) for x in xs):
        grid = plain_table(chart.x, *names)
        for x in xs:
            grid.add_row(str(x), *(cells[name, x] for name in names))
        return grid
    grid = plain_table(chart.x, *(f"{x:,g}" for x in xs))
    for name in names:
        grid.add_row(name, *(cells[name, x] for x in xs))
    return grid


def list_claims(json: bool) -> None:
    """Print all claims by chapter."""
    from qkv.render.formatting import plain_table
    from qkv_lab.claim import CHAPTERS
    from qkv_lab.registry import all_claims

    claims = all_claims()
    if json:
        print_json([describe(claim) for claim in claims.values()])
        return
    console = StdoutConsole(highlight=False, markup=False)
    for chapter, title in CHAPTERS.items():
        console.print(title, style="bold")
        grid = plain_table("", "")
        for claim in claims.values():
            if claim.chapter == chapter:
                needs = f" (needs --data: {claim.data})" if claim.data else ""
                takes = f" (takes --data: {claim.optional_data})" if claim.optional_data else ""
                grid.add_row(f"  {claim.name}", claim.question + needs + takes)
        console.print(grid)
        console.print()
    print_notes("run one", [f"qkv lab {next(iter(claims))}"])


def describe(claim: "Claim") -> dict[str, Any]:
    """A claim as JSON."""
    quotes = [quote._asdict() for quote in claim.quotes]
    values = {
        name: getattr(claim, name)
        for name in ("name", "chapter", "title", "question", "method", "limits", "data", "optional_data")
    }
    return {**values, "quotes": quotes}


def print_summary(results: list["ClaimResult"]) -> None:
    """Print the verdicts of several claims."""
    from qkv.render.formatting import plain_table

    grid = plain_table("claim", "", "")
    for result in results:
        grid.add_row(result.claim.name, result.verdict(), result.checks()[0].found)
    StdoutConsole(highlight=False, markup=False).print(grid)
