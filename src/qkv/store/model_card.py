"""The model card, which is the README.md of a model folder. Its first lines are metadata, which a hub reads."""

from collections.abc import Mapping
from pathlib import Path

from qkv.errors import QkvError
from qkv.files import read_text
from qkv.models import Config

CARD_FIELDS = ("data", "scores", "licence")
PIPELINE_TAGS = {
    "translate": "translation",
    "summarise": "summarization",
    "describe": "image-to-text",
    "ask": "visual-question-answering",
    "draw": "text-to-image",
    "mlm": "fill-mask",
    "classify": "text-classification",
    "tag": "token-classification",
    "span": "question-answering",
    "choice": "multiple-choice",
    "embed": "sentence-similarity",
}
"""Task or kind of head → what a hub calls the task."""
LIBRARIES = {"SentenceTransformer": "sentence-transformers"}
"""The class that loads a folder → the library, where it is not transformers."""


def hub_metadata(config: Config, load_class: str) -> list[str]:
    """The lines of YAML at the top of a card: by them, a hub finds, filters and runs models."""
    library = "qkv" if load_class == config.family else LIBRARIES.get(load_class, "transformers")
    tag = PIPELINE_TAGS.get(config.task or "") or PIPELINE_TAGS.get(config.head.kind, "")
    if config.head.kind == "lm" and not tag:
        tag = "text-generation" if config.encoder is None else "translation"
    if tag == "text-classification" and any(end.kind == "patches" for end in config.front_ends):
        tag = "image-classification"
    lines = [f"library_name: {library}", *([f"pipeline_tag: {tag}"] if tag else []), "tags:", "- qkv"]
    return ["---", *lines, "---", ""]


def model_card(config: Config, parameters: int, load_class: str, card_fields: Mapping[str, str] | None = None) -> str:
    """The text of a card with the config and `card_fields`. Fields of `CARD_FIELDS` that are missing are marked."""
    card_fields = {**dict.fromkeys(CARD_FIELDS, "not recorded"), **(card_fields or {})}
    stack = config.stack
    kinds = {"encoder": "encoder-only", "decoder": "decoder-only", "seq2seq": "encoder-decoder"}
    head = "" if config.head.kind == "none" else f", {config.head.kind} head"
    depth = f"{config.encoder.layers} + {stack.layers}" if config.encoder and config.decoder else str(stack.layers)
    model = "A Transformer" if stack.has_blocks else f"A model of {stack.block.upper()} layers"
    load = f"transformers.{load_class}.from_pretrained(folder)"
    if load_class == config.family:
        load = "qkv.load(folder)"
    elif load_class == "SentenceTransformer":
        load = "sentence_transformers.SentenceTransformer(folder)"
    return "\n".join(
        [
            *hub_metadata(config, load_class),
            "# Model card",
            "",
            f"{model}, {kinds[config.family]}{head}: {parameters:,} parameters.",
            "",
            "| | |",
            "|---|---|",
            f"| layers | {depth} |",
            f"| width | {stack.width} |",
            *([f"| heads | {stack.heads} of dim {stack.head_dim} |"] if stack.has_blocks else []),
            f"| vocabulary | {stack.vocab_size:,} |",
            *([f"| positions | {stack.position} |"] if stack.has_blocks else []),
            f"| load with | `{load}` |",
            *(f"| {name} | {value} |" for name, value in card_fields.items()),
            "",
        ]
    )


def read_card(folder: Path) -> dict[str, str]:
    """The fields in the tables of a folder's model card, by name. Empty if there is no card that can be read."""
    try:
        text = read_text(folder / "README.md")
    except QkvError:
        return {}
    rows = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return {row[0].strip(): row[1].strip() for row in rows if len(row) == 2}
