"""The page is one file that needs no network, and no text of a document can become markup or code."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

from qkv.page import DOCUMENT_VERSION, build_page, bundle_scripts

ENTRIES = ("main.js", "report.js")
HOSTILE = "</script><img src=x onerror=alert(1)><!--"


def document(title: str = HOSTILE) -> dict[str, object]:
    return {"version": 1, "title": title, "subtitle": "", "views": [], "notes": [], "footer": "", "sequences": {}}


class Elements(HTMLParser):
    """Collects the tags of a page with their attributes, and the texts of its scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags:
            self.texts.append((self.tags[-1][0], data))


def test_hostile_texts_stay_inside_the_json_element() -> None:
    page = Elements(build_page(document()))
    assert "img" not in [tag for tag, _ in page.tags]
    data = next(text for (tag, text) in page.texts if tag == "script" and text.startswith("{"))
    assert json.loads(data)["title"] == HOSTILE


def test_the_policy_allows_this_script_and_this_style_only() -> None:
    page = Elements(build_page(document()))
    policy = next(str(attributes["content"]) for tag, attributes in page.tags if "http-equiv" in attributes)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in policy
    for rule, tag in (("script-src", "script"), ("style-src", "style")):
        text = next(text for name, text in reversed(page.texts) if name == tag and text.strip())
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"


def test_the_page_names_no_address() -> None:
    found = set(re.findall(r"https?://[^\"' ]*", build_page(document())))
    assert found == {"http://www.w3.org/2000/svg"}  # a name, which nothing fetches


def test_every_script_is_in_the_bundle() -> None:
    names = {file.name for file in files("qkv.page").joinpath("static").iterdir() if file.name.endswith(".js")}
    bundles = [bundle_scripts(entry) for entry in ENTRIES]
    assert names == set(re.findall(r'^modules\["([\w.]+)"\] =', "".join(bundles), re.MULTILINE))
    assert not re.findall(r"^(?:import|export) ", "".join(bundles), re.MULTILINE)


def test_scripts_never_parse_text_as_markup() -> None:
    unsafe = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b"
    assert not any(re.search(unsafe, bundle_scripts(entry)) for entry in ENTRIES)


def test_the_scripts_draw_documents_of_this_version() -> None:
    assert f"const VERSION = {DOCUMENT_VERSION};" in bundle_scripts()


def test_the_front_end_is_small() -> None:
    assert len(build_page(document(""))) < 100_000
