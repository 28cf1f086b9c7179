"""The reply of a model in a chat: the prompt from the template, the history cut to the context, the generation."""

import copy
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from qkv.decode import generate
from qkv.decode.constrained.bounds import check_schema
from qkv.decode.constrained.constraints import GrammarConstraint, grammar
from qkv.decode.result import FinishReason
from qkv.errors import ContextLengthError, UsageError
from qkv.models import Network
from qkv.models.runtime import eval_mode
from qkv.tasks.chat.tools import CallFilter, CallFormat, Tool, ToolCall, choose_tools, find_call_format, make_tools
from qkv.tasks.results import Result, one_line
from qkv.tasks.run.generate import make_generation_options
from qkv.tasks.text_model import TextModel
from qkv.text.chat_template import JinjaChatTemplate, Message, check_message
from qkv.values import HIDDEN, check_value

log = logging.getLogger("qkv")

DEFAULT_MAX_TOKENS = 512
MIN_REPLY_TOKENS = 64
"""The history is cut so that a reply of this length, or of `max_tokens` if that is less, fits into the context."""
PLAIN_STOP = ("\nUser:", "\nSystem:")

OnReplyText = Callable[[str], None]


@dataclass(frozen=True, repr=False)
class ChatReply(Result):
    """The reply of a model in a chat. `messages` is the chat with the reply at its end, for the next call."""

    text: str
    finish_reason: FinishReason
    ids: list[int]
    score: float  # the log-probability of the reply
    messages: list[Message] = field(metadata=HIDDEN)
    num_dropped: int = 0  # old messages that the model did not see, because its context is too short
    tool_calls: tuple[ToolCall, ...] = ()  # the call of a tool, instead of a text

    def summary(self) -> str:
        """The text in one line."""
        return one_line(self.body())

    def body(self) -> str:
        """The text, or the call of a tool."""
        calls = [f"{call.name}({json.dumps(call.arguments, ensure_ascii=False)})" for call in self.tool_calls]
        return "\n".join(calls) or self.text


