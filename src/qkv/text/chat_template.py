"""Chat templates: from messages to the token ids of a prompt.

A template is a jinja2 program in the tokenizer's config that writes messages with the control tokens of the model, such
as `<|im_start|>user`. It is rendered in a sandboxed process. Only control tokens that the template itself writes become
control tokens: their spellings inside a message are ordinary text, unless `special` is set.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice
from typing import Any, TypeVar

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from qkv.errors import QkvError, UsageError, shorten, suggest_name
from qkv.lazy import lazy_function
from qkv.text.special_tokens import ROLE_NAMES
from qkv.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
"""A message of a chat: {"role": "user", "content": "…"}. One of the assistant may have `tool_calls`."""
IdsAndMask = tuple[list[int], list[int]]
Result = TypeVar("Result")
ROLES = ("system", "user", "assistant", "tool")
MESSAGE_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "name")
ASSISTANT = "assistant"
DEFAULT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}:\n{{ m['content'] }}"
    "{{ eos_token if m['role'] == 'assistant' else '\\n\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n{% endif %}"
)
"""The template of models that are trained on chats and whose tokenizer has none. It is saved with the tokenizer."""
PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] | capitalize }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""The template "plain", for a model that has none because it was not trained on chats."""
PRIVATE_CHARACTERS = range(0xF0000, 0xFFFFE)
CONTROL_TOKEN_FORMAT = "\ufdd0{}\ufdd1"
"""A control token in a rendered chat: its id between two Unicode noncharacters, which no message may contain."""
CONTROL_TOKEN = re.compile(r"\s*\ufdd0(\d+)\ufdd1")  # and the white space before it


