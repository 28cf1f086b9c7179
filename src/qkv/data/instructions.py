"""Instructions and their responses, as in the data of Alpaca and Dolly: chats of one question and one answer."""

from dataclasses import replace
from typing import Any

from qkv.data.records import Record


def make_chat(record: Record) -> Record:
    """A record with `instruction`, `response` and perhaps `input`, as a record with `messages`.

    The user's message is the instruction and, after an empty line, the input. A value that is not a text stays as it
    is, for the encoder to report.

    >>> from qkv.data.records import FileLocation
    >>> fields = {"instruction": "Add.", "input": "1 and 2", "response": "3"}
    >>> [message["content"] for message in make_chat(Record(fields, FileLocation("train.json"))).fields["messages"]]
    ['Add.\\n\\n1 and 2', '3']
    """
    question: Any = record.fields["instruction"]
    added = record.fields.get("input")
    if isinstance(question, str) and isinstance(added, str) and added.strip():
        question = f"{question}\n\n{added}"
    turns = (("user", question), ("assistant", record.fields["response"]))
    return replace(record, fields={"messages": [{"role": role, "content": text} for role, text in turns]})
