"""Evaluate an index: how well it finds the files that are judged relevant to queries.

A file ranks as high as its best passage. Judgements name a file as the index does (`deep/dog.txt`), or without its
folder, its suffix or both (`dog.txt`, `deep/dog`, `dog`), if only one file has this name.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, get_args

from qkv.arguments import check_list, describe_value
from qkv.data.problems import Problems
from qkv.data.readers import read
from qkv.data.records import Record
from qkv.errors import UsageError, suggest_name
from qkv.search.results import Method
from qkv.tasks.metrics import (
    Difference,
    Interval,
    Score,
    compare_metrics,
    confidence_intervals,
    mean_average_precision,
    mean_reciprocal_rank,
    ndcg,
    recall_at,
)
from qkv.tasks.metrics.bootstrap import DEFAULT_RESAMPLES, check_same_data, hash_data

TOP_PASSAGES = 1000
"""The number of passages that a search returns for each query. Files without a passage among them are not found."""
METHODS: tuple[Method, ...] = get_args(Method)
METRICS: dict[str, Callable[..., Score]] = {
    "ndcg": ndcg,
    "mean_average_precision": mean_average_precision,
    "recall": recall_at,
    "mean_reciprocal_rank": mean_reciprocal_rank,
}
SHORT_NAMES = {"map": "mean_average_precision", "mrr": "mean_reciprocal_rank"}
WITHOUT_CUTOFF = ("mean_average_precision", "map")
"""Metrics of the whole ranking. All others look at the first k files."""
DEFAULT_METRICS = ("ndcg@10", "mean_average_precision", "recall@100", "mean_reciprocal_rank@10")
COLUMN_NAMES = {
    "query_id": ("id", "_id", "query_id", "query-id", "qid"),
    "text": ("text", "query", "question"),
    "query": ("query", "query_id", "query-id", "qid", "question"),
    "document": ("document", "file", "document_id", "doc_id", "docid", "corpus-id", "corpus_id"),
    "relevance": ("relevance", "score", "grade", "rel", "label"),
}
"""Field → names of its column, the preferred one first."""

Judgements = Mapping[str, Mapping[str, float]]
"""Query → file → relevance. A relevance above 0 is relevant, and higher is better."""


class Searchable(Protocol):
    """The part of an index that an evaluation needs."""

    files: list[str]

    def search(self, query: Any, *, top: int = 10, method: Method = "fused") -> Any:
        """Find the passages that match each query."""


@dataclass(frozen=True)
class SearchEvaluation:
    """The metrics of each search method, with 95 % intervals over the queries."""

    metrics: dict[Method, dict[str, float]]
    intervals: dict[Method, dict[str, Interval]]
    fused_differences: dict[Method, dict[str, Difference]]  # fused search minus each other method
    num_queries: int
    notes: tuple[str, ...]
    data_hash: str = ""  # of the queries and judgements: only evaluations with the same hash can be compared

    def compare(
        self, other: "SearchEvaluation", resamples: int = DEFAULT_RESAMPLES
    ) -> dict[Method, dict[str, Difference]]:
        """The metrics of another index minus the metrics of this index, with intervals and p-values."""
        check_same_data(self, other)
        common = [
            method for method, scores in self.metrics.items() if scores.keys() & other.metrics.get(method, {}).keys()
        ]
        if not common:
            raise UsageError(
                "the evaluations have no metric in common; evaluate both indexes with the same methods and metrics"
            )
        return {method: compare_metrics(self.metrics[method], other.metrics[method], resamples) for method in common}


def evaluate_index(
    index: Searchable,
    queries: Mapping[str, str],
    judgements: Judgements,
    *,
    methods: Method | Sequence[Method] = METHODS,
    metrics: str | Sequence[str] = DEFAULT_METRICS,
    resamples: int = DEFAULT_RESAMPLES,
) -> SearchEvaluation:
    """Search for each query (id → text), and compare the ranking of files with the judgements of the query."""
    check_judgements(queries, judgements)
    check_list(metrics, "metrics must be a name, such as ndcg@10, or a list of names")
    names = [metrics] if isinstance(metrics, str) else map(str, metrics or DEFAULT_METRICS)
    chosen = dict(map(find_metric, names))
    notes = []
    known = known_files(index.files)
    judged: dict[str, dict[Any, float]] = {}
    unknown: set[str] = set()
    for query, files in judgements.items():
        if query in queries and any(relevance > 0 for relevance in files.values()):
            judged[query] = {known.get(file, ("not in the index", file)): value for file, value in files.items()}
            unknown |= files.keys() - known.keys()
    if not judged:
        raise UsageError(
            f"none of the {len(queries):,} queries has a relevant file; check that the query ids in both files match, "
            "and that relevant files have a relevance above 0"
        )
    if left_out := len(queries.keys() | judgements.keys()) - len(judged):
        notes.append(f"skipped {left_out:,} queries without a text, or without a relevant file")
    if unknown:
        if not any(file in known for files in judgements.values() for file in files):
            raise UsageError(
                f"none of the judged files is in the index, for example {min(unknown)!r}; the index has files such as "
                f"{', '.join(index.files[:3])}; use these names, or leave out the folder or the suffix"
            )
        notes.append(
            f"{len(unknown):,} judged files are not in the index, for example {min(unknown)!r}: they count as not found"
        )
    texts = [queries[query] for query in judged]
    scores: dict[Method, dict[str, float]] = {}
    for method in (methods,) if isinstance(methods, str) else methods:
        results = index.search(texts, top=TOP_PASSAGES, method=method)
        rankings = [list(dict.fromkeys(hit.file for hit in result)) for result in results]
        scores[method] = {name: score(rankings, list(judged.values())) for name, score in chosen.items()}
    intervals = {method: confidence_intervals(found, resamples) for method, found in scores.items()}
    fused_differences: dict[Method, dict[str, Difference]] = {
        method: compare_metrics(found, scores["fused"], resamples)
        for method, found in scores.items()
        if "fused" in scores and method != "fused"
    }
    data_hash = hash_data([queries[query], judgements[query]] for query in judged)
    return SearchEvaluation(scores, intervals, fused_differences, len(judged), tuple(notes), data_hash)


def check_judgements(queries: Any, judgements: Any) -> None:
    """Raise an error if queries are not id → text, or judgements not id → file → number."""
    if not isinstance(queries, Mapping):
        raise UsageError(f'queries must map ids to texts, like {{"q1": "red fox"}}, got {describe_value(queries)}')
    example = '{"q1": {"fox.txt": 1}}'
    if not isinstance(judgements, Mapping):
        raise UsageError(f"judgements must map ids to files, like {example}, got {describe_value(judgements)}")
    for query, files in judgements.items():
        if not isinstance(files, Mapping):
            raise UsageError(
                f"the judgements of query {query!r} must map files to their relevance, like {example}, got "
                f"{describe_value(files)}"
            )
        for file, relevance in files.items():
            if not isinstance(relevance, Real):
                raise UsageError(
                    f"judgements of query {query!r}, file {file!r}: the relevance is {describe_value(relevance)}, but "
                    "must be a number; 0 is not relevant"
                )


def find_metric(name: str) -> tuple[str, Callable[..., Score]]:
    """The full name and the function of a metric, such as "map", or "recall@5" for the first 5 files.

    >>> find_metric("recall@5")[0], find_metric("mrr@10")[0], find_metric("MAP")[0]
    ('recall@5', 'mean_reciprocal_rank@10', 'mean_average_precision')
    """
    short, _, cutoff = name.lower().partition("@")
    full = SHORT_NAMES.get(short, short)
    if full not in METRICS:
        known = [found if found in WITHOUT_CUTOFF else f"{found}@{cutoff or 'k'}" for found in (*METRICS, *SHORT_NAMES)]
        raise UsageError(f"metric = {name!r} is not a search metric; {suggest_name(name.lower(), known)}")
    if full in WITHOUT_CUTOFF:
        if cutoff:
            raise UsageError(
                f"metric = {name!r}: {short} scores the whole ranking, so it has no cutoff; write {short!r}"
            )
        return full, METRICS[full]
    if not re.fullmatch(r"[1-9][0-9]{0,3}", cutoff) or int(cutoff) > TOP_PASSAGES:
        raise UsageError(
            f"metric = {name!r}: the number of files after @ must be from 1 to {TOP_PASSAGES:,}; for example, "
            f"{short + '@10'!r}"
        )
    return f"{full}@{cutoff}", partial(METRICS[full], k=int(cutoff))


def known_files(files: Sequence[str]) -> dict[str, str]:
    """The names by which judgements may refer to files: with or without folder and suffix, if only one file has it.

    >>> known_files(["deep/dog.txt"])
    {'dog': 'deep/dog.txt', 'dog.txt': 'deep/dog.txt', 'deep/dog': 'deep/dog.txt', 'deep/dog.txt': 'deep/dog.txt'}
    """
    short: dict[str, str | None] = {}
    for file in files:
        path = PurePosixPath(file)
        for name in (path.stem, path.name, str(path.with_suffix(""))):
            short[name] = file if short.get(name, file) == file else None  # None: several files have this name
    return {name: file for name, file in short.items() if file is not None} | {file: file for file in files}


def read_judged_queries(
    judgements: str | Path, queries: str | Path | None = None
) -> tuple[dict[str, str], dict[str, dict[str, float]]]:
    """Queries (id → text) and judgements (query id → file → relevance) from files.

    `judgements` has the columns query, document and relevance (1 without this column), or the columns of trec_eval:
    query id, 0, document and relevance. If `queries` is given, its columns are id and text, and the query in
    `judgements` is an id.
    """
    texts: dict[str, str] = {}
    for record in read(str(queries), problems=Problems(max_invalid_fraction=1)) if queries is not None else ():
        texts[_value(record, "query_id", 0)] = _value(record, "text", 1)
    judged: dict[str, dict[str, float]] = {}
    for record in read(str(judgements), problems=Problems(max_invalid_fraction=1)):
        words = str(record.fields["text"]).split() if list(record.fields) == ["text"] else []
        if words:
            record = Record(dict(zip("0123", words, strict=False)), record.location)
        is_trec = list(record.fields) == ["0", "1", "2", "3"]
        query, file = _value(record, "query", 0), _value(record, "document", 2 if is_trec else 1)
        judged.setdefault(query, {})[file] = _relevance(record, 3 if is_trec else 2)
    return texts if queries is not None else {query: query for query in judged}, judged


def _value(record: Record, field: str, number: int) -> str:
    """A field of a record: its column has one of the usual names, or is a number if the table has no header."""
    for name in (*COLUMN_NAMES[field], str(number)):
        if name in record.fields:
            return str(record.fields[name])
    raise UsageError(
        f"{record.location}: no column for the {field}: the columns are {', '.join(record.fields)}; rename one of them "
        f"to {COLUMN_NAMES[field][0]!r}"
    )


def _relevance(record: Record, number: int) -> float:
    name = next((name for name in (*COLUMN_NAMES["relevance"], str(number)) if name in record.fields), None)
    if name is None:
        return 1.0
    try:
        return float(record.fields[name])
    except (TypeError, ValueError):
        raise UsageError(
            f"{record.location}: the relevance is {record.fields[name]!r}, but must be a number; 0 is not relevant"
        ) from None
