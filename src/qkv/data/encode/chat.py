"""Chats: turns of a conversation as one text, of which only the answers are learnt.

The template is plain: a line with the speaker's role, what was said, a blank line; an answer closes with the end token,
which is how the model learns to stop. With the default template:

    system:⏎You are helpful.⏎⏎user:⏎Hello!⏎⏎assistant:⏎Hi, how can I help?</s>user:⏎…

Only an answer's own tokens and its end token are learnt. Every piece is encoded by itself, so its tokens do not depend
on its neighbours: a prompt given to the model later has exactly the tokens of training. What people write is never read
as a special token.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qkv.data.encode.encoders import EncodedFields, EncodeOneByOne, encode_fingerprint, get_field
from qkv.data.objectives.base import require_token
from qkv.data.problems import InvalidRecord
from qkv.data.records import Record
from qkv.text import Tokenizer


@dataclass(frozen=True)
class ChatTemplate:
    """What stands before and after each turn, and whose turns are answers."""

    turn_prefix: str = "{role}:\n"
    turn_suffix: str = "\n\n"
    assistant_role: str = "assistant"

    def encode(self, tokenizer: Tokenizer, turns: Sequence[tuple[str, str]]) -> tuple[list[int], list[int]]:
        """(role, text) turns → (ids, 1 beside each token that is to be learnt)."""
        start, end = tokenizer.special_tokens.bos, require_token("end", tokenizer.special_tokens.eos, "a chat")
        pieces = [
            text for role, said in turns for text in (self.turn_prefix.replace("{role}", role), said, self.turn_suffix)
        ]
        encoded = iter(tokenizer.encode_batch(pieces))
        ids = [] if start is None else [start]
        learnt = [0] * len(ids)
        for role, _ in turns:
            before, said, after = next(encoded), next(encoded), next(encoded)
            answer = role == self.assistant_role
            closing = [end] if answer else after
            ids += [*before, *said, *closing]
            learnt += [0] * len(before) + [int(answer)] * (len(said) + len(closing))
        return ids, learnt

    def encode_prompt(self, tokenizer: Tokenizer, turns: Sequence[tuple[str, str]]) -> list[int]:
        """The ids after which the model should write its next answer."""
        ids, _ = self.encode(tokenizer, turns)
        return ids + tokenizer.encode(self.turn_prefix.replace("{role}", self.assistant_role), add_special_tokens=False)


class EncodeChat(EncodeOneByOne):
    """Chats for `NextToken(trained="answer", framed=False)`: `ids`, and `answer`, 1 beside each token to be learnt.

    A record's `turns` are a list of {"role": …, "content": …}.
    """

    def __init__(self, tokenizer: Tokenizer, turns: str = "messages", *, template: ChatTemplate | None = None):
        require_token("end", tokenizer.special_tokens.eos, "a chat")
        self.tokenizer = tokenizer
        self.turns = turns
        self.template = template or ChatTemplate()
        self.fields = ("ids", "answer")
        self.fingerprint = encode_fingerprint("chat", tokenizer, turns, asdict(self.template))

    def encode_one(self, record: Record) -> EncodedFields:
        turns = [self._turn(turn, number) for number, turn in enumerate(get_field(record, self.turns, list))]
        if all(role != self.template.assistant_role for role, _ in turns):
            raise InvalidRecord(f"no turn of {self.template.assistant_role!r} to learn from", "no answer")
        ids, learnt = self.template.encode(self.tokenizer, turns)
        return {"ids": ids, "answer": learnt}

    def _turn(self, turn: Any, number: int) -> tuple[str, str]:
        if not isinstance(turn, dict) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
            raise InvalidRecord(
                f"turn {number} of {self.turns!r} is not {{'role': …, 'content': …}}", "wrong kind of value"
            )
        return turn["role"], turn["content"]
