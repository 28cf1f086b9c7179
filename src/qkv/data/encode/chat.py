"""Chats: the messages of a conversation as one text. Only the answers of the assistant are predicted.

The chat template of the tokenizer writes the text (`qkv.text.chat_template`), so `m.chat` makes the prompts that the
model was trained on. If the tokenizer has no template, `DEFAULT_TEMPLATE` is used and saved with the tokenizer:

    <s>system:⏎You are helpful.⏎⏎user:⏎Hello!⏎⏎assistant:⏎Hi, how can I help?</s>user:⏎…

The loss covers the tokens of an answer and the token that ends it. Special tokens in the content are encoded as plain
text.
"""

from qkv.data.encode.encoders import EncodedFields, encode_fingerprint, encode_or_error
from qkv.data.modalities import get_field
from qkv.data.objectives.base import require_token
from qkv.data.problems import InvalidRecord
from qkv.data.records import Record
from qkv.errors import QkvError
from qkv.text import Tokenizer
from qkv.text.chat_template import (
    ASSISTANT,
    DEFAULT_TEMPLATE,
    IdsAndMask,
    JinjaChatTemplate,
    Message,
    raise_or_return,
)

BATCH_CHATS = 64  # rendered together; a larger number is hardly faster


class EncodeChat:
    """Encodes chats as `ids` and `answer`, the loss mask.

    The objective is `CausalLMObjective(loss_mask_field="answer", add_bos_eos=False)`. The field
    `messages` of a record is a list of {"role": …, "content": …}.
    """

    def __init__(self, tokenizer: Tokenizer, messages: str = "messages") -> None:
        require_token("eos", tokenizer.special_tokens.eos, "a chat")
        self.messages = messages
        has_own = bool(tokenizer.config.get("chat_template"))
        self.template = JinjaChatTemplate(tokenizer, None if has_own else DEFAULT_TEMPLATE)
        self.fields: tuple[str, ...] = ("ids", "answer")
        self.fingerprint = encode_fingerprint("chat", tokenizer, messages, self.template.template)

    def __call__(self, records: list[Record]) -> list[EncodedFields | InvalidRecord]:
        batches = [records[start : start + BATCH_CHATS] for start in range(0, len(records), BATCH_CHATS)]
        return [result for batch in batches for result in self._encode_batch(batch)]

    def _encode_batch(self, records: list[Record]) -> list[EncodedFields | InvalidRecord]:
        chats = [encode_or_error(self._find_messages, record) for record in records]
        usable = [chat for chat in chats if not isinstance(chat, InvalidRecord)]
        encoded = iter(self.template.encode_answers_batch(usable))
        return [
            chat if isinstance(chat, InvalidRecord) else encode_or_error(_make_fields, next(encoded)) for chat in chats
        ]

    def _find_messages(self, record: Record) -> list[Message]:
        found: list[Message] = get_field(record, self.messages, "messages")
        if all(message["role"] != ASSISTANT for message in found):
            raise InvalidRecord(f"the chat has no message with the role {ASSISTANT!r} to learn from", "no answer")
        return found


def _make_fields(encoded: IdsAndMask | QkvError) -> EncodedFields:
    ids, loss_mask = raise_or_return(encoded)
    return {"ids": ids, "answer": loss_mask}
