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

from qkv.data.encode import EncodeEach, Example, field, fingerprint
from qkv.data.objectives.base import need
from qkv.data.problems import BadRecord
from qkv.data.records import Record
from qkv.text import Tokenizer


@dataclass(frozen=True)
class ChatTemplate:
    """What stands before and after each turn, and whose turns are answers."""

    before: str = "{role}:\n"
    after: str = "\n\n"
    answerer: str = "assistant"

    def ids(self, tokenizer: Tokenizer, turns: Sequence[tuple[str, str]]) -> tuple[list[int], list[int]]:
        """(role, text) turns → (ids, 1 beside each token that is to be learnt)."""
        start, end = tokenizer.roles.start, need("end", tokenizer.roles.end, "a chat")
        pieces = [text for role, said in turns for text in (self.before.replace("{role}", role), said, self.after)]
        encoded = iter(tokenizer.encode_batch(pieces))
        ids = [] if start is None else [start]
        learnt = [0] * len(ids)
        for role, _ in turns:
            before, said, after = next(encoded), next(encoded), next(encoded)
            answer = role == self.answerer
            closing = [end] if answer else after
            ids += [*before, *said, *closing]
            learnt += [0] * len(before) + [int(answer)] * (len(said) + len(closing))
        return ids, learnt

    def prompt(self, tokenizer: Tokenizer, turns: Sequence[tuple[str, str]]) -> list[int]:
        """The ids after which the model should write its next answer."""
        ids, _ = self.ids(tokenizer, turns)
        return ids + tokenizer.encode(self.before.replace("{role}", self.answerer), special=False)


class EncodeChat(EncodeEach):
    """Chats for `NextToken(trained="answer", framed=False)`: `ids`, and `answer`, 1 beside each token to be learnt.

    A record's `turns` are a list of {"role": …, "content": …}.
    """

    def __init__(self, tokenizer: Tokenizer, turns: str = "messages", *, template: ChatTemplate | None = None):
        need("end", tokenizer.roles.end, "a chat")
        self.tokenizer = tokenizer
        self.turns = turns
        self.template = template or ChatTemplate()
        self.fields = ("ids", "answer")
        self.fingerprint = fingerprint("chat", tokenizer, turns, asdict(self.template))

    def one(self, record: Record) -> Example:
        turns = [self._turn(turn, number) for number, turn in enumerate(field(record, self.turns, list))]
        if all(role != self.template.answerer for role, _ in turns):
            raise BadRecord(f"no turn of {self.template.answerer!r} to learn from", "no answer")
        ids, learnt = self.template.ids(self.tokenizer, turns)
        return {"ids": ids, "answer": learnt}

    def _turn(self, turn: Any, number: int) -> tuple[str, str]:
        if not isinstance(turn, dict) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
            raise BadRecord(
                f"turn {number} of {self.turns!r} is not {{'role': …, 'content': …}}", "wrong kind of value"
            )
        return turn["role"], turn["content"]
