"""The half of a tokenizer that reads a person's text, in which no spelling of a special token can be found.

"</s>" inside a document is four ordinary characters; taken for the end of the text it would let data forge the model's
own marks. The backend's switch `encode_special_tokens` stops its search for special tokens, but a Unigram, WordPiece or
word-level vocabulary holds them too and matches them like any other piece. So the reader is a copy of the tokenizer in
which those entries keep their ids under a name that text does not hold.
"""

import json
from typing import Any

from tokenizers import Tokenizer as Backend

# Two noncharacters, which Unicode keeps out of interchanged text, around the id.
HIDDEN_TOKEN = "\U0010ffff\U0010fffe{}\U0010ffff\U0010fffe"


def make_literal_backend(backend: Backend) -> Backend:
    """A copy of `backend` that reads special tokens' spellings as ordinary text; same ids otherwise."""
    parts = json.loads(backend.to_str())
    special = {token["content"]: token["id"] for token in parts["added_tokens"] if token["special"]}
    if special:
        hide_special_tokens(parts, special)
    reader = Backend.from_str(json.dumps(parts))
    reader.encode_special_tokens = True
    return reader


def hide_special_tokens(parts: dict[str, Any], special: dict[str, int]) -> None:
    """Rename, in a parsed tokenizer.json, the special tokens that the model itself could match in a text."""
    model = parts["model"]
    vocabulary = model["vocab"]
    if model["type"] == "Unigram":
        held = {piece for piece, _ in vocabulary} & special.keys()
    else:
        held = vocabulary.keys() & special.keys()
    names = {text: HIDDEN_TOKEN.format(special[text]) for text in held}
    if model["type"] == "Unigram":
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    else:
        model["vocab"] = {names.get(piece, piece): number for piece, number in vocabulary.items()}
        model["unk_token"] = names.get(model.get("unk_token"), model.get("unk_token"))
    if "merges" in model:
        # A merge that makes or uses a special token could no longer be stated, and must not happen either.
        model["merges"] = [pair for pair in model["merges"] if not names.keys() & {pair[0], pair[1], pair[0] + pair[1]}]
    for token in parts["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
