"""The examples in every docstring of `qkv.data` run, and the package imports torch only when it must."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import qkv.data

MODULES = [found.name for found in pkgutil.walk_packages(qkv.data.__path__, "qkv.data.")]


@pytest.mark.parametrize("name", MODULES)
def test_documented_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_torch_is_imported_only_for_batches():
    code = "import sys, qkv.data; assert 'torch' not in sys.modules; qkv.data.Loader; assert 'torch' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
