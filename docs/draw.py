"""Draw the pictures of the documentation:  python docs/draw.py

mask.svg            the mask rule: which keys each query attends to, computed by qkv.blocks.Mask
architecture.svg    how data flows through qkv
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from qkv.blocks import Mask, SequenceLayout, positions_in_documents

PICTURES = Path(__file__).parent / "pictures"
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"
INK, FAINT, PAPER = "#1f2937", "#6b7280", "#ffffff"
COLOURS = ["#e5e7eb", "#2563eb", "#d97706", "#059669"]  # padding, then one for each document


def svg(width: int, height: int, parts: Sequence[str], title: str) -> str:
    """A complete SVG document."""
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' role='img' aria-label='{title}'>"
    return "\n".join([head, f"<rect width='{width}' height='{height}' fill='{PAPER}'/>", *parts, "</svg>\n"])


def text(
    x: float, y: float, words: str, size: int = 13, colour: str = INK, anchor: str = "middle", weight: int = 400
) -> str:
    """One line of text."""
    return (
        f"<text x='{x}' y='{y}' {FONT} font-size='{size}' font-weight='{weight}' fill='{colour}' "
        f"text-anchor='{anchor}'>{words}</text>"
    )


def panel(x: int, y: int, name: str, note: str, mask: Mask) -> list[str]:
    """One mask as a grid of queries (rows) and keys (columns). A visible key has the colour of the query's document."""
    cell = 15
    visible = mask.dense()[0, 0]
    query, key = mask.query.document_ids, mask.key.document_ids
    assert query is not None
    assert key is not None
    out = [text(x, y - 30, name, 15, anchor="start", weight=600), text(x, y - 13, note, 12, FAINT, "start")]
    for j, document in enumerate(key[0].tolist()):
        left, fill = x + j * cell, COLOURS[document]
        out.append(f"<rect x='{left}' y='{y}' width='{cell - 2}' height='5' rx='1' fill='{fill}'/>")
    for i, document in enumerate(query[0].tolist()):
        top = y + 9 + i * cell
        out.append(f"<rect x='{x - 9}' y='{top}' width='5' height='{cell - 2}' rx='1' fill='{COLOURS[document]}'/>")
        for j in range(visible.shape[1]):
            fill = COLOURS[document] if visible[i, j] else "#f3f4f6"
            out.append(
                f"<rect x='{x + j * cell}' y='{top}' width='{cell - 2}' height='{cell - 2}' rx='2' fill='{fill}'/>"
            )
    return out


def layout(*documents: int) -> SequenceLayout:
    """The layout of one sequence with these document ids."""
    document_ids = torch.tensor([documents])
    return SequenceLayout(document_ids, positions_in_documents(document_ids))


def draw_mask() -> str:
    """The mask rule in six settings."""
    padded, packed = layout(1, 1, 1, 1, 1, 1, 0, 0), layout(1, 1, 1, 2, 2, 3, 3, 3)
    source, target = layout(1, 1, 1, 2, 2, 2, 2, 3), layout(1, 1, 2, 2, 2, 3, 3, 0)
    one = layout(*[1] * 8)
    panels = [
        ("padding", "encoder, right-padded document", Mask(padded, padded)),
        ("causal", "decoder, one document", Mask(one, one, causal=True)),
        ("packed", "encoder, three documents", Mask(packed, packed)),
        ("packed, causal", "decoder, three documents", Mask(packed, packed, causal=True)),
        ("sliding window", "two tokens to each side", Mask(one, one, window=2)),
        ("cross-attention", "packed targets and sources", Mask(target, source)),
    ]
    parts = []
    for n, (name, note, mask) in enumerate(panels):
        parts += panel(40 + 250 * (n % 3), 64 + 210 * (n // 3), name, note, mask)
    return svg(770, 420, parts, "The mask rule in six settings")


def box(x: int, y: int, width: int, height: int, name: str, note: str, colour: str) -> list[str]:
    """A rounded box with a name and a note."""
    return [
        f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='8' fill='{colour}' fill-opacity='0.10' "
        f"stroke='{colour}' stroke-width='1.5'/>",
        text(x + width / 2, y + height / 2 - 3, name, 15, weight=600),
        text(x + width / 2, y + height / 2 + 16, note, 12, FAINT),
    ]


def arrow(x1: int, y1: int, x2: int, y2: int, label: str = "") -> list[str]:
    """An arrow with an optional label."""
    out = [f"<path d='M{x1} {y1} L{x2} {y2}' stroke='{FAINT}' stroke-width='1.5' marker-end='url(#tip)' fill='none'/>"]
    if label:
        out.append(text((x1 + x2) / 2, (y1 + y2) / 2 - 7, label, 12, FAINT))
    return out


def draw_architecture() -> str:
    """How data flows through qkv."""
    blue, amber, green, grey = "#2563eb", "#d97706", "#059669", "#6b7280"
    tip = (
        "<defs><marker id='tip' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' markerHeight='7' orient='auto'>"
        f"<path d='M0 0 L10 5 L0 10 z' fill='{FAINT}'/></marker></defs>"
    )
    parts = [tip]
    parts += box(20, 40, 150, 64, "text", "text to token ids", grey)
    parts += box(230, 40, 150, 64, "data", "files to batches", grey)
    parts += arrow(170, 72, 230, 72, "ids")
    parts += box(440, 40, 150, 64, "embedding", "ids to vectors", blue)
    parts += arrow(380, 72, 440, 72, "batches")
    parts += box(650, 40, 150, 64, "stack", "blocks in sequence", blue)
    parts += arrow(590, 72, 650, 72, "vectors")
    parts += box(860, 40, 120, 64, "head", "logits, classes, …", blue)
    parts += arrow(800, 72, 860, 72)
    parts += [
        "<rect x='440' y='140' width='540' height='150' rx='8' fill='#2563eb' fill-opacity='0.05' stroke='#2563eb' "
        "stroke-dasharray='4 4'/>",
        text(710, 163, "one block for all three families", 14, blue, weight=600),
    ]
    for n, (name, note) in enumerate(
        (
            ("self-attention", "with the mask rule"),
            ("cross-attention", "encoder-decoder only"),
            ("feed-forward", "up, activation, down"),
        )
    ):
        parts += box(456 + 176 * n, 178, 158, 62, name, note, blue)
        if n:
            parts += arrow(440 + 176 * n - 2, 209, 456 + 176 * n, 209)
    caption = "norms before, after or both · residual stream · caller owns KV cache and tap"
    parts.append(text(710, 270, caption, 12, FAINT))
    parts += arrow(725, 104, 725, 140)
    parts += box(20, 140, 360, 64, "store", "config.json, safetensors, tokenizer, model card", amber)
    parts += box(20, 226, 360, 64, "models/tables", "mapping to and from Hugging Face checkpoints", amber)
    parts += arrow(380, 172, 440, 172)
    parts += box(20, 326, 300, 64, "train", "recipes, loop, checkpoints, DDP and FSDP2", green)
    parts += box(350, 326, 300, 64, "decode", "greedy, sampling, beam search, engine", green)
    parts += box(680, 326, 300, 64, "tasks", "prepare data, run, evaluate", green)
    parts.append(text(500, 414, "Python API (qkv.load, qkv.train) and command line", 13, FAINT))
    return svg(1000, 430, parts, "How data flows through qkv")


def main() -> None:
    """Write both pictures."""
    PICTURES.mkdir(exist_ok=True)
    for name, picture in (("mask", draw_mask()), ("architecture", draw_architecture())):
        (PICTURES / f"{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
