"""Small files for every objective, as users have them, and recipes for them."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from qkv.train.recipe.schema import DataSection, ModelSection, ObjectiveSection, Recipe, TokenizerSection, TrainSection

TEXT = "the a cat dog house tree runs sleeps green red big small over under near and or Paris Berlin Anna Bob"
WORDS = TEXT.split()
COUNT = 120

KINDS = {
    "seq2seq": "pairs.tsv",
    "causal_lm": "book.txt",
    "masked_lm": "book.txt",
    "next_sentence": "book.txt",
    "span_corruption": "book.txt",
    "denoising": "book.txt",
    "classification": "moods.csv",
    "tagging": "names.conll",
    "question_answering": "questions.jsonl",
    "contrastive": "alike.jsonl",
}
"""A file for each objective."""


def sample_files(folder: Path) -> None:
    """Write all of them; the same each time."""
    draw = random.Random(0)

    def sentence(words: int = 7) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(words)).capitalize() + "."

    def lines(name: str, rows: list[str]) -> None:
        (folder / name).write_text("".join(row + "\n" for row in rows), encoding="utf-8")

    def objects(name: str, rows: list[dict[str, Any]]) -> None:
        lines(name, [json.dumps(row) for row in rows])

    said = [sentence() for _ in range(COUNT)]
    lines("pairs.tsv", ["source\ttarget", *(f"{text}\t{text.upper()}" for text in said)])
    lines("a.en", said)
    lines("a.de", [text.upper() for text in said])
    lines("languages.tsv", ["en\tde", *(f"{text}\t{text.upper()}" for text in said)])
    (folder / "book.txt").write_text("\n\n".join(" ".join(sentence() for _ in range(5)) for _ in range(60)))
    lines("moods.csv", ["text,label", *(f"{text},{draw.choice(['good', 'bad'])}" for text in said)])
    objects("two.jsonl", [{"premise": t, "hypothesis": sentence(3), "label": draw.randrange(3)} for t in said])
    objects("scores.jsonl", [{"sentence1": t, "sentence2": sentence(3), "score": draw.random()} for t in said])
    lines("names.conll", [w for t in said for w in [*(f"{w} {'B-LOC' if 'r' in w else 'O'}" for w in t.split()), ""]])
    questions = []
    for _ in range(COUNT):
        context = " ".join(sentence() for _ in range(3))
        word = draw.choice(context.split())
        answers = {"text": [word], "answer_start": [context.index(word)]}
        questions.append({"question": f"Where is {word}?", "context": context, "answers": answers})
    objects("questions.jsonl", questions)
    objects("alike.jsonl", [{"anchor": text, "positive": text.lower()} for text in said])
    turns = [[{"role": "user", "content": t}, {"role": "assistant", "content": t.upper()}] for t in said]
    objects("chat.jsonl", [{"messages": one} for one in turns])


def sample_recipe(folder: Path, kind: Any, file: Any = "", **sections: dict[str, Any]) -> Recipe:
    """A tiny recipe for one of them, with further keys by section."""
    given = file or KINDS[kind]

    def at(name: Any) -> Any:
        if isinstance(name, dict):
            return {field: at(one) for field, one in name.items()}
        return tuple(map(at, name)) if isinstance(name, tuple) else str(folder / name)

    recipe = Recipe(
        run=str(folder / "run"),
        data=DataSection(train=at(given), max_length=256, valid_fraction=0.15, cache_dir=str(folder / "cache")),
        tokenizer=TokenizerSection(vocab_size=420),
        model=ModelSection(overrides={"width": 32, "layers": 1}),
        objective=ObjectiveSection(kind=kind),
        train=TrainSection(steps=2, batch_tokens=1024),
    )
    for name, keys in sections.items():
        recipe = replace(recipe, **{name: replace(getattr(recipe, name), **keys)})
    return recipe
