"""The model card, which is the README.md of a model folder."""

from collections.abc import Mapping
from pathlib import Path

from qkv.errors import QkvError
from qkv.files import read_text
from qkv.models import Config

CARD_FIELDS = ("data", "scores", "licence")


def model_card(config: Config, parameters: int, load_class: str, card_fields: Mapping[str, str] | None = None) -> str:
    """The text of a card with the config and `card_fields`. Fields of `CARD_FIELDS` that are missing are marked."""
    card_fields = {**dict.fromkeys(CARD_FIELDS, "not recorded"), **(card_fields or {})}
    stack = config.stack
    kinds = {"encoder": "encoder-only", "decoder": "decoder-only", "seq2seq": "encoder-decoder"}
    head = "" if config.head.kind == "none" else f", {config.head.kind} head"
    depth = f"{config.encoder.layers} + {stack.layers}" if config.encoder and config.decoder else str(stack.layers)
    model = f"A recurrent model ({stack.block.upper()})" if stack.is_recurrent else "A Transformer"
    load = f"transformers.{load_class}.from_pretrained(folder)"
    if load_class == config.family:
        load = "qkv.load(folder)"
    elif load_class == "SentenceTransformer":
        load = "sentence_transformers.SentenceTransformer(folder)"
    return "\n".join(
        [
            "# Model card",
            "",
            f"{model}, {kinds[config.family]}{head}: {parameters:,} parameters.",
            "",
            "| | |",
            "|---|---|",
            f"| layers | {depth} |",
            f"| width | {stack.width} |",
            *([] if stack.is_recurrent else [f"| heads | {stack.heads} of dim {stack.head_dim} |"]),
            f"| vocabulary | {stack.vocab_size:,} |",
            *([] if stack.is_recurrent else [f"| positions | {stack.position} |"]),
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
