"""The whole Transformer in one readable toolkit: encoder-only, decoder-only and encoder-decoder from one set of blocks.

    import qkv

    m = qkv.train("dates")            # a recipe: a file, or a built-in name
    m = qkv.load("runs/dates")        # a qkv folder, a Hugging Face folder, or a hub id
    m.run("Dienstag, 4. Mai 2021")

Torch is imported when a name that needs it is first used, so that `import qkv` and `qkv --help` are fast.
"""

import os
from importlib import import_module
from inspect import Signature, getdoc, signature
from types import ModuleType
from typing import TYPE_CHECKING, Any

from qkv.errors import QkvError, UsageError
from qkv.lazy import lazy_names
from qkv.openmp import limit_spinning

limit_spinning(os.environ, busy=False)  # torch reads it when it is imported

if TYPE_CHECKING:
    from qkv.api import Model, load, new, report, train
    from qkv.blocks import HeadConfig, PartCost, RotaryScaling, StackConfig, Tap, register_part
    from qkv.models import Config, build
    from qkv.search import Index, open_index
    from qkv.tasks.register import register
    from qkv.tasks.table import register_task
    from qkv.text import Tokenizer
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "api": "Model load new report",
            "blocks": "HeadConfig PartCost RotaryScaling StackConfig Tap register_part",
            "models": "Config build",
            "search": "Index open_index",
            "tasks.register": "register",
            "tasks.table": "register_task",
            "text": "Tokenizer",
        },
    )

__version__ = "0.1.0"

__all__ = [
    "Config",
    "HeadConfig",
    "Index",
    "Model",
    "PartCost",
    "QkvError",
    "RotaryScaling",
    "StackConfig",
    "Tap",
    "Tokenizer",
    "UsageError",
    "__version__",
    "build",
    "load",
    "new",
    "open_index",
    "register",
    "register_part",
    "register_task",
    "report",
    "train",
]


class _CallableModule(ModuleType):
    """The package `qkv.train`, which can also be called: `qkv.train(recipe)` is `qkv.api.train(recipe)`.

    `help(qkv.train)` and `inspect.signature(qkv.train)` describe the function.
    """

    def __call__(self, *args: Any, **named: Any) -> Any:
        return import_module("qkv.api").train(*args, **named)

    @property
    def __signature__(self) -> Signature:
        return signature(import_module("qkv.api").train)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        function = import_module("qkv.api").train
        return f"qkv.train{signature(function)}\n\n{getdoc(function)}\n\nThe package: {vars(self)['__doc__']}"


import_module("qkv.train").__class__ = _CallableModule  # `qkv.train` is both the package and the function


def __dir__() -> list[str]:
    return __all__
