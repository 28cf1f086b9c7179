"""The console of all output. If the environment variable NO_COLOR is set, output has no escape sequences at all."""

import os
from typing import Any

from rich.console import Console


class NoColorConsole(Console):
    """A rich console that writes plain text if NO_COLOR is set: no colours, no bold, no cursor movements.

    rich itself then leaves out colours only. See https://no-color.org.
    """

    def __init__(self, **options: Any) -> None:
        plain = {"force_terminal": False, "color_system": None} if os.environ.get("NO_COLOR") else {}
        super().__init__(**{**options, **plain})
