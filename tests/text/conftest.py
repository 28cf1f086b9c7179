"""A small corpus in several scripts, and one trained tokenizer of each kind over it."""

import io

import pytest

from qkv.text import Tokenizer
from qkv.text.train import TOKENIZER_KINDS

SENTENCES = [
    "The cat sat on the mat, and the dog lay by the door.",
    "Transformers read every token of a sentence at the same time.",
    "Ein kleines Mädchen öffnet die größte Tür im Haus.",
    "L'été dernier, nous étions à la plage avec des élèves.",
    "El niño pequeño corre por la montaña mañana.",
    "Привет, как дела? Сегодня хорошая погода.",
    "Η γάτα κάθεται στο χαλί.",
    "今日は天気がいいですね。東京へ行きます。",
    "今天天气很好，我们去公园吧。",
    "שלום עולם, מה שלומך היום?",
    "مرحبا بالعالم، كيف حالك اليوم؟",
    "नमस्ते दुनिया, आप कैसे हैं?",
    "def add(a, b):\n    return a + b  # 12 + 30 = 42",
    "A family 👨‍👩‍👧 and a flag 🇫🇷, café and naïve.",
]


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    return SENTENCES * 8


@pytest.fixture(scope="session")
def trained(corpus) -> dict[str, Tokenizer]:
    """One tokenizer of each kind, with every role, sentinels, and a template that ends a text."""
    roles = ["pad", "bos", "eos", "unk", "mask", "sep", "cls"]
    return {
        kind: Tokenizer.train(
            kind, iter(corpus), 700, special_tokens=roles, num_sentinels=4, template="eos", min_frequency=1
        )
        for kind in TOKENIZER_KINDS
    }


@pytest.fixture(params=TOKENIZER_KINDS)
def tokenizer(request, trained) -> Tokenizer:
    return trained[request.param]


@pytest.fixture(scope="session")
def sentencepiece_model(corpus):
    """Train a small SentencePiece model with the real package; the same options give the same bytes."""
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    made: dict[str, bytes] = {}

    def make(**options) -> bytes:
        key = repr(sorted(options.items()))
        if key not in made:
            settings = {"vocab_size": 600, "hard_vocab_limit": False, "minloglevel": 2, "num_threads": 1} | options
            lines = [line for text in corpus for line in text.split("\n")]
            writer = io.BytesIO()
            trainer.train(sentence_iterator=iter(lines), model_writer=writer, **settings)
            made[key] = writer.getvalue()
        return made[key]

    return make
