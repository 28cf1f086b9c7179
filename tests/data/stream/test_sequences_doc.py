"""The examples in the documentation of the rows' modules run, and the package does not load torch before it must."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import qkv.data.objectives

MODULES = ["draw", "ragged", "examples", "align", "encode", "chat", "pack", "order", "mixture", "rows", "loader"]
NAMES = [f"qkv.data.{name}" for name in MODULES]
NAMES += [f"qkv.data.objectives.{found.name}" for found in pkgutil.iter_modules(qkv.data.objectives.__path__)]


@pytest.mark.parametrize("name", NAMES)
def test_documented_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_torch_is_loaded_only_for_batches():
    code = "import sys, qkv.data; assert 'torch' not in sys.modules; qkv.data.Loader; assert 'torch' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
