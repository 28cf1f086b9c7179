"""The example of docs/research.md: its commands run, on little data, and its part computes what its docstring says."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import qkv
from qkv.blocks.parts import PARTS
from qkv.cli import run_command
from qkv.decode import GenerationOptions, generate
from qkv.models import build
from qkv.models.tables.summary import summarise_model

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/research.md"
NAME = "short_convolution"
LITTLE = ["data.train=text.txt", "tokenizer.kind=char", "train.steps=2", "train.eval_every=0", "train.batch_tokens=256"]
LITTLE += ["model.width=16", "model.layers=1", "model.heads=2", "data.max_length=32"]


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the example, with a text."""
    shutil.copytree(ROOT / "examples" / NAME, tmp_path, dirs_exist_ok=True)
    (tmp_path / "text.txt").write_text("".join(f"the cat number {i} sees {i * i} dogs\n" for i in range(300)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("QKV_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path
    PARTS["attention"].unregister(NAME)
    sys.modules.pop(NAME, None)


def test_the_commands_of_the_page_run(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    commands = [
        line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.strip().splitlines()
    ]
    assert {shlex.split(command)[1] for command in commands} == {"doctor", "train", "study"}
    for command in commands:
        _, verb, recipe, *rest = shlex.split(command)
        assert run_command([verb, recipe, *LITTLE, *rest]) == 0, capsys.readouterr()
    result = json.loads((example / "runs/base-study/results.json").read_text())
    base, ours = result["rows"]
    assert [base["name"], ours["name"]] == ["softmax", NAME]
    assert ours["parameters"] - base["parameters"] == 3 * 16
    assert not result["flops_are_counted"]


def test_the_part_is_the_convolution_that_it_says(example: Path) -> None:
    __import__(NAME)
    stack = qkv.StackConfig(vocab_size=12, width=16, layers=2, heads=2, ffn_width=24, attention=NAME, init_std=0.3)
    config = qkv.Config(decoder=stack, head=qkv.HeadConfig(kind="lm", outputs=12), eos_token_ids=(1,))
    torch.manual_seed(0)
    network = build(config, dtype=torch.float64).eval()
    assert summarise_model(config).total == sum(parameter.numel() for parameter in network.parameters())
    ids = torch.tensor([[5, 6, 7, 3, 9, 2]])
    before = network(ids)
    with torch.no_grad():
        for block in network.stacks["decoder"].blocks:
            block.attention.taps.normal_(std=0.5)
    assert not torch.allclose(network(ids), before, atol=1e-3)
    packed = qkv.blocks.Inputs(torch.tensor([[5, 6, 7, 3, 9, 2]]), document_ids=torch.tensor([[1, 1, 1, 2, 2, 2]]))
    alone = torch.cat([network(ids[:, :3]), network(ids[:, 3:])], dim=1)
    torch.testing.assert_close(network(packed), alone)
    selected = torch.tensor([[5]])
    x, _ = network.hidden(ids)
    torch.testing.assert_close(network.hidden(ids, selected=selected)[0], x[0, 5:])
    for result, prompt in zip(
        generate(network, [[5, 6, 7, 3], [8]], GenerationOptions(max_tokens=5, min_tokens=5)),
        ([5, 6, 7, 3], [8]),
        strict=True,
    ):
        table = network(torch.tensor([prompt + result.ids])).log_softmax(-1)[0, len(prompt) - 1 :].detach()
        expected = [float(table[step, token]) for step, token in enumerate(result.ids)]
        assert [one.logprob for one in result.logprobs] == pytest.approx(expected, abs=1e-9)
