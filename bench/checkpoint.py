"""What saving costs a run: the steps around a save beside those with nothing going on.

    OMP_NUM_THREADS=2 python bench/checkpoint.py --out checkpoint.json        a 27M decoder on a CPU
    python bench/checkpoint.py                                                GPT-2 124M on a GPU

Whole steps are timed one by one. Every `--every` of them a checkpoint of all the weights and both of AdamW's moments is
taken and written in the background, as a run does. Told is how long the loop was held, and what all of it added to the
time of the run: the sum of the steps over the sum of as many undisturbed ones.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from qkv.blocks import HeadConfig, StackConfig
from qkv.data import InMemoryExamples, Loader, SequenceStream
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.models import Config, build
from qkv.models.tables import presets
from qkv.text import Tokenizer
from qkv.train.checkpoint.folder import CheckpointFolder
from qkv.train.checkpoint.manager import CheckpointManager
from qkv.train.loss.training_module import TrainingModule
from qkv.train.optim.optimizers import make_optimizer
from qkv.train.parallel.world import World
from qkv.train.progress import Progress
from qkv.train.recipe.schema import ObjectiveSection, TrainSection
from qkv.train.setup import prepare_module
from qkv.train.step import Stepper

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")


def shape() -> tuple[Config, int, int]:
    """A model, the places in a row, and rows in a step."""
    if GPU:
        return presets.find_preset("gpt2"), 1024, 32
    stack = StackConfig(vocab_size=8000, width=512, layers=7, heads=8, ffn_width=2048, max_positions=128)
    return Config(decoder=stack, head=HeadConfig(kind="lm", outputs=8000, tied=True)), 128, 8


def wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=100 if GPU else 25, help="steps between two saves")
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.manual_seed(0)
    config, length, rows = shape()
    vocab = config.stack.vocab_size
    tokenizer = Tokenizer.train("byte", iter([]), vocab_size=300, special_tokens=["pad", "bos", "eos"])
    texts = InMemoryExamples([{"ids": torch.randint(300, vocab, (length,)).numpy()} for _ in range(64)])
    section = TrainSection(steps=10**6)
    network, world = build(config).to(DEVICE), World(device=DEVICE)
    learner = prepare_module(
        TrainingModule(network, ObjectiveSection()), section, world, compiled=world.device.type == "cuda"
    )
    optimizer = make_optimizer(network.named_parameters(), section, fused=True, capturable=GPU)
    stepper = Stepper(learner, optimizer, section, world)
    loader = Loader(
        SequenceStream(
            CausalLMObjective(texts, tokenizer, max_length=length, add_bos_eos=False), batch_tokens=rows * length
        )
    )
    batches = iter(loader)

    def step(number: int) -> float:
        batch = next(batches)
        start = time.perf_counter()
        stepper(batch, number, 1e-4)
        wait()
        return time.perf_counter() - start

    with tempfile.TemporaryDirectory() as folder:
        checkpoints = CheckpointFolder(Path(folder) / "checkpoints", max_to_keep=2)
        keeper = CheckpointManager(checkpoints, network, stepper, None, loader, {})
        number = 0
        for _ in range(5):
            step(number := number + 1)
        keeper.save(Progress(step=number))  # the first makes room for the copies
        checkpoints.wait_for_save()
        quiet, saved, held = [], [], []
        for _ in range(asked.saves):
            quiet += [step(number := number + 1) for _ in range(asked.every)]
            start = time.perf_counter()
            keeper.save(Progress(step=number))
            held.append(time.perf_counter() - start)
            saved += [step(number := number + 1) for _ in range(asked.every)]
            checkpoints.wait_for_save()
        size = sum(file.stat().st_size for file in checkpoints.newest().folder.rglob("*") if file.is_file())
    found = {
        "device": torch.cuda.get_device_name() if GPU else f"CPU, {torch.get_num_threads()} threads",
        "parameters": sum(p.numel() for p in network.parameters()),
        "checkpoint_mib": size / 2**20,
        "step_ms": 1e3 * statistics.median(quiet),
        "held_ms": 1e3 * statistics.median(held),
        "steps_between_saves": asked.every,
        "added": (sum(saved) + sum(held)) / sum(quiet) - 1,
    }
    for name, value in found.items():
        print(f"{name:<22} {value if not isinstance(value, float) else format(value, ',.4g')}")
    print(f"target: at most 5 % added: {'met' if found['added'] <= 0.05 else 'missed'}")
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
