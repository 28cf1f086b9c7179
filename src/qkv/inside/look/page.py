"""A document as a page: in a file, or in a notebook."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from qkv.files import save_text
from qkv.page import build_page

NOTEBOOK_HEIGHT_PX = 640


@dataclass(frozen=True)
class Look:
    """What `qkv look` shows of one text: a document of numbers and texts, which can be saved or shown in a notebook."""

    document: Mapping[str, Any]

    def to_html(self) -> str:
        """One HTML page, which can be opened offline."""
        return build_page(self.document)

    def to_json(self) -> str:
        """The document as JSON."""
        return json.dumps(self.document, ensure_ascii=False, allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write the page as HTML, or the document as JSON if the name ends in .json. Missing folders are made."""
        path = Path(path)
        save_text(path, self.to_json() if path.suffix == ".json" else self.to_html())

    def __repr__(self) -> str:
        return f"<look at {self.document['title']!r}: {', '.join(self.document['views'])}>"

    def _repr_html_(self) -> str:
        """The page in a frame of a notebook. Its scripts run in a sandbox, apart from the notebook."""
        return (
            '<iframe sandbox="allow-scripts allow-downloads" '
            f'style="width:100%;height:{NOTEBOOK_HEIGHT_PX}px;border:0" '
            f'title="{escape(str(self.document["title"]))}" srcdoc="{escape(self.to_html())}"></iframe>'
        )
