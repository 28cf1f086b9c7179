"""Search in text files: passages, their vectors (dense search), their words (BM25), and the fusion of both rankings."""

from qkv.search.evaluate import SearchEvaluation, read_judged_queries
from qkv.search.index import Index, open_index
from qkv.search.results import SearchHit, SearchResult

__all__ = ["Index", "SearchEvaluation", "SearchHit", "SearchResult", "open_index", "read_judged_queries"]
