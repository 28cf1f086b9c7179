"""Chat templates: from messages to the token ids of a prompt.

A template is a jinja2 program in the tokenizer's config that writes messages with the control tokens of the model, such
as `<|im_start|>user`. It is rendered in a sandboxed process. Only control tokens that the template itself writes become
control tokens: their spellings inside a message are ordinary text, unless `special` is set.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from qkv.errors import QkvError, UsageError, shorten, suggest_name
from qkv.text.special_tokens import ROLE_NAMES
from qkv.text.template_process import render_in_sandbox
from qkv.text.tokenizer import Tokenizer

Message = Mapping[str, str]
"""A message of a chat: {"role": "user", "content": "…"}."""
ROLES = ("system", "user", "assistant", "tool")
PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] | capitalize }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""The template "plain", for a model that has none."""
PRIVATE_CHARACTERS = range(0xF0000, 0xFFFFE)


class JinjaChatTemplate:
    """The chat template of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, template: str | None = None) -> None:
        """`template` is "plain", the text of a template, or None for the tokenizer's own."""
        self.tokenizer = tokenizer
        self.render: Callable[[str, Mapping[str, Any]], str] = render_in_sandbox  # of a template and its variables
        self.is_plain = template == "plain"
        self.template = PLAIN_TEMPLATE if self.is_plain else template or _find_template(tokenizer)
        added = tokenizer.backend.get_added_tokens_decoder()
        self._special = {token.content: (i, token) for i, token in added.items() if token.special and token.content}
        spellings = sorted(self._special, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, spellings)) if spellings else r"(?!)")
        self._around_contents: dict[tuple[str, ...], tuple[list[str], bool] | QkvError] = {}  # by the roles of a chat

    def encode(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, special: bool = False
    ) -> list[int]:
        """The ids of a chat, up to where the assistant's next message begins."""
        for number, message in enumerate(messages):
            check_message(message, number)
        copied = [{"role": message["role"], "content": message["content"]} for message in messages]
        hidden: dict[str, str] = {}  # private character → the character that it stands for
        if not special:
            unused = _unused_characters(copied)
            for message in copied:
                message["content"] = self._hide_control_tokens(message["content"], unused, hidden)
        return self._tokenize(self._render(copied, add_generation_prompt), hidden)

    def encode_answers(self, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        """The ids of a whole chat, and a mask that is 1 for the assistant's messages and the token that ends each.

        A message of the assistant is encoded apart from the text before it, as it is generated after a prompt. The
        template is rendered once for each sequence of roles, so it must write every message as it is, in order.
        """
        for number, message in enumerate(messages):
            check_message(message, number)
        hidden: dict[str, str] = {}
        unused = _unused_characters(messages)
        contents = [self._hide_control_tokens(message["content"], unused, hidden) for message in messages]
        roles = tuple(message["role"] for message in messages)
        (text, *after), is_stripped = self._split_around_contents(roles)
        ids: list[int] = []
        mask: list[int] = []
        for role, content, rest in zip(roles, contents, after, strict=True):
            content = content.strip() if is_stripped else content
            if role != "assistant":
                text += content + rest
                continue
            prompt, answer = self._tokenize(text, hidden), self._tokenize(content, hidden)
            end = self._pattern.match(rest)
            text = rest if end is None else rest[end.end() :]
            answer += [] if end is None else [self._special[end.group()][0]]
            ids += prompt + answer
            mask += [0] * len(prompt) + [1] * len(answer)
        closing = self._tokenize(text, hidden)
        return ids + closing, mask + [0] * len(closing)

    def _split_around_contents(self, roles: tuple[str, ...]) -> tuple[list[str], bool]:
        """The texts that the template writes before, between and after the messages, and whether it strips them."""
        if roles not in self._around_contents:
            try:
                self._around_contents[roles] = self._render_around_contents(roles)
            except QkvError as error:  # kept, so that a template that takes long to fail does so once
                self._around_contents[roles] = error
        found = self._around_contents[roles]
        if isinstance(found, QkvError):
            raise found
        return found

    def _render_around_contents(self, roles: tuple[str, ...]) -> tuple[list[str], bool]:
        marks = [chr(PRIVATE_CHARACTERS[number]) for number in range(len(roles))]
        messages = [{"role": role, "content": f" {mark} "} for role, mark in zip(roles, marks, strict=True)]
        text = self._render(messages, add_generation_prompt=False)
        is_stripped = f" {marks[0]} " not in text
        pieces = re.split("|".join(mark if is_stripped else f" {mark} " for mark in marks), text)
        if [one for one in text if one in marks] != marks or len(pieces) != len(roles) + 1:
            raise QkvError(
                f"the chat template does not write the messages of a chat ({', '.join(roles)}) one after the other, "
                "so the answers cannot be found in its text; remove chat_template from tokenizer_config.json to train "
                "with qkv's own format"
            )
        return pieces, is_stripped

    def _tokenize(self, text: str, hidden: Mapping[str, str]) -> list[int]:
        """The ids of a rendered text: control tokens, and ordinary text between them."""
        originals = {ord(private): character for private, character in hidden.items()}
        ids: list[int] = []
        start, strip_start = 0, False
        for match in [*self._pattern.finditer(text), None]:
            token_id, token = (None, None) if match is None else self._special[match.group()]
            piece = text[start : len(text) if match is None else match.start()].translate(originals)
            piece = piece.lstrip() if strip_start else piece
            piece = piece.rstrip() if token is not None and token.lstrip else piece
            if piece:
                ids += self.tokenizer.encode(piece, add_special_tokens=False)
            if match is not None and token is not None and token_id is not None:
                ids.append(token_id)
                start, strip_start = match.end(), token.rstrip
        return ids

    def _hide_control_tokens(self, text: str, unused: Iterator[str], hidden: dict[str, str]) -> str:
        """Replace one character of each spelling of a control token by a private one.

        The same is done for the beginning of a spelling at the end of the text, and the end of one at its start, which
        the template could complete.
        """
        places = {match.start() for match in self._pattern.finditer(text)}
        first, last = len(text) - len(text.lstrip()), len(text.rstrip())  # a template may strip the text
        for spelling in self._special:
            for size in range(1, len(spelling)):
                if text.endswith(spelling[:size], 0, last):
                    places.add(last - size)
                if text.startswith(spelling[-size:], first):
                    places.add(first + size - 1)
        characters = list(text)
        names = {character: private for private, character in hidden.items()}
        for place in places:
            character = characters[place]
            if character not in names:
                names[character] = next(unused)
                hidden[names[character]] = character
            characters[place] = names[character]
        return "".join(characters)

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        ids = {role: getattr(self.tokenizer.special_tokens, role) for role in ROLE_NAMES}
        variables: dict[str, Any] = {
            f"{role}_token": "" if i is None else self.tokenizer.id_to_token(i) for role, i in ids.items()
        }
        variables |= {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        return self.render(self.template, variables)


def check_message(message: Any, number: int) -> None:
    """Raise an error for a message without a known role or without a text."""
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
        raise UsageError(f'message {number}: expected {{"role": "user", "content": "…"}}, got {shorten(repr(message))}')
    if message.get("role") not in ROLES:
        role = message.get("role")
        raise UsageError(f"message {number}: unknown role {role!r}; {suggest_name(str(role), ROLES)}")


def _find_template(tokenizer: Tokenizer) -> str:
    """The template in the tokenizer's config, which may have several by name."""
    found = tokenizer.config.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, Mapping)}
        found = named.get("default")
    if not isinstance(found, str) or not found.strip():
        raise UsageError(
            "this model has no chat template, so it was probably not trained to chat. To continue a text, use "
            'm.generate or qkv run; to chat nevertheless, choose template="plain" (--template plain), which writes '
            '"User: …" and "Assistant: …"'
        )
    return found


def _unused_characters(messages: Sequence[Message]) -> Iterator[str]:
    """Private characters that occur in no message."""
    used: set[str] = set().union(*(message["content"] for message in messages))
    yield from (chr(number) for number in PRIVATE_CHARACTERS if chr(number) not in used)
    raise UsageError("the messages contain all private characters of Unicode, so none is left; remove some of them")
