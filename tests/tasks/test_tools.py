"""A model with tools replies with a text or with a valid call, in the format of its own chat template."""

import json
from typing import Any

import pytest
from chat_models import CHAT_TEMPLATE, TOOL_TEMPLATE, chat_model

from qkv.errors import UsageError
from qkv.tasks.chat.tools import CallFilter, CallFormat, Tool, ToolCall, find_call_format, make_tools
from qkv.text.chat_template import JinjaChatTemplate

WEATHER = {
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 3}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
CLOCK = {"name": "clock"}
LLAMA_LIKE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n\n"
    "{% if tools and m.role == 'user' %}{{ tools | tojson }}{% endif %}"
    "{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}"
    '{{ \'{"name": "\' + c.name + \'", "parameters": \' }}{{ c.arguments | tojson }}}'
    "{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
CONTROL = TOOL_TEMPLATE.replace("<call>", "<|endoftext|>").replace("</call>", "")


@pytest.fixture(scope="module")
def model() -> Any:
    return chat_model(1024, TOOL_TEMPLATE)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (TOOL_TEMPLATE, CallFormat('<call>\n{"name": "', '", "arguments": ', "}\n</call>")),
        (LLAMA_LIKE, CallFormat('{"name": "', '", "parameters": ', "}")),
    ],
)
def test_the_template_says_how_a_call_is_written(template: str, expected: CallFormat) -> None:
    found = find_call_format(JinjaChatTemplate(chat_model(template=template).tokenizer))
    assert found == expected
    call = ToolCall("weather", {"city": "Rome", "note": 'a "quote" and }'})
    text = found.before + call.name + found.between + json.dumps(call.arguments) + found.after
    assert found.parse(text) == found.parse(f"\n{text}\n") == call
    assert found.parse(text[:-3]) is None
    assert found.parse("Hello") is None


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, CONTROL])
def test_a_template_without_tools_is_an_error(template: str) -> None:
    with pytest.raises(UsageError, match="has no tools"):
        chat_model(template=template).chat("hello", tools=[WEATHER])


@pytest.mark.parametrize("seed", range(4))
def test_a_required_call_is_valid(model: Any, seed: int) -> None:
    reply = model.chat("hello", tools=[WEATHER, CLOCK], tool_choice="weather", temperature=1.0, seed=seed)
    (call,) = reply.tool_calls
    assert call.name == "weather"
    assert call.arguments.keys() == {"city", "days"}
    assert call.arguments["city"] in ("Rome", "Oslo")
    assert call.arguments["days"] in (1, 2, 3)
    assert (reply.text, reply.finish_reason) == ("", "end")
    result = {"role": "tool", "content": "sunny"}
    again = model.chat([*reply.messages, result], tools=[WEATHER], tool_choice="none", max_tokens=4)
    assert not again.tool_calls
    assert "weather(" in str(reply.body())


def test_a_free_reply_is_a_text_or_a_valid_call(model: Any) -> None:
    reply = model.chat("hello", tools=[WEATHER], temperature=1.0, seed=0, max_tokens=30)
    assert reply.text
    assert not reply.tool_calls
    shown: list[str] = []
    model.chat("hello", tools=[WEATHER], temperature=1.0, seed=0, max_tokens=30, on_text=shown.append)
    assert "".join(shown) == reply.text


def test_a_stream_withholds_a_call_and_nothing_else() -> None:
    form = CallFormat('<call>{"name": "', '", "arguments": ', "}</call>")
    call = '<call>{"name": "f", "arguments": {}}</call>'
    for text, expected in (
        (call, ToolCall("f", {})),
        ("<calm", None),
        ("Hi <call>", None),
        (call[:-1], None),
        ("", None),
    ):
        shown: list[str] = []
        calls = CallFilter(form, shown.append)
        for character in text:
            calls.add(character)
        assert calls.close() == expected
        assert "".join(shown) == ("" if expected else text)


def test_text_in_arguments_and_tools_cannot_become_a_control_token(model: Any) -> None:
    template = JinjaChatTemplate(model.tokenizer)
    end = model.tokenizer.special_tokens.eos
    tool = Tool("f", "Ends with <|im_end|>", {"type": "object", "properties": {"<|im_end|>": {"type": "string"}}})
    call = ToolCall("f", {"<|im_end|>": "a<|im_end|>"}).to_dict()
    plain = ToolCall("f", {"x": "y"}).to_dict()
    user = {"role": "user", "content": "x"}

    def count(call: Any, tool: Tool) -> int:
        chat = [user, {"role": "assistant", "content": "", "tool_calls": [call]}]
        return template.encode(chat, tools=[tool.to_dict()]).count(end)

    assert count(call, tool) == count(plain, Tool("f")) == 3


@pytest.mark.parametrize(
    ("tools", "options", "message"),
    [
        ([{"name": "a b"}], {}, "letters, digits"),
        ([WEATHER, WEATHER], {}, "two tools have the name weather"),
        ([{"nam": "x"}], {}, "is not a tool"),
        ("weather", {}, "must be a list of tools"),
        ([{"name": "f", "parameters": {"type": "string"}}], {}, '"type": "object"'),
        ([WEATHER], {"tool_choice": "wether"}, "did you mean 'weather'"),
    ],
)
def test_wrong_tools_are_named(model: Any, tools: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        model.chat("hello", tools=tools, **options)


def test_tools_are_read_from_both_forms() -> None:
    assert (
        make_tools([WEATHER])
        == make_tools([{"type": "function", "function": WEATHER}])
        == make_tools([Tool(**WEATHER)])
    )
