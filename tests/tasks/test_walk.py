"""A plugin's rows, one of each kind, through everything: init, train, kill, resume, info, doctor, trace, look,
generate with and without a cache, serve, save, load, export."""

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from prepare_samples import sample_files
from serving import client
from square_files import describe_colours, make_file

import qkv
from qkv import plugins
from qkv.blocks.parts import PARTS
from qkv.cli import run_command
from qkv.data.modalities import MODALITIES
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.readers.formats import FORMAT_BY_EXTENSION, FORMATS
from qkv.decode.backend import BACKEND_TABLE
from qkv.tables import REGISTERED
from qkv.tasks.scorer import METRICS
from qkv.tasks.table import TASKS
from qkv.tasks.train import open_recipe, train
from qkv.train.tables import OPTIMIZERS, SCHEDULES
from qkv.train.watch import StepReport, Watcher

PLUGIN = "walk_parts"
OPEN_TABLES = (*PARTS.values(), OPTIMIZERS, SCHEDULES, OBJECTIVES, METRICS, FORMATS, BACKEND_TABLE, TASKS, MODALITIES)
TABLES: dict[str, Any] = {table.kind: table for table in OPEN_TABLES}
STEPS, KILLED_AFTER = 6, 4


@dataclass(frozen=True)
class Walk:
    """What is special about the walk of a row."""

    keys: tuple[str, ...]  # overrides of the recipe
    task: str = "language"
    file: str = "book.txt"
    site: str = ""  # that the row's part has
    is_part: bool = False  # the model needs the plugin
    prompt: str = "the cat"


WALKS = {
    "feedforward": Walk(("model.feedforward=experts2",), site="decoder.0.routed", is_part=True),
    "attention": Walk(("model.attention=decay",), site="decoder.0.memory_read", is_part=True),
    "norm": Walk(("model.norm=scale",), is_part=True),
    "position": Walk(("model.position=steps",), is_part=True),
    "block": Walk(("model.block=gained",), is_part=True),
    "whole stack": Walk(("model.family=averages",), site="decoder.0.average", is_part=True),
    "optimizer": Walk(("train.optimizer=lion",)),
    "schedule": Walk(("train.schedule=triangle",)),
    "objective": Walk(("objective.kind=z_loss",)),
    "metric": Walk(("train.metric=same_length", "train.final=best"), "translate", "pairs.tsv"),
    "reader": Walk((), file="book.notes"),
    "front end": Walk(("objective.kind=captions", "data.columns={image='squares', text='text'}"), file="squares.jsonl"),
    "decoding backend": Walk(()),
    "task": Walk((), "shout", "pairs.tsv"),
}


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plugin is not imported yet; at the end of the test it is forgotten."""
    sample_files(tmp_path)
    (tmp_path / "book.notes").write_text("".join(f">{i}\n{'ACDEFGHIKL'[i % 10 :] * (1 + i % 7)}\n" for i in range(60)))
    files = [make_file(1 + number % 2, 2 + number % 3, seed=number) for number in range(60)]
    rows = [{"squares": list(file), "text": describe_colours(file)} for file in files]
    (tmp_path / "squares.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QKV_CACHE_DIR", str(tmp_path / "cache"))
    yield
    forget_plugin()


def forget_plugin() -> None:
    for kind, name in [key for key, module in REGISTERED.items() if module == PLUGIN]:
        TABLES[kind].unregister(name)
    FORMAT_BY_EXTENSION.pop(".notes", None)
    sys.modules.pop(PLUGIN, None)


class Killed(BaseException):
    """Stands in for SIGKILL: no handler of the program runs."""


class Kill(Watcher):
    def on_step(self, report: StepReport) -> None:
        if report.step == KILLED_AFTER:
            raise Killed


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What a command prints as JSON."""
    capsys.readouterr()
    code = run_command([*arguments, "--json"])
    caught = capsys.readouterr()
    assert code == 0, caught.err + caught.out
    return json.loads(caught.out)


def weights(run: str) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in qkv.load(run).network.named_parameters()}


