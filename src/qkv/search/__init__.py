"""Search in text files: passages, their vectors (dense search), their words (BM25), and the fusion of both rankings."""

from typing import TYPE_CHECKING

from qkv.lazy import lazy_names

if TYPE_CHECKING:
    from qkv.search.evaluate import SearchEvaluation, read_judged_queries
    from qkv.search.index import Index, open_index
    from qkv.search.results import SearchHit, SearchResult
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "evaluate": "SearchEvaluation read_judged_queries",
            "index": "Index open_index",
            "results": "SearchHit SearchResult",
        },
    )

__all__ = ["Index", "SearchEvaluation", "SearchHit", "SearchResult", "open_index", "read_judged_queries"]
