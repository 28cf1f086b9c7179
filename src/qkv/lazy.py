"""Names that are imported when they are first used, so that a program loads only the modules that it needs.

    if TYPE_CHECKING:
        from qkv.blocks.mask import Mask, make_layout
    else:
        __getattr__ = lazy_names(__name__, {"mask": "Mask make_layout"})

A module of such a package must not have the name of one of these functions or classes: importing it would hide them.

    GPU = Backend("gpu", lazy_function("qkv.decode.gpu.generate:generate_greedy"))
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package. `modules` has the names of each module, which are separated by spaces."""
    module_of = {name: f"{package}.{module}" for module, names in modules.items() for name in names.split()}

    def import_name(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return import_name


def lazy_function(path: str) -> Callable[..., Any]:
    """Return a function that imports another one, such as "package.module:function", when it is called."""
    module, _, name = path.partition(":")
    return lambda *args, **named: getattr(import_module(module), name)(*args, **named)