@pytest.mark.parametrize("name", WALKS)
def test_walk(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    walk = WALKS[name]
    # init → train, killed and resumed
    assert run_command(["init", walk.task, walk.file, "--out", "recipe.toml", "--import", PLUGIN]) == 0
    if name == "task":
        assert f'plugins = ["{PLUGIN}"]' in Path("recipe.toml").read_text()
    small = ["model.width=16", "model.layers=1", "model.heads=2", "data.max_length=64", "tokenizer.vocab_size=300"]
    steps = [f"train.steps={STEPS}", "train.minutes=0", "train.batch_tokens=256", "train.save_every=3"]
    log = ["train.log_every=1", "train.eval_every=3", "train.eval_examples=4", "train.device=cpu", "train.patience=0"]
    overrides = [f"plugins=['{PLUGIN}']", *small, *steps, *log, *walk.keys]
    for run, watcher in (("whole", None), ("killed", Kill())):
        recipe = open_recipe("recipe.toml", [*overrides, f"run={run}"])
        if watcher is None:
            train(recipe)
        else:
            with pytest.raises(Killed):
                train(recipe, watch=watcher)
    forget_plugin()  # a new process knows the plugin from the recipe of the run
    train(open_recipe("killed"))
    whole, resumed = weights("whole"), weights("killed")
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)

    model = qkv.load("killed")
    network = model.network
    total = sum(parameter.numel() for parameter in network.parameters())
    assert command(capsys, "info", "killed", "--import", PLUGIN)["total"] == total
    if walk.is_part or name == "front end":
        run_command(["doctor", "killed", "--import", PLUGIN, "--json"])
        checks = json.loads(capsys.readouterr().out)["checks"]
        failed = {one["check"] for one in checks if one["status"] == "failed"}
        assert failed <= {"one batch can be overfitted"}, "such a small model may not memorise a batch"
        assert not any("raised" in one["summary"] for one in checks)
    check_inside(walk, model)
    check_generation(name, model)
    check_server(name, walk, model)
    check_folders(name, walk, model, tmp_path)


def check_inside(walk: Walk, model: qkv.Model) -> None:
    target = "THE" if model.config.family == "seq2seq" else None
    sites = [walk.site] if walk.site else ["*.resid_post"]
    traced = model.trace(walk.prompt, target, sites=sites)
    assert traced.values
    if model.config.has_blocks:
        assert model.look(walk.prompt, target).document["views"]
    else:
        with pytest.raises(qkv.UsageError, match=r"needs Transformer blocks.* trace its own sites.*decoder.0.average"):
            model.look(walk.prompt, target)


def check_generation(name: str, model: qkv.Model) -> None:
    """With the cache, generation computes the same as a forward pass without it, on prompts of unequal length."""
    network, calls = model.network.double(), sys.modules[PLUGIN].CALLS
    calls.clear()
    texts = ["the cat", "a"]
    results = model.generate(texts, max_tokens=4, min_tokens=4)
    assert bool(calls), "the registered backend runs every call"
    for text, result in zip(texts, results, strict=True):
        ids = model.tokenizer.encode(text)  # type: ignore[union-attr]
        if model.config.family == "seq2seq":
            start = [model.config.decoder_start_token_id]
            inputs = qkv.blocks.Inputs(
                torch.tensor([start + result.ids]), source=qkv.blocks.Inputs(torch.tensor([ids]))
            )
            first = 0
        else:
            inputs, first = qkv.blocks.Inputs(torch.tensor([ids + result.ids])), len(ids) - 1
        with torch.no_grad():
            table = network(inputs).log_softmax(-1)[0, first:]
        expected = [float(table[step, token]) for step, token in enumerate(result.ids)]
        assert [one.logprob for one in result.logprobs][: len(expected)] == pytest.approx(expected, abs=1e-6)
    beams = model.generate("the cat", max_tokens=4, min_tokens=4, beam=2)
    assert beams.ids
    network.float()


def check_server(name: str, walk: Walk, model: qkv.Model) -> None:
    is_text = model.config.family == "decoder"
    task = {"metric": "translate", "task": "shout"}.get(name, "complete")
    expected = getattr(model, task)(walk.prompt)
    with client({"walk": model}) as server:
        answer = server.post(f"/{task}", json={"texts": walk.prompt})
        assert answer.json()["results"] == [expected.to_dict()]
        completion = server.post("/v1/completions", json={"model": "walk", "prompt": walk.prompt, "max_tokens": 3})
        if name in ("attention", "whole stack"):
            assert "keeps a state" in completion.json()["error"]["message"]
        elif is_text:
            assert completion.status_code == 200


