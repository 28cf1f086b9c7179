"""An index of text files, and search in it.

index = qkv.Index.build("notes", model="models/minilm", out="notes.index")
index = qkv.open_index("notes.index")
for hit in index.search("how to renew a passport"):
    print(hit.file, hit.first_line, hit.score, hit.text)
"""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, overload

import numpy as np
import torch

from qkv.arguments import describe_value
from qkv.errors import QkvError, UsageError, count_nouns, suggest_name
from qkv.files import to_path
from qkv.progress import OnStage
from qkv.search import approximate
from qkv.search.approximate import IvfIndex, exact_search_note, has_faiss
from qkv.search.build import BuildReport, build_index
from qkv.search.embedder import Embedder
from qkv.search.evaluate import DEFAULT_METRICS, METHODS, Judgements, SearchEvaluation, evaluate_index
from qkv.search.folder import IVF_FILE, MANIFEST_FILE, DamagedIndex, read_arrays, read_manifest
from qkv.search.ranking import FUSION_DEPTH, Ranking, bm25_weights, fuse, rank_matches
from qkv.search.results import Method, SearchHit, SearchResult
from qkv.search.vectors import VectorSearch
from qkv.tasks.metrics.bootstrap import DEFAULT_RESAMPLES
from qkv.text.bm25 import BM25
from qkv.text.training_text import check_text
from qkv.values import Limits, check_value

if TYPE_CHECKING:
    from qkv.api import Model

log = logging.getLogger("qkv")

DEFAULT_SETTINGS = {"max_tokens": 256, "dtype": "float32", "pooling": None}


class Index:
    """An index that was opened for search. `report` is the report of the build, if this index was just built."""

    def __init__(
        self,
        folder: str | Path,
        *,
        model: "Model | str | Path | None" = None,
        device: torch.device | str = "cpu",
        verify: bool = True,
    ) -> None:
        self.folder = to_path(folder)
        manifest, arrays, ivf = _read_index(self.folder, verify)
        try:
            self.files: list[str] = [file["name"] for file in manifest["files"]]
            self.root, self.source = Path(manifest["root"]), Path(manifest["source"])
            self.settings: dict[str, Any] = {name: manifest[name] for name in DEFAULT_SETTINGS}
            self.model_name, self._fingerprint = (
                str(manifest["model"]),
                [float(value) for value in manifest["fingerprint"]],
            )
        except (LookupError, TypeError, ValueError) as error:
            raise DamagedIndex(self.folder, f"manifest.json: {error}") from None
        self._ends = list(accumulate(file["passages"] for file in manifest["files"]))
        self._texts, self._text_starts, self._lines = arrays["texts"], arrays["text_starts"], arrays["lines"]
        self._model, self._device = model, device
        self._embedder: Embedder | None = None
        self.bm25 = BM25(arrays)
        self.vectors = VectorSearch(arrays["vectors"], ivf=ivf)
        self.report: BuildReport | None = None

    @classmethod
    def build(
        cls,
        source: str | Path,
        *,
        out: str | Path,
        model: "Model | str | Path | None" = None,
        pooling: str | None = None,
        max_tokens: int | None = None,
        dtype: str | None = None,
        batch_size: int = 32,
        device: torch.device | str = "cpu",
        rebuild: bool = False,
        progress: OnStage | None = None,
    ) -> "Index":
        """Build the index of a text file, or of all text files in a folder, and write it to the folder `out`.

        If `out` contains an index, update it: embed only new and changed files, and keep the options that are not
        given. `rebuild` embeds all files. `pooling` ("mean", "first" or "last") is for a model without an embedding
        head. A passage has at most `max_tokens` tokens (256). `dtype` is "float32" or "float16", which halves the size
        of the vectors.
        """
        settings: dict[str, Any] = DEFAULT_SETTINGS
        if (to_path(out) / MANIFEST_FILE).exists() and not rebuild:
            old = cls(out, verify=False)
            model, settings = model or old.model_name, old.settings
        if not model:
            raise UsageError(f"{out}: building this index needs a model; name it with model= (--model MODEL)")
        given = {"pooling": pooling, "max_tokens": max_tokens, "dtype": dtype}
        settings = settings | {name: value for name, value in given.items() if value is not None}
        embedder = Embedder(model, settings.pop("pooling"), device, batch_size)
        report = build_index(source, out, embedder, **settings, rebuild=rebuild, progress=progress)
        index = cls(out, verify=False)
        index._set_embedder(embedder)
        index.report = report
        return index

    def update(self, *, progress: OnStage | None = None) -> "Index":
        """Embed new and changed files, remove deleted files, and open the updated index."""
        return Index.build(self.source, out=self.folder, model=self._open_embedder().model, progress=progress)

    def __len__(self) -> int:
        return len(self._lines)

    def __repr__(self) -> str:
        return (
            f"<qkv index of {self.source}: {count_nouns(len(self.files), 'file')}, {count_nouns(len(self), 'passage')}>"
        )

    @overload
    def search(self, query: str, *, top: int = 10, method: Method = "fused") -> SearchResult: ...
    @overload
    def search(self, query: Sequence[str], *, top: int = 10, method: Method = "fused") -> Any: ...

    def search(self, query: Any, *, top: int = 10, method: Method = "fused") -> Any:
        """Find the passages that match a query best; a list of queries gives a list of results.

        `method` is "dense" (the cosine of the vectors), "bm25" (words in common), or "fused": the reciprocal rank
        fusion of both, in which a passage that shares only frequent words with the query has a low weight. Search is
        exact: every passage is compared. Above a million passages, vectors are searched approximately, if faiss is
        installed.
        """
        if not isinstance(query, Iterable) or isinstance(query, bytes | Mapping):
            raise UsageError(f"query must be a text or a list of texts, got {describe_value(query)}")
        queries = [query] if isinstance(query, str) else list(query)
        for number, text in enumerate(queries):
            where = "the query" if isinstance(query, str) else f"query {number + 1}"
            check_text(text, where)
            if not text.strip():
                raise UsageError(f"{where} is empty; give at least one word to search for")
        if method not in get_args(Method):
            raise UsageError(f"method = {method!r} is unknown; {suggest_name(str(method), get_args(Method))}")
        check_value(Annotated[int, Limits(1)], top, "top")
        rankings = self._rank(queries, top, method)
        results = [
            SearchResult(text, method, [self._hit(int(i), float(score)) for i, score in zip(*ranking, strict=True)])
            for text, ranking in zip(queries, rankings, strict=True)
        ]
        return results[0] if isinstance(query, str) else results

    def _rank(self, queries: list[str], top: int, method: Method) -> list[Ranking]:
        if method == "bm25":
            return [rank_matches(self.bm25.scores(query), top) for query in queries]
        vectors = self._open_embedder().embed_queries(queries) if queries else np.zeros((0, len(self._fingerprint)))
        if method == "dense":
            return self.vectors.search(vectors, top)
        depth = max(top, FUSION_DEPTH)
        dense = self.vectors.search(vectors, depth)
        rankings = []
        for query, (nearest, _) in zip(queries, dense, strict=True):
            matches, scores = rank_matches(self.bm25.scores(query), depth)
            weights = bm25_weights(scores, self.bm25.max_score(query))
            rankings.append(fuse([nearest, matches], top, weights=[1.0, weights]))
        return rankings

    def evaluate(
        self,
        queries: Mapping[str, str],
        judgements: Judgements,
        *,
        methods: Method | Sequence[Method] = METHODS,
        metrics: str | Sequence[str] = DEFAULT_METRICS,
        resamples: int = DEFAULT_RESAMPLES,
    ) -> SearchEvaluation:
        """How well each method finds relevant files: nDCG@10, MAP, recall@100 and MRR@10, with intervals.

        `queries` maps ids to texts, and `judgements` maps ids to the relevance of files. The rank of a file is the rank
        of its best passage. `metrics` is another metric, or a list: such as "ndcg@5", "map", "recall@20" or "mrr@10".
        """
        return evaluate_index(self, queries, judgements, methods=methods, metrics=metrics, resamples=resamples)

    def passage_text(self, number: int) -> str:
        """The text of a passage."""
        return bytes(self._texts[self._text_starts[number] : self._text_starts[number + 1]]).decode()

    def _hit(self, number: int, score: float) -> SearchHit:
        first, last = (int(line) for line in self._lines[number])
        file = self.files[bisect_right(self._ends, number)]
        return SearchHit(file, first, last, score, self.passage_text(number), number)

    def _open_embedder(self) -> Embedder:
        """The model. The first call loads it."""
        if self._embedder is None:
            model = self._model or self.model_name
            if not model:
                raise QkvError(
                    f"{self.folder}: the model is unknown, because the index was built in Python with a model that had "
                    'no folder; name the model with model= (--model), or search with method "bm25" (--method bm25), '
                    "which needs no model"
                )
            try:
                embedder = Embedder(model, self.settings["pooling"], self._device)
            except QkvError as error:
                if self._model is not None:
                    raise
                moved = "if the model that built the index has moved, name it with model= (--model)"
                raise QkvError(f"{error}; {moved}") from error
            remedy = "name the model that built it (--model), or build the index again"
            embedder.check_same_model(self._fingerprint, str(self.folder), remedy)
            self._set_embedder(embedder)
        assert self._embedder is not None
        return self._embedder

    def _set_embedder(self, embedder: Embedder) -> None:
        """Use a model for queries, and search on its device."""
        self._embedder, self.vectors.device = embedder, embedder.device


