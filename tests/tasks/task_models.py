"""Small tokenizers and networks that the tests of tasks share."""

from typing import Any

import torch

import qkv
from qkv.data import FileLocation, Record
from qkv.text import Tokenizer

TEXT = "the quick brown fox jumps over the lazy dog and runs in Paris with Anna 0123456789 .,?!-"


def seq2seq_tokenizer() -> Tokenizer:
    return Tokenizer.train("char", iter([TEXT]), 80, special_tokens=["pad", "bos", "eos", "unk"], template="eos")


def bert_tokenizer() -> Tokenizer:
    roles = ["pad", "unk", "cls", "sep", "mask"]
    texts = [TEXT, "a fox and a dog run over it"]
    return Tokenizer.train("wordpiece", iter(texts), 120, special_tokens=roles, template="bert", min_frequency=1)


def stack(tokenizer: Tokenizer, **more: Any) -> qkv.StackConfig:
    sizes: dict[str, Any] = {"vocab_size": tokenizer.vocab_size, "width": 16, "layers": 2, "heads": 2, "ffn_width": 32}
    return qkv.StackConfig(
        **(sizes | {"position": "learned", "max_positions": 64, "dropout": 0.3, "init_std": 0.5} | more)
    )


def model(config: qkv.Config, tokenizer: Tokenizer, seed: int = 1) -> qkv.Model:
    """Fresh weights, left in training mode with dropout: an evaluation must see to that itself."""
    made = qkv.new(config, tokenizer=tokenizer, seed=seed)
    made.network.train()
    return made


def seq2seq(seed: int = 1, **more: Any) -> qkv.Model:
    tokenizer = seq2seq_tokenizer()
    roles, tower = tokenizer.special_tokens, stack(tokenizer, **more)
    head = qkv.HeadConfig(kind="lm", outputs=tokenizer.vocab_size, tied=True)
    ids: dict[str, Any] = {
        "pad_token_id": roles.pad,
        "decoder_start_token_id": roles.bos,
        "eos_token_ids": (roles.eos,),
    }
    return model(qkv.Config(encoder=tower, decoder=tower, head=head, share_embeddings=True, **ids), tokenizer, seed)


def decoder(seed: int = 1, **more: Any) -> qkv.Model:
    tokenizer = seq2seq_tokenizer()
    roles = tokenizer.special_tokens
    head = qkv.HeadConfig(kind="lm", outputs=tokenizer.vocab_size, tied=True)
    config = qkv.Config(
        decoder=stack(tokenizer, **more),
        head=head,
        pad_token_id=roles.pad,
        decoder_start_token_id=roles.bos,
        eos_token_ids=(roles.eos,),
    )
    return model(config, tokenizer, seed)


def encoder(head: qkv.HeadConfig, seed: int = 1, **more: Any) -> qkv.Model:
    tokenizer = bert_tokenizer()
    if head.kind == "mlm":
        head = qkv.HeadConfig(kind="mlm", outputs=tokenizer.vocab_size, tied=True)
    return model(
        qkv.Config(
            encoder=stack(tokenizer, token_types=2, **more), head=head, pad_token_id=tokenizer.special_tokens.pad
        ),
        tokenizer,
        seed,
    )


def records(listed: list[dict[str, Any]]) -> list[Record]:
    return [Record(fields, FileLocation("made", number + 1)) for number, fields in enumerate(listed)]


def parts_of(made: qkv.Model) -> tuple[Any, Any, qkv.Config]:
    return made.network, made.tokenizer, made.config


def weights(made: qkv.Model) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in made.network.parameters()]
