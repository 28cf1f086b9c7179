"""`qkv --version --verbose`: what a report of a problem should say about the installation."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version

from qkv import __version__
from qkv.cli.shared import fast_imports


def print_versions() -> None:
    """Print the versions of qkv, Python, the system, torch and its devices, and all dependencies."""
    with fast_imports():
        import torch
    devices = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    rows = {
        "qkv": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs",
        "CUDA": f"{torch.version.cuda or 'not in this torch'}; devices: {', '.join(devices) or 'none'}",
        **{name: find_version(name) for name in list_dependencies()},
    }
    for name, value in rows.items():
        print(f"{name:<16} {value}")


def list_dependencies() -> list[str]:
    """The packages that qkv needs, and those of its extras."""
    try:
        lines = [line for line in requires("qkv") or [] if not re.search(r"extra == .(test|dev|docs)\b", line)]
    except PackageNotFoundError:  # a source tree that is not installed
        return ["torch"]
    names = [match[0] for line in lines if (match := re.match(r"[\w.-]+", line))]
    return [name for name in dict.fromkeys(names) if name != "qkv"]


def find_version(package: str) -> str:
    """The version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
