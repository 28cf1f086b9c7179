"""Search in text files: passages, their vectors (dense search), their words (BM25), and the fusion of both rankings."""

from qkv.search.index import Index, open_index
from qkv.search.results import SearchHit, SearchResult

__all__ = ["Index", "SearchHit", "SearchResult", "open_index"]
