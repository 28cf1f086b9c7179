"""How long a person waits before anything happens: `import qkv` and `qkv --help`, beside importing torch.

python bench/start.py --json out.json
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import qkv": [sys.executable, "-c", "import qkv"],
    "qkv --help": [str(Path(sys.executable).with_name("qkv")), "--help"],
    "qkv info gpt2": [str(Path(sys.executable).with_name("qkv")), "info", "gpt2"],
    "import torch": [sys.executable, "-c", "import torch"],
}


def seconds(command: list[str], runs: int) -> list[float]:
    times = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return times[1:]  # the first one fills the file cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    table = Table("command", "median s", "worst s")
    results = {}
    for name, command in COMMANDS.items():
        times = seconds(command, arguments.runs)
        results[name] = {"median": statistics.median(times), "worst": max(times)}
        table.add_row(name, f"{results[name]['median']:.3f}", f"{results[name]['worst']:.3f}")
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
