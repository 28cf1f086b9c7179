"""Triton's interpreter, without the work that it repeats.

At each call of a device function it replaces all functions of `triton.language` anew, though the kernel that calls has
already replaced them.
"""

from typing import Any

import pytest


def replace_language_once() -> None:
    """Let the interpreter replace the functions of the language only where they are not replaced yet."""
    interpreter: Any = pytest.importorskip("triton.runtime.interpreter")
    language, usual = interpreter.tl, interpreter._patch_lang
    if hasattr(usual, "is_once"):
        return

    def patch(function: Any) -> Any:
        seen = function.__globals__.values()
        used = [module for module in (language, language.core) if any(value is module for value in seen)]
        if used and not any(language.core.is_builtin(module.load) for module in used):
            return interpreter._LangPatchScope()  # nothing to undo
        return usual(function)

    patch.is_once = True  # type: ignore[attr-defined]
    interpreter._patch_lang = patch
