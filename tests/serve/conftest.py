"""One server with a model of each kind, for all tests of a worker that do not change it."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from chat_models import TOOL_TEMPLATE, chat_model
from serving import served
from starlette.applications import Starlette
from task_models import decoder, encoder, seq2seq

import qkv


@dataclass
class Running:
    """A server, and the models that it serves."""

    url: str
    app: Starlette
    models: dict[str, qkv.Model]


def make_models() -> dict[str, qkv.Model]:
    labels = qkv.HeadConfig(kind="classify", outputs=3, labels=("bad", "fine", "good"))
    tags = qkv.HeadConfig(kind="tag", outputs=3, labels=("O", "B-PER", "I-PER"))
    models = {
        "text": decoder(max_positions=128),
        "chat": chat_model(),
        "tools": chat_model(1024, TOOL_TEMPLATE),
        "pairs": seq2seq(),
        "classes": encoder(labels),
        "tags": encoder(tags),
        "answers": encoder(qkv.HeadConfig(kind="span", outputs=2)),
        "masks": encoder(qkv.HeadConfig(kind="mlm", outputs=1)),
    }
    for model in models.values():
        model.network.eval()
    return models


@pytest.fixture(scope="session")
def running() -> Iterator[Running]:
    models = make_models()
    with served(models) as (url, app):
        yield Running(url, app, models)
