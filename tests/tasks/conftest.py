"""A fixture that the tests of this folder share."""

from pathlib import Path

import pytest
from prepare_samples import sample_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sample files for every objective."""
    path = tmp_path_factory.mktemp("samples")
    sample_files(path)
    return path
