"""`qkv run` of a model that speaks: the speech is written to a file."""

import json as json_format
from pathlib import Path

import numpy as np

from qkv.api import Model
from qkv.cli.input_lines import InputLines
from qkv.errors import UsageError
from qkv.files import report_write_errors, write_atomically
from qkv.sounds.write import encode_sound
from qkv.tasks.verbs.speak import find_sound_format

DEFAULT_FILE = Path("speech.wav")


def run_speech(
    model: Model, lines: InputLines, speaker: str | None, speed: float, out: Path | None, json: bool
) -> None:
    """Speak the texts one after the other, and write one file."""
    out = out or DEFAULT_FILE
    format = find_sound_format(out)
    texts = [text for chunk in lines for text in chunk if text.strip()]
    if not texts:
        raise UsageError('there is nothing to speak; give a text, such as "three nine"')
    found = model.speak(texts, batch_size=lines.batch_size, speaker=speaker, speed=speed)
    content = encode_sound(np.concatenate([one.samples for one in found]), found[0].rate, format)
    with report_write_errors(out):
        write_atomically(out, content)
    if json:
        for text, one in zip(texts, found, strict=True):
            print(json_format.dumps({"input": text, "file": str(out), "rate": one.rate, "duration": one.duration}))
    else:
        print(f"wrote {out}: {sum(one.duration for one in found):.2f} seconds")
