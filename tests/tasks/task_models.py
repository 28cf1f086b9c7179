"""Small tokenizers and networks that the tests of tasks share."""

from typing import Any

import torch

import qkv
from qkv.data import Record, Where
from qkv.text import Tokenizer

TEXT = "the quick brown fox jumps over the lazy dog and runs in Paris with Anna 0123456789 .,?!-"


def seq2seq_tokenizer() -> Tokenizer:
    return Tokenizer.train("char", iter([TEXT]), 80, roles=["pad", "start", "end", "unknown"], template="end")


def bert_tokenizer() -> Tokenizer:
    roles = ["pad", "unknown", "classify", "separator", "mask"]
    texts = [TEXT, "a fox and a dog run over it"]
    return Tokenizer.train("wordpiece", iter(texts), 120, roles=roles, template="bert", min_count=1)


def stack(tokenizer: Tokenizer, **more: Any) -> qkv.StackConfig:
    sizes: dict[str, Any] = {"vocab": tokenizer.size, "width": 16, "layers": 2, "heads": 2, "ffn_width": 32}
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
    roles, tower = tokenizer.roles, stack(tokenizer, **more)
    head = qkv.HeadConfig(kind="lm", outputs=tokenizer.size, tied=True)
    ids: dict[str, Any] = {"pad": roles.pad, "start": roles.start, "end": (roles.end,)}
    return model(qkv.Config(encoder=tower, decoder=tower, head=head, shared_embedding=True, **ids), tokenizer, seed)


def decoder(seed: int = 1, **more: Any) -> qkv.Model:
    tokenizer = seq2seq_tokenizer()
    roles = tokenizer.roles
    head = qkv.HeadConfig(kind="lm", outputs=tokenizer.size, tied=True)
    config = qkv.Config(decoder=stack(tokenizer, **more), head=head, pad=roles.pad, start=roles.start, end=(roles.end,))
    return model(config, tokenizer, seed)


def encoder(head: qkv.HeadConfig, seed: int = 1, **more: Any) -> qkv.Model:
    tokenizer = bert_tokenizer()
    if head.kind == "mlm":
        head = qkv.HeadConfig(kind="mlm", outputs=tokenizer.size, tied=True)
    return model(
        qkv.Config(encoder=stack(tokenizer, types=2, **more), head=head, pad=tokenizer.roles.pad), tokenizer, seed
    )


def records(listed: list[dict[str, Any]]) -> list[Record]:
    return [Record(fields, Where("made", number + 1)) for number, fields in enumerate(listed)]


def parts_of(made: qkv.Model) -> tuple[Any, Any, qkv.Config]:
    return made.network, made.tokenizer, made.config


def weights(made: qkv.Model) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in made.network.parameters()]