class Chat:
    """A model with its chat template."""

    def __init__(self, model: TextModel, template: str | None = None) -> None:
        self.model = model
        self.template = JinjaChatTemplate(model.tokenizer, template)
        self.network = self._add_end_token(model.network)

    def reply(
        self,
        messages: str | Sequence[Message],
        system: str | None = None,
        *,
        special: bool = False,
        on_text: OnReplyText | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        tools: Sequence[Tool | Mapping[str, Any]] = (),
        tool_choice: str = "auto",
        **options: Any,
    ) -> ChatReply:
        """Generate the assistant's reply to the last message: a text, or the call of one of the `tools`.

        `tool_choice` is "auto", "required" for a call, "none", or the name of the tool to call.
        """
        check_value(bool, special, "special")
        listed = make_messages(messages, system)
        shown = choose_tools(make_tools(tools), tool_choice)
        generation = make_generation_options({"max_tokens": max_tokens, **options})
        if shown:
            if generation.constraint is not None:
                raise UsageError("tools constrain the reply, so they exclude constraint; leave out one of them")
            generation = replace(generation, constraint=self.constrain_to_tools(shown, tool_choice))
        if self.template.is_plain:
            generation = replace(generation, stop=(*generation.stop, *PLAIN_STOP))
        context = self.model.config.stack.max_positions
        ids, num_dropped = self.truncate_history(listed, min(generation.max_tokens, MIN_REPLY_TOKENS), special, shown)
        if context:
            generation = replace(generation, max_tokens=min(generation.max_tokens, context - len(ids)))
        if num_dropped:
            log.warning(
                f"the chat is longer than the model's context of {context:,} tokens, so the model does not see its "
                f"first {num_dropped} messages"
            )

        shown_text = CallFilter(self.call_format, on_text) if shown and on_text is not None else None
        forward = on_text if shown_text is None else shown_text.add
        callback = None if forward is None else lambda _, text: forward(text)
        with eval_mode(self.network):
            (result,) = generate(self.network, [ids], generation, self.model.tokenizer, callback)
        text = result.text.strip() if self.template.is_plain else result.text
        if shown_text is not None:
            shown_text.close()
        call = self.call_format.parse(text) if shown else None
        if call is not None:
            message: Message = {"role": "assistant", "content": "", "tool_calls": [call.to_dict()]}
            return ChatReply(
                "", result.finish_reason, result.ids, result.score, [*listed, message], num_dropped, (call,)
            )
        history = [*listed, {"role": "assistant", "content": text}]
        return ChatReply(text, result.finish_reason, result.ids, result.score, history, num_dropped)

    @cached_property
    def call_format(self) -> CallFormat:
        """How the model writes the call of a tool; an error if its template has no tools."""
        return find_call_format(self.template)

    def constrain_to_tools(self, tools: Sequence[Tool], choice: str) -> GrammarConstraint:
        """A constraint of the reply: the call of a tool with valid arguments or, if the choice allows it, a text."""
        for tool in tools:
            check_schema(tool.parameters)
        return grammar(self.call_format.make_grammar(tools, needs_call=choice != "auto"))

    def truncate_history(
        self, messages: Sequence[Message], reply_tokens: int, special: bool = False, tools: Sequence[Tool] = ()
    ) -> tuple[list[int], int]:
        """The ids of the longest end of a chat that leaves room for a reply, and how many messages were left out.

        The oldest messages are left out first, and the remaining chat begins with a message of the user. The system
        prompt and the last message are always kept.
        """
        max_prompt = self.model.config.stack.max_positions - reply_tokens
        is_unlimited = self.model.config.stack.max_positions == 0
        num_system = int(messages[0]["role"] == "system")
        starts = [i for i in range(num_system, len(messages)) if i == num_system or messages[i]["role"] == "user"]
        if not starts:
            raise UsageError("the chat has only a system prompt; add a message of the user to reply to")

        def encode_from(start: int) -> list[int]:
            chat = [*messages[:num_system], *messages[start:]]
            return self.template.encode(chat, special=special, tools=[tool.to_dict() for tool in tools])

        ids = encode_from(starts[0])
        if is_unlimited or len(ids) <= max_prompt:
            return ids, 0
        low, high, fitting = 1, len(starts) - 1, (ids, -1)
        while low <= high:  # the first start from which the chat fits
            middle = (low + high) // 2
            ids = encode_from(starts[middle])
            if len(ids) <= max_prompt:
                fitting, high = (ids, starts[middle] - num_system), middle - 1
            else:
                low = middle + 1
        if fitting[1] < 0:
            raise ContextLengthError(
                f"the last message and the system prompt have {len(ids):,} tokens, but the model's context has "
                f"{self.model.config.stack.max_positions:,}, of which {reply_tokens} are for the reply; shorten them"
            )
        return fitting

    def _add_end_token(self, network: Network) -> Network:
        """The network; the token that ends the assistant's message becomes one of its end tokens."""
        if self.template.is_plain:
            return network
        end_token = self.template.find_end_token()
        if end_token is None or end_token in network.config.eos_token_ids:
            return network
        changed = copy.copy(network)  # shares all weights
        changed.config = replace(network.config, eos_token_ids=(*network.config.eos_token_ids, end_token))
        return changed


def make_messages(messages: str | Sequence[Message], system: str | None) -> list[Message]:
    """The messages of a chat as a list; a text is one message of the user."""
    given: Any = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray):
        raise UsageError(f"m.chat takes a text or a list of messages, got a {type(messages).__name__}")
    listed: list[Message] = list(given)
    for number, message in enumerate(listed):
        check_message(message, number)
    if not listed:
        raise UsageError('the list of messages is empty; give at least one: {"role": "user", "content": "…"}')
    if system is not None:
        if listed[0]["role"] == "system":
            raise UsageError("system= is given, but the messages already begin with a system prompt; leave out one")
        listed = [{"role": "system", "content": system}, *listed]
    return listed
