"""How long training takes from the shell to a given quality, with empty compiler caches, beside a peer in one run.

    python bench/time_to_quality.py shakespeare --data input.txt --nanogpt path/to/nanoGPT
    python bench/time_to_quality.py multi30k --data data/multi30k --target 38

The clock starts with the process and stops when a checkpoint is complete. Quality is measured afterwards, outside the
clock, on the checkpoints of fixed steps, with one measure for both: the loss of all characters of the validation part
(the last tenth of the text, in windows of 256), or tokenised BLEU of the 2016 test set with greedy decoding.

nanoGPT runs its own train.py with its own config. Only its evaluation is reduced to one batch, because it would count
in the clock. Its folder must hold data/shakespeare_char, as its prepare.py makes it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import qkv

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WINDOW = 256
SEEDS = (1, 2, 3)


def start(
    command: list[str], cache: Path, log: Path, folder: Path | None = None
) -> tuple[subprocess.Popen[bytes], float]:
    """Start a process with empty caches of compiled code, and the clock."""
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "PYTHONPATH": os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path),
    }
    begin = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
    return process, begin


def wait_for(process: subprocess.Popen[bytes], begin: float, collect: Callable[[], Iterator[int]]) -> dict[int, float]:
    """Return the time at which the checkpoint of each step was complete. `collect` yields new steps."""
    seconds: dict[int, float] = {}
    while True:
        ended = process.poll() is not None
        for step in collect():
            seconds.setdefault(step, time.perf_counter() - begin)
        if ended:
            return seconds
        time.sleep(0.02)


def run_qkv(folder: Path, arguments: list[str]) -> dict[int, float]:
    """Train with qkv. The checkpoints stay in the run folder."""
    command = [sys.executable, "-m", "qkv", "train", *arguments, f"run={folder / 'run'}"]
    process, begin = start(command, folder / "cache", folder / "log.txt")
    checkpoints = folder / "run" / "checkpoints"

    def collect() -> Iterator[int]:
        for path in checkpoints.glob("step-*[0-9]") if checkpoints.exists() else ():
            yield int(path.name.removeprefix("step-"))

    seconds = wait_for(process, begin, collect)
    if process.returncode:
        raise SystemExit((folder / "log.txt").read_text()[-2000:])
    return seconds


def run_nanogpt(folder: Path, checkout: Path, steps: int) -> dict[int, float]:
    """Train with nanoGPT. It overwrites one checkpoint file, so each version is copied."""
    out = folder / "nanogpt"
    out.mkdir()
    command = [sys.executable, "train.py", "config/train_shakespeare_char.py", f"--out_dir={out}", "--eval_iters=1"]
    command += ["--always_save_checkpoint=True", f"--max_iters={steps}"]
    process, begin = start(command, folder / "nanogpt_cache", folder / "nanogpt.txt", checkout)
    seen = {0.0}

    def collect() -> Iterator[int]:
        path = out / "ckpt.pt"
        changed = path.stat().st_mtime if path.exists() else 0.0
        if changed in seen:
            return
        try:
            step = int(torch.load(path, weights_only=True, mmap=True, map_location="cpu")["iter_num"])
        except Exception:  # the file is still being written
            return
        shutil.copy(path, out / f"{step}.pt")
        seen.add(changed)
        yield step

    seconds = wait_for(process, begin, collect)
    if process.returncode:
        raise SystemExit((folder / "nanogpt.txt").read_text()[-2000:])
    return seconds


@torch.no_grad()
def character_loss(logits_of: Callable[[Tensor], Tensor], ids: Tensor) -> float:
    """Return the mean loss of all characters of a text, in windows that do not overlap."""
    windows = (len(ids) - 1) // WINDOW
    inputs, targets = (ids[first : first + windows * WINDOW].view(windows, WINDOW) for first in (0, 1))
    total = 0.0
    for start_window in range(0, windows, 64):
        logits = logits_of(inputs[start_window : start_window + 64].to(DEVICE)).float()
        chosen = targets[start_window : start_window + 64].to(DEVICE)
        total += float(F.cross_entropy(logits.flatten(0, 1), chosen.flatten(), reduction="sum"))
    return total / (windows * WINDOW)


def score_qkv(folder: Path, step: int, text: str) -> float:
    """Return the loss of one of our checkpoints."""
    model = qkv.load(folder / "run" / "checkpoints" / f"step-{step:09d}", device=DEVICE)
    ids = torch.tensor(model.tokenizer.encode(text, add_special_tokens=False))
    return character_loss(lambda inputs: model.network(inputs), ids)


def score_nanogpt(folder: Path, checkout: Path, step: int, text: str) -> float:
    """Return the loss of one of nanoGPT's checkpoints, with its own model."""
    if str(checkout) not in sys.path:
        sys.path.append(str(checkout))
    from model import GPT, GPTConfig  # nanoGPT's

    saved = torch.load(folder / "nanogpt" / f"{step}.pt", weights_only=True, map_location="cpu")
    model = GPT(GPTConfig(**saved["model_args"]))
    model.load_state_dict({name.removeprefix("_orig_mod."): value for name, value in saved["model"].items()})
    model.to(DEVICE).eval()
    numbers = {character: number for number, character in enumerate(sorted(set(text_of(ARGUMENTS.data))))}
    ids = torch.tensor([numbers[character] for character in text])
    return character_loss(lambda inputs: model(inputs, inputs)[0], ids)  # with targets it returns all logits


