"""Encoding text literally: the spelling of a special token inside a text is encoded as ordinary characters.

If "</s>" in a document became the end token, data could inject special tokens. The backend's `encode_special_tokens`
stops its search for special tokens, but a Unigram, WordPiece or word-level vocabulary also contains them and matches
them like any other token. So texts are encoded by a copy of the backend in which those vocabulary entries keep their
ids and get names that cannot occur in a text.
"""

import json
from secrets import token_hex
from typing import Any

from tokenizers import Tokenizer as Backend

# The new name of a token: its id between Unicode noncharacters, which do not occur in texts, and a random number, so
# that nobody can write the name into a text on purpose.
RENAMED_TOKEN_FORMAT = f"\U0010ffff{token_hex(8)}\U0010fffe{{}}\U0010ffff\U0010fffe"


def make_literal_backend(backend: Backend) -> Backend:
    """A copy of `backend` that encodes the spellings of special tokens as ordinary text. All ids are the same."""
    parts = json.loads(backend.to_str())
    special = {token["content"]: token["id"] for token in parts["added_tokens"] if token["special"]}
    if special:
        rename_special_tokens(parts, special)
    literal = Backend.from_str(json.dumps(parts))
    literal.encode_special_tokens = True
    return literal


def rename_special_tokens(parts: dict[str, Any], special: dict[str, int]) -> None:
    """Rename the special tokens that the model's vocabulary contains, in a parsed tokenizer.json."""
    model = parts["model"]
    vocabulary = model["vocab"]
    is_unigram = model["type"] == "Unigram"
    tokens = {token for token, _ in vocabulary} if is_unigram else vocabulary.keys()
    names = {token: RENAMED_TOKEN_FORMAT.format(special[token]) for token in tokens & special.keys()}
    if is_unigram:
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    else:
        model["vocab"] = {names.get(token, token): token_id for token, token_id in vocabulary.items()}
        model["unk_token"] = names.get(model.get("unk_token"), model.get("unk_token"))
    if "merges" in model:  # drop merges that produce or contain a special token
        model["merges"] = [pair for pair in model["merges"] if not names.keys() & {pair[0], pair[1], pair[0] + pair[1]}]
    for token in parts["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
