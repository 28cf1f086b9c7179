"""Check a constraint. `qkv.sandbox` runs this file in a process with limits on time and memory.

llguidance is a native library: a hostile grammar can overflow its stack, which ends the process, or take gigabytes.
A constraint that passes here is safe in other processes, whose threads have larger stacks.
"""

import threading
from functools import cache
from typing import Any

STACK_BYTES = 2**22


class ByteTokenizer:
    """A tokenizer of single bytes, as llguidance expects it."""

    bos_token_id = None
    eos_token_id = 256
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<eos>")

    def __call__(self, data: bytes) -> list[int]:
        """Tokenize text that the constraint forces."""
        return list(data)


@cache
def make_tokenizer() -> Any:
    """Return llguidance's tokenizer of single bytes."""
    import llguidance

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(ByteTokenizer()), eos_token=[256])


def answer(_: None, grammar: str) -> str:
    """Compile a grammar and compute its first mask. Returns the error message, or "" if the grammar is valid."""
    from llguidance import LLMatcher

    messages: list[str] = []

    def check() -> None:
        tokenizer = make_tokenizer()
        if message := LLMatcher.validate_grammar(grammar, tokenizer):
            messages.append(message)
        else:
            LLMatcher(tokenizer, grammar, log_level=0).compute_bitmask()

    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    return messages[0] if messages else ""
