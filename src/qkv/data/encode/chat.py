"""Chats: the turns of a conversation as one text. Only the answers of the assistant are predicted.

If the tokenizer has a chat template, it writes the chat (`qkv.text.chat_template`), so that a fine-tuned model replies
to the prompts of `m.chat`. Otherwise, a turn is a line with the role, the content, and a blank line. An answer ends
with the EOS token instead of the blank line, so the model learns to stop:

    system:⏎You are helpful.⏎⏎user:⏎Hello!⏎⏎assistant:⏎Hi, how can I help?</s>user:⏎…

The loss covers the tokens of an answer and its EOS token. Prefix, content and suffix are encoded separately, so a
prompt has exactly the same tokens at inference as in training. Special tokens in the content are encoded as plain text.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qkv.data.encode.encoders import EncodedFields, encode_fingerprint, encode_or_error, get_field
from qkv.data.objectives.base import require_token
from qkv.data.problems import InvalidRecord
from qkv.data.records import Record
from qkv.errors import QkvError
from qkv.text import Tokenizer
from qkv.text.chat_template import IdsAndMask, JinjaChatTemplate, Message, raise_or_return, result_or_error

BATCH_CHATS = 64  # rendered together; a larger number is hardly faster
Turns = list[tuple[str, str]]  # the role and the content of each turn


@dataclass(frozen=True)
class ChatTemplate:
    """The text before and after each turn, and the role whose turns the model learns."""

    turn_prefix: str = "{role}:\n"
    turn_suffix: str = "\n\n"
    assistant_role: str = "assistant"

    def encode(self, tokenizer: Tokenizer, turns: Sequence[tuple[str, str]]) -> IdsAndMask:
        """Encode (role, content) turns as (ids, loss mask), where the mask is 1 for tokens of an answer."""
        bos, eos = tokenizer.special_tokens.bos, require_token("eos", tokenizer.special_tokens.eos, "a chat")
        texts = []
        for role, content in turns:
            texts += [self.turn_prefix.replace("{role}", role), content, self.turn_suffix]
        encoded = iter(tokenizer.encode_batch(texts))
        ids = [] if bos is None else [bos]
        loss_mask = [0] * len(ids)
        for role, _ in turns:
            prefix, body, suffix = next(encoded), next(encoded), next(encoded)
            is_answer = role == self.assistant_role
            closing = [eos] if is_answer else suffix
            ids += [*prefix, *body, *closing]
            loss_mask += [0] * len(prefix) + [int(is_answer)] * (len(body) + len(closing))
        return ids, loss_mask

    def encode_prompt(self, tokenizer: Tokenizer, turns: Sequence[tuple[str, str]]) -> list[int]:
        """The prompt that the model continues with its next answer."""
        ids, _ = self.encode(tokenizer, turns)
        return ids + tokenizer.encode(self.turn_prefix.replace("{role}", self.assistant_role), add_special_tokens=False)


class EncodeChat:
    """Encodes chats as `ids` and `answer` (the loss mask) for `CausalLM(loss_mask_field="answer", add_bos_eos=False)`.

    The field `turns` of a record is a list of {"role": …, "content": …}.
    """

    def __init__(self, tokenizer: Tokenizer, turns: str = "messages", *, template: ChatTemplate | None = None):
        require_token("eos", tokenizer.special_tokens.eos, "a chat")
        self.tokenizer = tokenizer
        self.turns = turns
        has_own = template is None and bool(tokenizer.config.get("chat_template"))
        self.own_template = JinjaChatTemplate(tokenizer) if has_own else None
        self.template = template or ChatTemplate()
        self.fields: tuple[str, ...] = ("ids", "answer")
        written = asdict(self.template) if self.own_template is None else self.own_template.template
        self.fingerprint = encode_fingerprint("chat", tokenizer, turns, written)

    def __call__(self, records: list[Record]) -> list[EncodedFields | InvalidRecord]:
        batches = [records[start : start + BATCH_CHATS] for start in range(0, len(records), BATCH_CHATS)]
        return [result for batch in batches for result in self._encode_batch(batch)]

    def _encode_batch(self, records: list[Record]) -> list[EncodedFields | InvalidRecord]:
        chats = [encode_or_error(self._find_turns, record) for record in records]
        encoded = iter(self._encode_turns([chat for chat in chats if not isinstance(chat, InvalidRecord)]))
        return [
            chat if isinstance(chat, InvalidRecord) else encode_or_error(_make_fields, next(encoded)) for chat in chats
        ]

    def _encode_turns(self, chats: list[Turns]) -> list[IdsAndMask | QkvError]:
        if self.own_template is None:
            return [result_or_error(self.template.encode, self.tokenizer, turns) for turns in chats]
        return self.own_template.encode_answers_batch([_make_messages(turns) for turns in chats])

    def _find_turns(self, record: Record) -> Turns:
        turns = [self._check_turn(turn, number) for number, turn in enumerate(get_field(record, self.turns, list))]
        if all(role != self.template.assistant_role for role, _ in turns):
            raise InvalidRecord(
                f"the chat has no turn with the role {self.template.assistant_role!r} to learn from", "no answer"
            )
        return turns

    def encode_prompt(self, turns: Sequence[tuple[str, str]]) -> list[int]:
        """The prompt that the model continues with its next answer."""
        if self.own_template is None:
            return self.template.encode_prompt(self.tokenizer, turns)
        return self.own_template.encode(_make_messages(turns))

    def _check_turn(self, turn: Any, number: int) -> tuple[str, str]:
        if not isinstance(turn, dict) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
            raise InvalidRecord(
                f"turn {number} of {self.turns!r} must be an object with the texts 'role' and 'content'", "wrong type"
            )
        return turn["role"], turn["content"]


def _make_messages(turns: Sequence[tuple[str, str]]) -> list[Message]:
    return [{"role": role, "content": content} for role, content in turns]


def _make_fields(encoded: IdsAndMask | QkvError) -> EncodedFields:
    ids, loss_mask = raise_or_return(encoded)
    return {"ids": ids, "answer": loss_mask}
