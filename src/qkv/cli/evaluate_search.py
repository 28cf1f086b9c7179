"""`qkv eval INDEX`: evaluate an index by relevance judgements, or compare two indexes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli.data import parse_files
from qkv.cli.shared import StdoutConsole, print_json
from qkv.errors import UsageError

if TYPE_CHECKING:
    from qkv.search import SearchEvaluation
    from qkv.search.results import Method
    from qkv.tasks.metrics import Difference


def evaluate_search(
    arguments: Sequence[str], *, metrics: Sequence[str], limit: int, resamples: int, device: str, json: bool
) -> None:
    """`qkv eval INDEX [INDEX] DATA`: compare the rankings of all methods with relevance judgements."""
    from qkv.render.search import print_search_comparison, print_search_evaluation
    from qkv.search import open_index, read_judged_queries
    from qkv.search.folder import is_index

    indexes = list(takewhile(lambda name: is_index(Path(name)), arguments))
    data = arguments[len(indexes) :]
    if len(indexes) > 2:
        raise UsageError(f"{len(indexes)} indexes were given, but at most 2 can be compared; leave out the others")
    files = parse_files(data)
    if isinstance(files, dict) and set(files) == {"queries", "judgements"}:
        queries, judgements = read_judged_queries(files["judgements"], files["queries"])
    elif not isinstance(files, dict) and len(data) == 1:
        queries, judgements = read_judged_queries(data[0])
    else:
        raise UsageError(
            "an index is evaluated with judgements: give one file with the columns query, document and relevance, or "
            f"two files: queries=queries.tsv judgements=qrels.tsv; given: {' '.join(data) or 'no file'}"
        )
    chosen = dict(list(queries.items())[: limit or None])
    results = [
        open_index(name, device=device).evaluate(chosen, judgements, metrics=metrics, resamples=resamples)
        for name in indexes
    ]
    described = {"data": list(data), "queries": results[0].num_queries, "resamples": resamples}
    values = [{"index": name, **to_json(result)} for name, result in zip(indexes, results, strict=True)]
    if len(indexes) == 1:
        if json:
            print_json(values[0] | described)
        else:
            print_search_evaluation(indexes[0], results[0], StdoutConsole())
        return
    differences = results[0].compare(results[1], resamples)
    if json:
        print_json(described | {"indexes": values, "differences": differences_to_json(differences)})
    else:
        print_search_comparison(indexes, results, differences, StdoutConsole())


def to_json(result: "SearchEvaluation") -> dict[str, Any]:
    """The JSON values of an evaluation."""
    return {
        "metrics": result.metrics,
        "intervals": result.intervals,
        "fused_differences": differences_to_json(result.fused_differences),
        "notes": list(result.notes),
    }


def differences_to_json(differences: "Mapping[Method, Mapping[str, Difference]]") -> dict[str, Any]:
    """The JSON values of differences by method and metric."""
    return {
        method: {name: asdict(difference) for name, difference in found.items()}
        for method, found in differences.items()
    }
