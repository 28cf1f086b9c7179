"""Models on disk: qkv folders, Hugging Face folders, and exports for other engines."""

from qkv.store.model_folder import StoredModel, read_model, write_model

__all__ = ["StoredModel", "read_model", "write_model"]