class JinjaChatTemplate:
    """The chat template of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, template: str | None = None) -> None:
        """`template` is "plain", the text of a template, or None for the tokenizer's own."""
        self.tokenizer = tokenizer
        self.render: Callable[[str, Sequence[Mapping[str, Any]]], list[str | QkvError]] = lazy_function(
            "qkv.text.chat_renderer:render_in_sandbox"
        )
        self.is_plain = template == "plain"
        if template and not self.is_plain and "{" not in template:
            raise UsageError(f"template = {shorten(template)!r} is not a jinja2 template; pass a template, or 'plain'")
        self.template = PLAIN_TEMPLATE if self.is_plain else template or _find_template(tokenizer)
        added = tokenizer.backend.get_added_tokens_decoder()
        self._special = {token.content: (i, token) for i, token in added.items() if token.special and token.content}
        spellings = sorted(self._special, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, spellings)) if spellings else r"(?!)")
        self._pattern_start = re.compile(f"(?={self._pattern.pattern})")  # also finds spellings that overlap
        self._around_contents: dict[tuple[str, ...], list[str] | QkvError] = {}  # by the roles of a chat

    def encode(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        special: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """The ids of a chat, up to where the assistant's next message begins. `tools` are shown to the model."""
        return self._tokenize(self.render_text(messages, add_generation_prompt, special, tools))[0]

    def encode_answers(self, messages: Sequence[Message]) -> IdsAndMask:
        """The ids of a whole chat, and a mask that is 1 for the assistant's messages and the token that ends each.

        White space between a message and its end token is part of the mask, and so is a token that has characters of
        both the message and the text around it. The template must write all messages in order, as they are or without
        white space at their ends.
        """
        (found,) = self.encode_answers_batch([messages])
        return raise_or_return(found)

    def encode_answers_batch(self, chats: Sequence[Sequence[Message]]) -> list[IdsAndMask | QkvError]:
        """The ids and the mask of each chat, or the error. All chats are rendered in one round trip to the sandbox."""
        prepared = [result_or_error(self._prepare_answers, messages) for messages in chats]
        variables = [found[0] for found in prepared if not isinstance(found, QkvError)]
        rendered = iter(self.render(self.template, variables))
        return [
            found
            if isinstance(found, QkvError)
            else result_or_error(self._mask_answers, messages, next(rendered), found[1])
            for messages, found in zip(chats, prepared, strict=True)
        ]

    def _prepare_answers(self, messages: Sequence[Message]) -> tuple[dict[str, Any], dict[str, str]]:
        for number, message in enumerate(messages):
            check_message(message, number)
        self._split_around_contents(_roles(messages))  # an error before the chat is rendered
        return self._variables(messages, add_generation_prompt=False)

    def _mask_answers(
        self, messages: Sequence[Message], rendered: str | QkvError, hidden: Mapping[str, str]
    ) -> IdsAndMask:
        text = self._mark_control_tokens(raise_or_return(rendered), hidden)
        around = self._split_around_contents(_roles(messages))
        end_tokens = (self.find_end_token(), self.tokenizer.special_tokens.eos)  # not one that begins the next message
        is_answer = bytearray(len(text) + 1)  # by character
        for message, (start, end) in zip(messages, _find_contents(text, messages, around), strict=True):
            if message["role"] == ASSISTANT:
                following = CONTROL_TOKEN.match(text, end)
                if following is not None and int(following[1]) in end_tokens:
                    end = following.end()
                is_answer[start:end] = b"\1" * (end - start)
        ids, offsets = self._tokenize(text)
        return ids, [int(any(is_answer[start : max(end, start + 1)])) for start, end in offsets]

    def find_end_token(self) -> int | None:
        """The id of the control token that the template writes after a message of the assistant; None without one."""
        for roles in (("user", "assistant"), ("system", "user", "assistant")):  # some templates need a system prompt
            with suppress(QkvError):
                following = CONTROL_TOKEN.match(self._split_around_contents(roles)[-1])
                return None if following is None else int(following[1])
        return None

    def _split_around_contents(self, roles: tuple[str, ...]) -> list[str]:
        """The texts that the template writes before, between and after the messages."""
        if roles not in self._around_contents:
            # An error is kept, too, so that a template that takes long to fail does so once.
            self._around_contents[roles] = result_or_error(self._render_around_contents, roles)
        return raise_or_return(self._around_contents[roles])

    def _render_around_contents(self, roles: tuple[str, ...]) -> list[str]:
        marks = list(islice(_unused_characters([self.template]), len(roles)))
        messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
        text = self.render_text(messages, add_generation_prompt=False)
        if [character for character in text if character in marks] != marks:
            raise QkvError(
                f"the chat template does not write the messages of a chat ({', '.join(roles)}) in order, so qkv cannot "
                "find the answers in its text; to train with qkv's own template, remove chat_template from "
                "tokenizer_config.json"
            )
        return re.split("|".join(marks), text)

    def _tokenize(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a rendered chat, and for each the characters that it covers, as (start, end)."""
        tokenizer, control_ids = self._chat_tokenizer
        ids, offsets = tokenizer.encode_with_offsets(text)
        for number, token_id in enumerate(ids):
            if token_id in control_ids:
                ids[number] = control_ids[token_id]
                start = text.index(CONTROL_TOKEN_FORMAT[0], offsets[number][0])  # after white space that it strips
                offsets[number] = (start, start + 1)
        return ids, offsets

    @cached_property
    def _chat_tokenizer(self) -> tuple[Tokenizer, dict[int, int]]:
        """A tokenizer for rendered chats, and a map from its ids of control tokens to their original ids.

        It encodes the whole text at once, because the ids of a text can depend on whether it is the first.
        """
        backend = Backend.from_str(self.tokenizer.backend.to_str())
        backend.post_processor = None  # it may trim white space from offsets
        names = {CONTROL_TOKEN_FORMAT.format(i): (i, token) for i, token in self._special.values()}
        backend.add_tokens(
            [
                AddedToken(name, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False)
                for name, (_, token) in names.items()
            ]
        )
        added = backend.get_added_tokens_decoder()
        control_ids = {i: names[token.content][0] for i, token in added.items() if token.content in names}
        return Tokenizer(backend, special_tokens=self.tokenizer.special_tokens), control_ids

    def _hide_control_tokens(self, text: str, unused: Iterator[str], hidden: dict[str, str]) -> str:
        """Replace one character of each spelling of a control token by a private one.

        The same is done for parts of a spelling that the template could complete: its beginning at the end of the text,
        its end at the start of the text, and its middle if that is the whole text.
        """
        places = {match.start() for match in self._pattern_start.finditer(text)}
        first, last = len(text) - len(text.lstrip()), len(text.rstrip())  # a template may strip the text
        for spelling in self._special:
            if first < last and text[first:last] in spelling:
                places.add(first)
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

    def _hide_in_values(self, value: Any, unused: Iterator[str], hidden: dict[str, str]) -> Any:
        """A copy of a value of JSON in which no text has a control token, nor a name that is not the template's own."""
        if isinstance(value, str):
            return self._hide_control_tokens(value, unused, hidden)
        if isinstance(value, Mapping):
            names = {
                name: self._hide_control_tokens(name, unused, hidden) for name in value if self._pattern.search(name)
            }
            return {names.get(name, name): self._hide_in_values(one, unused, hidden) for name, one in value.items()}
        return (
            [self._hide_in_values(one, unused, hidden) for one in value] if isinstance(value, list | tuple) else value
        )

    def render_text(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        special: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """The text of a chat, with control tokens as `CONTROL_TOKEN_FORMAT` writes them."""
        for number, message in enumerate(messages):
            check_message(message, number)
        variables, hidden = self._variables(messages, add_generation_prompt, special, tools)
        (rendered,) = self.render(self.template, [variables])
        return self._mark_control_tokens(raise_or_return(rendered), hidden)

    def _variables(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        special: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """The variables of the template, and the private characters that `_hide_control_tokens` has put into them."""
        copied: Any = [{name: message[name] for name in MESSAGE_FIELDS if message.get(name)} for message in messages]
        for message in copied:
            message.setdefault("content", "")
        hidden: dict[str, str] = {}  # private character → the character that it stands for
        if not special:
            unused = _unused_characters([self.template, *_texts([copied, tools])])
            for message in copied:
                message |= self._hide_in_values({**message, "role": ""}, unused, hidden) | {"role": message["role"]}
            tools = self._hide_in_values(tools, unused, hidden)
        ids = {role: getattr(self.tokenizer.special_tokens, role) for role in ROLE_NAMES}
        variables: dict[str, Any] = {
            f"{role}_token": "" if i is None else self.tokenizer.id_to_token(i) for role, i in ids.items()
        }
        variables |= {"messages": copied, "add_generation_prompt": add_generation_prompt}
        if tools:
            variables["tools"] = tools
        return variables, hidden

    def _mark_control_tokens(self, text: str, hidden: Mapping[str, str]) -> str:
        """Write the control tokens of a rendered text as `CONTROL_TOKEN_FORMAT` does, and restore hidden characters."""
        if CONTROL_TOKEN_FORMAT[0] in text:
            raise UsageError(
                "the chat contains the character U+FDD0, which qkv uses to mark control tokens, because Unicode "
                "reserves it for programs; remove the character"
            )
        text = self._pattern.sub(lambda match: CONTROL_TOKEN_FORMAT.format(self._special[match.group()][0]), text)
        return text.translate({ord(private): character for private, character in hidden.items()})


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | Sequence):
        for one in chain(value, value.values()) if isinstance(value, Mapping) else value:
            yield from _texts(one)


def result_or_error(call: Callable[..., Result], *arguments: Any) -> Result | QkvError:
    """The result of a call, or the error that it raises."""
    try:
        return call(*arguments)
    except QkvError as error:
        return error


def raise_or_return(found: Result | QkvError) -> Result:
    """A result; raises it if it is an error."""
    if isinstance(found, QkvError):
        raise found
    return found


def _roles(messages: Sequence[Message]) -> tuple[str, ...]:
    return tuple(message["role"] for message in messages)


def _find_contents(text: str, messages: Sequence[Message], around: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where a rendered chat has its messages, as (start, end). `around` are the texts between them."""
    position = 0
    for message, before, after in zip(messages, around[:-1], around[1:], strict=True):
        without_end = message["content"].rstrip()
        core = without_end.lstrip()
        white_start = without_end[: len(without_end) - len(core)]  # the template may strip it, or a part of it
        white_end = message["content"][len(without_end) :]
        start = position + len(before)
        core_start = text.find(core, start, start + len(without_end))
        core_end = core_start + len(core)
        end = text.rfind(after, core_end, core_end + len(white_end) + len(after))
        if (
            not text.startswith(before, position)
            or min(core_start, end) < 0
            or not white_start.endswith(text[start:core_start])
            or not white_end.startswith(text[core_end:end])
        ):
            break
        yield start, end
        position = end
    else:
        if text[position:] == around[-1]:
            return
    raise QkvError(
        "the chat template changes the text of messages, so qkv cannot find the answers in its output; remove this "
        "chat, or remove chat_template from tokenizer_config.json to train with qkv's own template"
    )


def check_message(message: Any, number: int) -> None:
    """Raise an error for a message without a known role or without a text. A call of a tool needs no text."""
    if isinstance(message, Mapping) and message.get("content") is None and message.get("tool_calls"):
        message = {**message, "content": ""}
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
        raise UsageError(f'message {number}: expected {{"role": "user", "content": "…"}}, got {shorten(repr(message))}')
    if message.get("role") not in ROLES:
        role = message.get("role")
        raise UsageError(f"message {number}: unknown role {role!r}; {suggest_name(str(role), ROLES)}")


def _find_template(tokenizer: Tokenizer) -> str:
    """The template in the tokenizer's config, which may have several by name."""
    found = tokenizer.config.get("chat_template")
    if isinstance(found, list):
        named = {template.get("name"): template.get("template") for template in found if isinstance(template, Mapping)}
        found = named.get("default")
    if not isinstance(found, str) or not found.strip():
        raise UsageError(
            "this model has no chat template, so it was probably not trained to chat. To continue a text, use "
            'm.generate or qkv run; to chat nevertheless, choose template="plain" (--template plain), which writes '
            '"User: …" and "Assistant: …"'
        )
    return found


def _unused_characters(texts: Iterable[str]) -> Iterator[str]:
    """Private characters that occur in none of the texts."""
    used: set[str] = set().union(*texts)
    yield from (chr(number) for number in PRIVATE_CHARACTERS if chr(number) not in used)
    raise UsageError(
        "the messages contain all private characters of Unicode, but qkv needs unused ones; remove some of them"
    )
