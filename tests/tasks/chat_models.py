"""A tiny model with a chat template."""

import qkv
from qkv.blocks import HeadConfig, StackConfig
from qkv.text import Tokenizer

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    '{% for c in m.tool_calls or [] %}<call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat_model(max_positions: int = 256, template: str | None = CHAT_TEMPLATE) -> qkv.Model:
    """A decoder with random weights over bytes."""
    names = {"unk": "<|endoftext|>", "bos": "<|im_start|>", "eos": "<|im_end|>"}
    tokenizer = Tokenizer.train("byte", iter([]), 259, special_tokens=names)
    if template:
        tokenizer.config["chat_template"] = template
    stack = StackConfig(
        vocab_size=259, width=16, layers=1, heads=2, ffn_width=32, position="learned", max_positions=max_positions
    )
    config = qkv.Config(decoder=stack, head=HeadConfig(kind="lm", outputs=259, tied=True), eos_token_ids=(0,))
    return qkv.new(config, tokenizer=tokenizer)