def check_folders(name: str, walk: Walk, model: qkv.Model, folder: Path) -> None:
    model.save(folder / "saved")
    config = json.loads((folder / "saved/config.json").read_text())
    needs_plugin = walk.is_part or name == "task"
    assert [one["module"] for one in config.get("plugins", ()) if one["module"] == PLUGIN] == [PLUGIN] * needs_plugin
    if needs_plugin:
        (entry,) = (one for one in config["plugins"] if one["module"] == PLUGIN)
        assert (entry["version"], len(entry["hash"])) == ("1.2", 16)
        for format in ("hf", "ctranslate2", "onnx") if walk.is_part else ():
            with pytest.raises(qkv.QkvError, match=f"'{walk.keys[0].split('=')[1]}' of the plugin {PLUGIN}"):
                model.export(folder / "out", format)
    loaded = qkv.load(folder / "saved")
    assert loaded.config == model.config
    assert loaded.run(walk.prompt).to_dict() == model.run(walk.prompt).to_dict()
    forget_plugin()
    if needs_plugin:
        with pytest.raises(qkv.QkvError, match=f"needs the plugin {PLUGIN}: it registers .*--import {PLUGIN}"):
            qkv.load(folder / "saved")
        assert PLUGIN not in sys.modules, "reading a folder imports no code"
        assert run_command(["info", str(folder / "saved"), "--import", PLUGIN]) == 0
    else:
        qkv.load(folder / "saved")


def test_a_changed_plugin_is_noted(tmp_path: Path) -> None:
    importlib.import_module(PLUGIN)
    stack = qkv.StackConfig(vocab_size=9, width=16, layers=1, heads=2, ffn_width=8, norm="scale")
    config = qkv.Config(decoder=stack, head=qkv.HeadConfig(kind="lm", outputs=9), eos_token_ids=(1,))
    qkv.Model(config, qkv.build(config), None).save(tmp_path / "m")
    assert qkv.load(tmp_path / "m").notes == []
    values = json.loads((tmp_path / "m/config.json").read_text())
    values["plugins"][0]["version"] = "1.1"
    (tmp_path / "m/config.json").write_text(json.dumps(values))
    (note,) = qkv.load(tmp_path / "m").notes
    assert "made with the plugin walk_parts 1.1" in note
    assert "this is walk_parts 1.2" in note


def test_a_child_process_imports_the_plugins_of_its_parent(capsys: pytest.CaptureFixture[str]) -> None:
    """`verify-resume` trains in processes of its own, one of which is really killed."""
    importlib.import_module(PLUGIN)
    assert PLUGIN in plugins.child_environment()[plugins.VARIABLE].split(",")
    recipe = 'run = "r"\n[data]\ntrain = "book.txt"\nmax_length = 64\n[tokenizer]\nkind = "char"\n'
    recipe += '[model]\nwidth = 16\nlayers = 1\nnorm = "scale"\n[objective]\nkind = "causal_lm"\n'
    recipe += '[train]\nsteps = 4\nbatch_tokens = 128\noptimizer = "lion"\ndevice = "cpu"\n'
    Path("r.toml").write_text(recipe)
    path = Path(sys.modules[PLUGIN].__file__ or "")
    search = ":".join([str(path.parent), str(path.parents[1] / "front_ends")])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", search, prepend=":")
        assert command(capsys, "verify-resume", "r.toml", "--steps", "4")["identical"]


def test_a_missing_plugin_says_how_to_import_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["info", "gpt2", "--import", "no_such_module"]) == 2
    assert "cannot import the plugin no_such_module" in capsys.readouterr().err
    Path("r.toml").write_text('plugins = ["walk_parts"]\n[data]\ntrain = "dates"\n[train]\nsteps = 1\n')
    with pytest.raises(qkv.QkvError, match=r"r.toml: needs the plugin walk_parts: pass --import walk_parts"):
        qkv.train.recipe.recipe_file.read("r.toml")
    assert open_recipe("r.toml").plugins == (PLUGIN,)
    forget_plugin()
    Path("other_plugin.py").write_text("")
    assert open_recipe("r.toml", ["plugins=['other_plugin']"]).plugins == ("other_plugin",), "the file needs its own"
    sys.modules.pop("other_plugin")
