"""Draw docs/pictures/ratios.svg, the speeds of bench/RESULTS.md beside other libraries:  python docs/draw_ratios.py"""

import re
from pathlib import Path

DOCS = Path(__file__).parent
PICTURE = DOCS / "pictures/ratios.svg"
ROWS = (
    ("train GPT-2, one H200", "transformers, compiled", r"^\| GPT-2 124M, 32 × 1,024 \|.*?\|.*?\| ([\d.]+) \|"),
    ("train BERT, one H200", "transformers, compiled", r"^\| BERT.*?\|.*?\|.*?\| ([\d.]+) \|"),
    ("train a small language model, 2 CPU threads", "Trainer, nanoGPT", r"^\| `language`.* ([\d.]+) \|$"),
    ("fine-tune MiniLM, 2 CPU threads", "Trainer", r"^\| `minilm`.* ([\d.]+) \|$"),
    ("read a prompt in int8, 2 CPU threads", "llama.cpp", r"^\| int8 \(Q8_0\).* ([\d.]+) \|$"),
    ("decode in int8, 2 CPU threads", "llama.cpp", r"^\| int8 \(Q8_0\) \|.*?\|.*?\| ([\d.]+) \|"),
    ("decode in float32, 2 CPU threads", "llama.cpp", r"^\| float32 \(F32\) \|.*?\|.*?\| ([\d.]+) \|"),
)
"""What, beside which library, and where bench/RESULTS.md has the ratio."""
WIDTH, LEFT, ROW, UNIT = 820, 330, 30, 150


def render() -> str:
    """The picture: a bar for each ratio, and a line at 1, where both are equally fast."""
    text = (DOCS.parent / "bench/RESULTS.md").read_text(encoding="utf-8")
    height = ROW * len(ROWS) + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fdfdfc"/>',
    ]
    for number, (what, beside, pattern) in enumerate(ROWS):
        match = re.search(pattern, text, re.MULTILINE)
        assert match, what
        y, length = 14 + number * ROW, float(match[1]) * UNIT
        color = "#1a4fba" if float(match[1]) >= 1 else "#b3541e"
        parts += [
            f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end" fill="#222">{what}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{length:.0f}" height="21" fill="{color}"/>',
            f'<text x="{LEFT + max(length, UNIT) + 6:.0f}" y="{y + 15}" fill="#222">{match[1]} × {beside}</text>',
        ]
    bottom = 14 + len(ROWS) * ROW
    parts += [
        f'<line x1="{LEFT + UNIT}" y1="6" x2="{LEFT + UNIT}" y2="{bottom}" stroke="#222" stroke-dasharray="3 3"/>',
        f'<text x="{LEFT + UNIT}" y="{bottom + 18}" text-anchor="middle" fill="#555">equally fast</text>',
        f'<text x="{LEFT + UNIT + 60}" y="{bottom + 18}" fill="#555">longer bars: qkv is faster</text>',
    ]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(render(), encoding="utf-8")
