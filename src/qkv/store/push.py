"""Upload a model to a hub, as huggingface_hub does it (extra `hub`).

The address of the hub and the token come from huggingface_hub: HF_ENDPOINT, HF_TOKEN or `hf auth login`.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkv.errors import QkvError, UsageError
from qkv.store.hub import HUB_ID


def require_hub() -> Any:
    """The package `huggingface_hub`."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise QkvError('to upload a model, install the package huggingface_hub: pip install "qkv[hub]"') from error
    return huggingface_hub


def push_folder(name: str, write: Callable[[Path], object], *, private: bool = False, message: str = "") -> str:
    """Create the repository if it does not exist, upload the folder that `write` writes, and return its address.

    All files are uploaded in one commit, so that nobody downloads half of a model.
    """
    if not HUB_ID.fullmatch(name):
        raise UsageError(f"{name!r} is not the name of a repository; write owner/name, such as anna/dates")
    api = require_hub().HfApi()
    with tempfile.TemporaryDirectory(prefix="qkv-push-") as parent:
        folder = Path(parent) / "model"
        write(folder)
        try:
            repository = api.create_repo(name, private=private, exist_ok=True, repo_type="model")
            api.upload_folder(
                repo_id=repository.repo_id,
                folder_path=folder,
                repo_type="model",
                commit_message=message or "Upload a model with qkv",
            )
        except Exception as error:  # the library has many exception types
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise QkvError(
                f"{name}: the upload failed ({reason}); check the name, your network, and the token (hf auth login, or "
                "the variable HF_TOKEN)"
            ) from error
    return str(repository)
