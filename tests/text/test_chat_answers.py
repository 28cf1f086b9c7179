"""Training on chats: the ids are those of the rendered text, and the mask has the answers and their end tokens."""

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from text_strategies import QUICK
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from qkv.errors import QkvError
from qkv.text import Tokenizer
from qkv.text.chat_template import JinjaChatTemplate, Message
from qkv.text.kinds import TOKENIZER_KINDS


def byte_tokenizer(*special: AddedToken | str) -> Tokenizer:
    backend = Backend(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<|end|>", *special])
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"})


BYTES = byte_tokenizer()
MADE: dict[str, JinjaChatTemplate] = {}  # kept between the examples of a property


def turns(user: str, assistant: str) -> str:
    """A template with one expression for a message of the user, and one for a message of the assistant."""
    choice = "{% if m['role'] == 'assistant' %}" + assistant + "{% else %}" + user + "{% endif %}"
    return "{% for m in messages %}" + choice + "{% endfor %}"


# A template, and what it writes for an answer with its end token.
TEMPLATES: dict[str, tuple[str, Callable[[str], str]]] = {
    "llama2": (
        turns(
            "{{ bos_token + '[INST] ' + m['content'].strip() + ' [/INST]' }}",
            "{{ ' ' + m['content'].strip() + ' ' + eos_token }}",
        ),
        lambda answer: answer.strip() + " </s>",
    ),
    "phi3": (
        "{% for m in messages %}{{ m['role'] + '\n' + m['content'] + '<|end|>\n' }}{% endfor %}{{ eos_token }}",
        lambda answer: answer + "<|end|>",
    ),
    "llama3": (
        "{% for m in messages %}{{ m['role'] + '\n\n' + m['content'] | trim + '<|end|>' }}{% endfor %}",
        lambda answer: answer.strip() + "<|end|>",
    ),
    "only the user's messages stripped": (
        turns("U: {{ m['content'] | trim }}\n", "A: {{ m['content'] }}</s>"),
        lambda answer: answer + "</s>",
    ),
    "only the answers stripped": (
        turns("{{ 'U:' + m['content'] + '\n' }}", "{{ 'A:' + m['content'].strip() + '\n</s>' }}"),
        lambda answer: answer.strip() + "\n</s>",
    ),
    "lstrip": (
        turns("<s>Q:{{ m['content'].lstrip() }}:A", "{{ m['content'].lstrip() + eos_token }}"),
        lambda answer: answer.lstrip() + "</s>",
    ),
    "rstrip": (
        turns("<s>Q:{{ m['content'].rstrip() }}:A", "{{ m['content'].rstrip() + eos_token }}"),
        lambda answer: answer.rstrip() + "</s>",
    ),
    "no end token": ("{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}.", lambda answer: answer),
    "control tokens only before messages": (
        turns("<s>{{ m['content'] }}", "<|end|>{{ m['content'] }}\n"),
        lambda answer: answer,
    ),
}
PARTS = [
    " ",
    "\n",
    "\t",
    "a",
    "yo",
    "é",
    "👩",
    "<",
    "|>",
    "</s>",
    "<|end|>",
    "<|e",
    "nd|>",
    "</s",
    "[INST]",
    "assistant",
    "A:",
]
CONTENTS = st.lists(st.sampled_from(PARTS), max_size=5).map("".join)


def chat(*contents: str) -> list[Message]:
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


@pytest.mark.parametrize("name", TEMPLATES)
@given(contents=st.tuples(CONTENTS, CONTENTS, CONTENTS, CONTENTS))
@example(contents=("hi", "yo", "hi", "yo"))
@example(contents=(" hi\n", "\n yo \n", "\nhi ", " yo"))
@settings(max_examples=30, **QUICK)
def test_the_ids_are_those_of_the_rendered_chat_and_the_mask_has_the_answers(
    name: str, contents: tuple[str, ...]
) -> None:
    source, write_answer = TEMPLATES[name]
    template = MADE.setdefault(name, JinjaChatTemplate(BYTES, source))
    ids, mask = template.encode_answers(chat(*contents))
    assert ids == template.encode(chat(*contents), add_generation_prompt=False)
    answers = [i for i, is_answer in zip(ids, mask, strict=True) if is_answer]
    expected = "".join(write_answer(answer) for answer in contents[1::2])
    assert BYTES.decode(answers, skip_special_tokens=False) == expected


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
@given(contents=st.tuples(*[st.lists(st.sampled_from([" ", "\n", "the cat", "é", "12", "?"])).map("".join)] * 2))
@settings(max_examples=20, **QUICK)
def test_every_kind_of_tokenizer_has_the_ids_of_the_rendered_chat(
    kind: str, contents: tuple[str, str], trained
) -> None:
    template = MADE.setdefault(kind, JinjaChatTemplate(trained[kind], TEMPLATES["llama2"][0]))
    ids, mask = template.encode_answers(chat(*contents))
    rendered = f"<s>[INST] {contents[0].strip()} [/INST] {contents[1].strip()} </s>"
    assert ids == template.encode(chat(*contents), add_generation_prompt=False)
    assert ids == trained[kind].backend.encode(rendered, add_special_tokens=False).ids
    assert mask == sorted(mask)  # the answer comes last
    assert mask[-1] == 1
    assert mask[0] == 0


def test_control_tokens_that_strip_white_space_are_not_part_of_an_answer() -> None:
    tokenizer = byte_tokenizer(
        AddedToken("<|assistant|>", rstrip=True), AddedToken("<|stop|>", lstrip=True, rstrip=True)
    )
    source = turns("{{ m['content'] }}", "<|assistant|>\n{{ m['content'] }} <|stop|>\n")
    ids, mask = JinjaChatTemplate(tokenizer, source).encode_answers(chat("hi", " yo ", "hi"))
    assert ids == tokenizer.backend.encode("hi<|assistant|>\n yo  <|stop|>\nhi", add_special_tokens=False).ids
    answers = [i for i, is_answer in zip(ids, mask, strict=True) if is_answer]
    assert tokenizer.decode(answers, skip_special_tokens=False) == "yo<|stop|>"


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m['content'] | replace('a', 'b') }}</s>{% endfor %}",
        "{% for m in messages %}{% if 'a' in m['content'] %}!{% endif %}{{ m['content'] }}</s>{% endfor %}",
        "{% for m in messages %}{{ m['content'] }}{% if 'a' in m['content'] %}!{% endif %}</s>{% endfor %}",
        "{% for m in messages %}{{ m['content'] }}</s>{% endfor %}{% if 'a' in messages[0]['content'] %}!{% endif %}",
        "{% for m in messages %}{{ m['content'].split('a')[-1] }}</s>{% endfor %}",
    ],
)
def test_answers_that_cannot_be_found_are_an_error(source: str) -> None:
    template = JinjaChatTemplate(BYTES, source)
    with pytest.raises(QkvError, match="cannot find the answers"):
        template.encode_answers(chat("cat", "yes"))
    assert sum(template.encode_answers(chat("hi", "yes"))[1]) == 4  # only of a chat that it changes
