"""Models on disk: qkv folders, Hugging Face folders, and exports for other engines.

Torch is imported when one of these names is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.store.model_folder import StoredModel, read_model, write_model

NEED_TORCH = {
    "StoredModel": "qkv.store.model_folder",
    "read_model": "qkv.store.model_folder",
    "write_model": "qkv.store.model_folder",
}

__all__ = ["StoredModel", "read_model", "write_model"]


def __getattr__(name: str) -> Any:
    if name in NEED_TORCH:
        return getattr(import_module(NEED_TORCH[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
