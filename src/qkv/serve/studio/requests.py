"""The JSON that the page sends. Every value is checked here, so that the other files can rely on it."""

from dataclasses import dataclass
from typing import Annotated

from qkv.inside.look.document import VIEWS
from qkv.values import InvalidValue, Limits, OneOf

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
Text = Annotated[str, Limits(0, MAX_TEXT_CHARACTERS)]
Index = Annotated[int, Limits(0, MAX_INDEX)]


@dataclass(frozen=True, kw_only=True)
class TraceRequest:
    """A text, and how the model reads it.

    `target` is what the decoder of an encoder-decoder reads; None is the model's own answer. `off` names the parts that
    are switched off. `views` are the parts of the document; `layer` and `head` limit them to one, with exact numbers.
    `position` chooses the token whose output distribution is shown.
    """

    model: str
    text: Text
    target: Text | None = None
    off: Annotated[tuple[str, ...], Limits(0, MAX_SWITCHES)] = ()
    views: tuple[Annotated[str, OneOf(TRACE_VIEWS)], ...] = ()
    layer: Index | None = None
    head: Index | None = None
    position: Index | None = None

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise InvalidValue("text is empty; type at least one character that is not a space", "text")


@dataclass(frozen=True, kw_only=True)
class SearchRequest(TraceRequest):
    """A text, and a beam search after it."""

    beam: Annotated[int, Limits(2, 12)] = 4
    max_tokens: Annotated[int, Limits(1, 64)] = 24


@dataclass(frozen=True, kw_only=True)
class ExamplesRequest(TraceRequest):
    """A neuron or a feature, and the texts among which its top examples are found.

    `site` is the site of a neuron, such as "decoder.0.mlp_post", or the name of an autoencoder.
    """

    site: str
    unit: Index
    texts: Annotated[tuple[Text, ...], Limits(0, MAX_EXAMPLES)] = ()
