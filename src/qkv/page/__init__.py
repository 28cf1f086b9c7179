"""Web pages in one file: what happens inside a model, and the report on a run. JavaScript draws numbers from JSON.

`static/` is the front end: one idea in each file, no framework, no build step. `build_page` puts it and a document into
one HTML file that needs no network. `qkv.inside.look` makes documents. A server can also serve `static/` as it is and
send documents to `mount` in `main.js`. `build_report_page` does the same with a report of `qkv.tasks.report`.
"""

from qkv.page.html import DOCUMENT_VERSION, build_page, build_report_page, bundle_scripts
from qkv.page.packing import SIGNED_ERROR, WEIGHT_ERROR, Packed, pack, pack_signed, pack_weights, unpack

__all__ = [
    "DOCUMENT_VERSION",
    "SIGNED_ERROR",
    "WEIGHT_ERROR",
    "Packed",
    "build_page",
    "build_report_page",
    "bundle_scripts",
    "pack",
    "pack_signed",
    "pack_weights",
    "unpack",
]