def _read_index(folder: Path, verify: bool) -> tuple[dict[str, Any], dict[str, np.ndarray], IvfIndex | None]:
    """The manifest, the arrays, and the inverted file of a large index.

    A writer deletes the old data after it has replaced the manifest. If this happens while the data is read, the new
    data is read instead.
    """
    manifest = read_manifest(folder)
    try:
        arrays = read_arrays(folder, manifest, verify=verify)
        return manifest, arrays, _open_ivf(folder, manifest, arrays["vectors"].shape)
    except QkvError:
        if read_manifest(folder).get("data") == manifest.get("data"):
            raise
    return _read_index(folder, verify)


def _open_ivf(folder: Path, manifest: dict[str, Any], shape: Any) -> IvfIndex | None:
    """The inverted file of a large index. Without it, or without faiss, search is exact, and a warning says so."""
    if IVF_FILE in manifest["checksums"] and has_faiss():
        try:
            return IvfIndex(folder / manifest["data"] / IVF_FILE, shape)
        except ValueError as error:
            raise DamagedIndex(folder, str(error)) from None
    if shape[0] > approximate.MAX_EXACT_VECTORS:
        log.warning("%s: %s", folder, exact_search_note(shape[0]))
    return None


def open_index(
    folder: str | Path,
    *,
    model: "Model | str | Path | None" = None,
    device: torch.device | str = "cpu",
    verify: bool = True,
) -> Index:
    """Open an index that `Index.build` or `qkv index` has written.

    The first search that needs a model loads `model`, or the model that built the index. Opening checks the checksums
    of all files, unless `verify` is off.
    """
    return Index(folder, model=model, device=device, verify=verify)
