"""Tools: functions that a model can call instead of replying with a text.

A chat template shows the tools to the model, and writes the calls of earlier replies. So the template is asked how a
call is written: a call of a made-up tool is rendered, and the texts around its name and its arguments are the format.
The reply is constrained to it, and the arguments to the JSON schema of the tool.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from qkv.errors import QkvError, UsageError, shorten, suggest_name
from qkv.text.chat_template import CONTROL_TOKEN_FORMAT, JinjaChatTemplate

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
ToolChoice = Literal["auto", "none", "required"]
CHOICES = ("auto", "none", "required")
EXAMPLE_NAME, EXAMPLE_ARGUMENTS = "example_of_a_tool", {"example_key": "example_value"}
EXAMPLE = re.compile(
    rf'(.*?){EXAMPLE_NAME}(.*?)\{{\s*"example_key"\s*:\s*"example_value"\s*\}}([^{CONTROL_TOKEN_FORMAT[0]}]*)',
    re.DOTALL,
)


@dataclass(frozen=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON schema of its arguments, an object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not TOOL_NAME.fullmatch(self.name):
            name = shorten(repr(self.name))
            raise UsageError(f"the name of the tool {name} is not 1 to 64 letters, digits, underscores and hyphens")
        if not isinstance(self.parameters, Mapping) or self.parameters.get("type") != "object":
            raise UsageError(f'tool {self.name}: parameters must be a JSON schema with "type": "object"')

    def to_dict(self) -> dict[str, Any]:
        """The form that chat templates expect."""
        described = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": described}


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool in the reply of a model. The caller runs the tool, and adds its result to the chat."""

    name: str
    arguments: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The form in a message of the assistant, under `tool_calls`."""
        return {"type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True)
class CallFormat:
    """How a model writes a call: three texts around the name and the arguments."""

    before: str
    between: str
    after: str

    def parse(self, text: str) -> ToolCall | None:
        """The call in a reply; None if it is another text, or a call that was cut off."""
        text = text.strip()
        if not (text.startswith(self.before.lstrip()) and text.endswith(self.after.rstrip())):
            return None
        inner = text[len(self.before.lstrip()) : len(text) - len(self.after.rstrip())]
        name, found, arguments = inner.partition(self.between)
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
        return ToolCall(name, value) if found and isinstance(value, dict) else None

    def may_begin(self, text: str) -> bool:
        """Whether a reply that begins with this text may be a call."""
        text, before = text.lstrip(), self.before.lstrip()
        return before.startswith(text) or text.startswith(before)

    def make_grammar(self, tools: Sequence[Tool], *, needs_call: bool) -> str:
        """A grammar of the replies: one call with valid arguments or, unless `needs_call`, a text that is no call."""
        calls = [f"call_{i}: {quote(self.before + tool.name + self.between)} arguments_{i}{quote_end(self.after)}"
                 for i, tool in enumerate(tools)]  # fmt: skip
        schemas = [f"arguments_{i}: %json {write_schema(tool.parameters)}" for i, tool in enumerate(tools)]
        names = [f"call_{i}" for i in range(len(tools))]
        if needs_call:
            return "\n".join([f"start: {' | '.join(names)}", *calls, *schemas])
        begin = "".join(rf"\x{{{ord(character):x}}}" for character in self.before.strip())
        text = rf"TEXT: /(?s:.*)/ & ~/\s*(?s:{begin}.*)/"
        return "\n".join([f"start: {' | '.join([*names, 'TEXT'])}", *calls, *schemas, text])


class CallFilter:
    """Withholds the beginning of a streamed reply until it cannot be a call any more."""

    def __init__(self, form: CallFormat, on_text: Callable[[str], None]) -> None:
        self.form, self.on_text = form, on_text
        self.withheld: str | None = ""  # None: the reply is a text

    def add(self, text: str) -> None:
        """The next part of the reply."""
        if self.withheld is None:
            self.on_text(text)
            return
        self.withheld += text
        if not self.form.may_begin(self.withheld):
            self.on_text(self.withheld)
            self.withheld = None

    def close(self) -> ToolCall | None:
        """The call. If the reply is not one, what is still withheld is forwarded."""
        call = self.form.parse(self.withheld or "")
        if self.withheld and call is None:
            self.on_text(self.withheld)
        return call


def quote(text: str) -> str:
    """A text as a string of a grammar."""
    return json.dumps(text, ensure_ascii=False)


def quote_end(text: str) -> str:
    """The text after the arguments as a string of a grammar. White space at its end is left to the template."""
    return f" {quote(text.rstrip())}" if text.strip() else ""


def write_schema(schema: Mapping[str, Any]) -> str:
    """A JSON schema in a grammar. Its JSON has the white space that Python writes."""
    return json.dumps(
        {**schema, "x-guidance": {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}}
    )


def make_tools(tools: Sequence["Tool | Mapping[str, Any]"]) -> list[Tool]:
    """Tools from `Tool`s or dictionaries with a name, a description and parameters, also as OpenAI's API nests them."""
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise UsageError(f"tools must be a list of tools, got a {type(tools).__name__}")
    made = [one if isinstance(one, Tool) else _make_tool(one) for one in tools]
    names = [tool.name for tool in made]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"two tools have the name {sorted(twice)[0]}; rename one")
    return made


def _make_tool(value: Any) -> Tool:
    given = value.get("function", value) if isinstance(value, Mapping) else value
    known = ("name", "description", "parameters", "strict")
    if not isinstance(given, Mapping) or "name" not in given or not set(given) <= set(known):
        raise UsageError(
            f'{shorten(repr(value))} is not a tool; write {{"name": "…", "description": "…", "parameters": {{…}}}}, '
            "where parameters is a JSON schema"
        )
    return Tool(**{name: given[name] for name in known[:3] if given.get(name) is not None})


def choose_tools(tools: Sequence[Tool], choice: str) -> list[Tool]:
    """The tools that may be called: all of them, or the one whose name is the choice."""
    if choice in CHOICES:
        return [] if choice == "none" else list(tools)
    chosen = [tool for tool in tools if tool.name == choice]
    if not chosen:
        hint = suggest_name(choice, [*CHOICES, *(tool.name for tool in tools)])
        raise UsageError(f"tool_choice = {shorten(repr(choice))} is not the name of a tool; {hint}")
    return chosen


def find_call_format(template: JinjaChatTemplate) -> CallFormat:
    """How the model of a template writes a call. An error if its template has no tools, or writes them differently."""
    tool = Tool(EXAMPLE_NAME, "An example.", {"type": "object", "properties": {"example_key": {"type": "string"}}})
    chat: list[Any] = [{"role": "user", "content": "x"}]
    call = {"role": "assistant", "content": "", "tool_calls": [ToolCall(EXAMPLE_NAME, EXAMPLE_ARGUMENTS).to_dict()]}
    try:
        start = template.render_text(chat, tools=[tool.to_dict()])
        whole = template.render_text([*chat, call], add_generation_prompt=False, tools=[tool.to_dict()])
    except QkvError as error:
        raise UsageError(f"the chat template of this model cannot write the call of a tool: {error}") from None
    found = EXAMPLE.match(whole, len(start)) if whole.startswith(start) and EXAMPLE_NAME in start else None
    if found is None or CONTROL_TOKEN_FORMAT[0] in found[1] + found[2] or not found[1].strip():
        raise UsageError(
            "the chat template of this model has no tools, or writes their calls in another form than JSON; leave out "
            "tools, or use a model that was trained with them"
        )
    return CallFormat(found[1], found[2], found[3])
