"""Small models of all three families with tokenizers, for tests of `qkv look`."""

from typing import Any

import qkv

TEXTS = ["the cat chased the mouse", "le chat", "14 mai 1989", "<b>&amp;"]


def make_model(family: str, **choices: Any) -> qkv.Model:
    """A model with random weights and a character tokenizer."""
    special_tokens = ["pad", "bos", "eos", "unk", "mask"]
    template = "eos" if family == "seq2seq" else "none"
    tokenizer = qkv.Tokenizer.train(
        "char", iter(TEXTS), 60, special_tokens=special_tokens, template=template, min_frequency=1
    )
    vocab_size = len(tokenizer)
    size = {"width": 16, "layers": 2, "heads": 3, "head_dim": 8, "ffn_width": 24, "max_positions": 48, "init_std": 0.4}
    stack = qkv.StackConfig(**{"vocab_size": vocab_size, "position": "learned", **size, **choices})
    bos, eos = tokenizer.special_tokens.bos, tokenizer.special_tokens.eos
    assert eos is not None
    config = qkv.Config(
        encoder=stack if family != "decoder" else None,
        decoder=stack if family != "encoder" else None,
        head=qkv.HeadConfig(kind="mlm" if family == "encoder" else "lm", outputs=vocab_size),
        decoder_start_token_id=bos if family == "seq2seq" else None,
        eos_token_ids=() if family == "encoder" else (eos,),
        pad_token_id=tokenizer.special_tokens.pad,
    )
    return qkv.new(config, tokenizer=tokenizer)
