"""The JSON that the page sends. Every value is checked here, so that the other files can rely on it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from qkv.errors import UsageError, suggest_name
from qkv.inside.look.document import VIEWS
from qkv.values import check_bounds, check_field_types

MAX_TOKENS = 256
"""The studio traces this many tokens of a sequence at most: the patterns grow with its square."""
MAX_TEXT_CHARACTERS = 8000
MAX_WORDS = 32
"""The number of words of a text that are left out in turn."""
MAX_SWITCHES = 4096
MAX_EXAMPLES = 400
"""The number of texts among which the top examples of a neuron are found."""
MAX_INDEX = 1 << 20
TRACE_VIEWS = (*VIEWS, "next", "features", "word_alignment")
Request = TypeVar("Request", bound="TraceRequest")


@dataclass(frozen=True, kw_only=True)
class TraceRequest:
    """A text, and how the model reads it.

    `target` is what the decoder of an encoder-decoder reads; None is the model's own answer. `off` names the parts that
    are switched off. `views` are the parts of the document; `layer` and `head` limit them to one, with exact numbers.
    `position` chooses the token whose output distribution is shown.
    """

    model: str
    text: str
    target: str | None = None
    off: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    layer: int | None = None
    head: int | None = None
    position: int | None = None

    def __post_init__(self) -> None:
        check_field_types(self, tuple(field.name for field in fields(self)))
        for name in ("text", "target"):
            check_length(name, getattr(self, name) or "")
        if not self.text.strip():
            raise ValueError("text is empty; type at least one character that is not a space")
        if len(self.off) > MAX_SWITCHES:
            raise ValueError(f"off has {len(self.off):,} parts, and at most {MAX_SWITCHES:,} can be switched off")
        bounded = ("layer", "head", "position")
        check_bounds(self, {name: (0, MAX_INDEX) for name in bounded if getattr(self, name) is not None})
        for name in self.views:
            if name not in TRACE_VIEWS:
                raise ValueError(f"views: there is no view {name[:80]!r}; {suggest_name(name, TRACE_VIEWS)}")


@dataclass(frozen=True, kw_only=True)
class SearchRequest(TraceRequest):
    """A text, and a beam search after it."""

    beam: int = 4
    max_tokens: int = 24

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self, {"beam": (2, 12), "max_tokens": (1, 64)})


@dataclass(frozen=True, kw_only=True)
class ExamplesRequest(TraceRequest):
    """A neuron or a feature, and the texts among which its top examples are found.

    `site` is the site of a neuron, such as "decoder.0.mlp_post", or the name of an autoencoder.
    """

    site: str
    unit: int
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self, {"unit": (0, MAX_INDEX)})
        if len(self.texts) > MAX_EXAMPLES:
            raise ValueError(f"there are {len(self.texts):,} example texts; give at most {MAX_EXAMPLES}")
        for text in self.texts:
            check_length("an example", text)


def check_length(name: str, text: str) -> None:
    """Raise ValueError if a text is too long to look at."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise ValueError(
            f"{name} has {len(text):,} characters, and the studio reads at most {MAX_TEXT_CHARACTERS:,}; shorten it"
        )


def parse_request(kind: type[Request], body: Any) -> Request:
    """The body of a request as a dataclass, or an error that names the wrong field."""
    if not isinstance(body, Mapping):
        raise UsageError("the body of the request is not a JSON object; send one, such as {…}")
    known = [field.name for field in fields(kind)]
    for name in body:
        if name not in known:
            raise UsageError(f"the request has an unknown field {str(name)[:80]!r}; {suggest_name(str(name), known)}")
    missing = [name for name in ("model", "text") if name not in body]
    if missing:
        raise UsageError(f"the request has no {missing[0]!r}; add this field")
    try:
        return kind(**body)
    except TypeError as error:
        raise UsageError(f"the request is not complete ({error}); add the missing field") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
