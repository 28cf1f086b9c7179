"""Models on disk: qkv folders, Hugging Face folders, and exports for other engines.

Torch is imported when one of these names is first used.
"""

from typing import TYPE_CHECKING

from qkv.lazy import lazy_names

if TYPE_CHECKING:
    from qkv.store.model_folder import StoredModel, read_model
    from qkv.store.write_folder import write_model
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "model_folder": "StoredModel read_model",
            "write_folder": "write_model",
        },
    )

__all__ = ["StoredModel", "read_model", "write_model"]