def text_of(path: Path) -> str:
    """Return the text of a file."""
    return path.read_text(encoding="utf-8")


def first_below(losses: dict[int, float], seconds: dict[int, float], target: float) -> dict[str, Any]:
    """Return the first step that reached the target, its time, and all measurements."""
    reached = [step for step in sorted(losses) if losses[step] <= target]
    found = {"step": reached[0], "seconds": seconds[reached[0]]} if reached else {"step": None, "seconds": None}
    return {**found, "best": min(losses.values(), default=None), "losses": losses, "times": seconds}


def shakespeare() -> list[dict[str, Any]]:
    """Tiny Shakespeare to a validation loss."""
    text = text_of(ARGUMENTS.data)
    valid = text[int(0.9 * len(text)) :]
    rows = []
    for seed in SEEDS[: ARGUMENTS.seeds]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            saves = ["train.save_every=50", "train.keep_checkpoints=1000", "train.eval_every=1000000"]
            arguments = ["shakespeare-char", f"data.train={ARGUMENTS.data.resolve()}", f"train.seed={seed}", *saves]
            seconds = run_qkv(folder, [*arguments, *ARGUMENTS.set])
            losses = {step: score_qkv(folder, step, valid) for step in sorted(seconds)}
            rows.append({"who": "qkv", "seed": seed, **first_below(losses, seconds, ARGUMENTS.target)})
            show(rows[-1])
    if ARGUMENTS.nanogpt:
        with tempfile.TemporaryDirectory() as name:
            folder, checkout = Path(name), ARGUMENTS.nanogpt.resolve()
            seconds = run_nanogpt(folder, checkout, ARGUMENTS.peer_steps)
            losses = {step: score_nanogpt(folder, checkout, step, valid) for step in sorted(seconds)}
            rows.append({"who": "nanoGPT", "seed": 1337, **first_below(losses, seconds, ARGUMENTS.target)})
            show(rows[-1])
    return rows


def multi30k() -> list[dict[str, Any]]:
    """Multi30k English to German to a BLEU score (the loss is 100 − BLEU here)."""
    data = ARGUMENTS.data.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [f"data.{part}={{source='{data}/{file}.en',target='{data}/{file}.de'}}"
                 for part, file in (("train", "train"), ("valid", "val"))]  # fmt: skip
        saves = ["train.save_every=250", "train.keep_checkpoints=1000", "train.eval_every=1000000"]
        seconds = run_qkv(folder, ["multi30k", *files, *saves, *ARGUMENTS.set])
        losses = {}
        for step in sorted(seconds):
            checkpoint = folder / "run" / "checkpoints" / f"step-{step:09d}"
            command = [sys.executable, "-m", "qkv", "eval", str(checkpoint), f"source={data}/test_2016_flickr.en"]
            command += [f"target={data}/test_2016_flickr.de", "--metric", "tokenised_bleu", "--json"]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            losses[step] = 100 - found["metrics"]["tokenised_bleu"]
        row = {"who": "qkv", "seed": 1, **first_below(losses, seconds, 100 - ARGUMENTS.target)}
        show(row)
        return [row]


def show(row: dict[str, Any]) -> None:
    """Print one result."""
    at = f"step {row['step']} after {row['seconds']:.1f} s" if row["step"] else "not reached"
    print(f"{row['who']:8} seed {row['seed']}: {at}; best {row['best']:.4f}", flush=True)
    print("   " + "  ".join(f"{step}: {row['times'][step]:.1f} s {loss:.4f}" for step, loss in row["losses"].items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["shakespeare", "multi30k"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--target", type=float, default=1.4697, help="a loss, or BLEU for multi30k")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT with its data prepared")
    parser.add_argument("--peer-steps", type=int, default=3000, help="steps that the peer takes")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds of ours")
    parser.add_argument("--set", action="append", default=[], help="key=value for the recipe")
    parser.add_argument("--out", type=Path)
    ARGUMENTS = parser.parse_args()
    found_rows = shakespeare() if ARGUMENTS.task == "shakespeare" else multi30k()
    if ARGUMENTS.out:
        ARGUMENTS.out.write_text(json.dumps(found_rows, indent=1) + "\n")
