"""Parts of one's own: every slot takes a module from outside the package, and everything around it works."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.blocks.attention import SelfAttention, make_attention
from qkv.blocks.block import Block
from qkv.blocks.parts import PARTS
from qkv.blocks.position import Rotary
from qkv.blocks.recurrent import RecurrentStack
from qkv.cli import run_command
from qkv.decode import GenerationOptions, generate
from qkv.decode.backend import REFERENCE, choose_backend
from qkv.inside.doctor.subject import random_batch
from qkv.inside.sites import list_sites
from qkv.models import Config, build
from qkv.models.tables.summary import summarise_model
from qkv.store.export_ctranslate2 import unsupported_settings
from qkv.tasks.prepare.memory import stack_bytes
from qkv.tasks.prepare.model import ModelRequirements, modern_stack
from qkv.train.loss.training_module import TrainingModule, make_labelled_batch
from qkv.train.parallel.tensor_parallel import check_divisible
from qkv.train.recipe.schema import ObjectiveSection

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"
SIZE: dict[str, Any] = {"vocab_size": 12, "width": 16, "layers": 2, "heads": 2, "ffn_width": 24, "max_positions": 64}
PROMPT = [5, 6, 7, 3]


RECIPE = """
run = "{folder}/run"
[data]
train = "{folder}/text.txt"
max_length = 32
[tokenizer]
kind = "char"
[model]
width = 16
layers = 2
{keys}
[objective]
kind = "causal_lm"
[train]
steps = 2
batch_tokens = 128
device = "cpu"
"""


class Scale(nn.Module):
    """A norm without a norm."""

    def __init__(self, config: Any, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


class Steps(nn.Module):
    """A position that adds p to the first number of each vector."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.width = config.width

    def forward(self, positions: Tensor) -> Tensor:
        return nn.functional.pad(positions[..., None] / 8, (0, self.width - 1))


class Slow(nn.Module):
    """Rotary positions, at half the speed."""

    def __init__(self, config: Any, base: float) -> None:
        super().__init__()
        self.width, self.base = config.head_dim, base

    def forward(self, positions: Tensor, dtype: torch.dtype, window: int = 0) -> Rotary:
        return Rotary(positions / 2, self.width, self.base, None, dtype)


class Near(nn.Module):
    """A bias of −distance²."""

    def __init__(self, config: Any, causal: bool) -> None:
        super().__init__()

    def forward(self, queries: Tensor, keys: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        return -((queries[:, None, :, None] - keys[:, None, None, :]) ** 2).to(dtype)


class Doubled(SelfAttention):
    """Attention whose output counts twice."""

    def forward(self, *arguments: Any, **named: Any) -> Tensor:
        return 2 * super().forward(*arguments, **named)


class Gained(Block):
    """A block with a learned gain."""

    def __init__(self, config: Any, *, cross: bool = False, skip_norm: bool = False) -> None:
        super().__init__(config, cross=cross, skip_norm=skip_norm)
        self.gain = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, *arguments: Any, **named: Any) -> Tensor:
        return super().forward(x, *arguments, **named) * self.gain


class Minimal(RecurrentStack):
    """A whole stack: a GRU whose outputs count twice."""

    def forward(self, *arguments: Any, **named: Any) -> Tensor:
        return 2 * super().forward(*arguments, **named)


def attention(config: Any, *, cross: bool = False) -> nn.Module:
    return make_attention(config, cross=True) if cross else Doubled(config)


OWN: dict[str, tuple[str, dict[str, Any]]] = {
    "doubled": ("attention", {"build": attention}),
    "scale": ("norm", {"build": Scale}),
    "steps": ("position", {"build": Steps, "place": "embedding"}),
    "slow": ("position", {"build": Slow, "place": "rotation", "options": {"base": 100.0}}),
    "near": ("position", {"build": Near, "place": "scores"}),
    "gained": ("block", {"build": Gained}),
    "minimal": ("block", {"build": Minimal, "options": {"layer": "GRU"}, "sites": ["state"], "is_stack": True}),
    "squared": ("feedforward", {}),  # the example of CONTRIBUTING.md
}


def unregister() -> None:
    for name, (slot, _) in OWN.items():
        PARTS[slot].unregister(name)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """All parts above, in the table for the duration of a test."""
    section = PAGE.read_text(encoding="utf-8").split("## Add a part\n")[1].split("\n## ")[0]
    exec(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0], {"__name__": "squared"})
    for name, (slot, row) in OWN.items():
        if row:
            qkv.register_part(slot, name, **row)  # type: ignore[arg-type]
    yield
    unregister()


def config_with(name: str) -> Config:
    size = {**SIZE, "heads": 0, "ffn_width": 0} if name == "minimal" else SIZE
    stack = qkv.StackConfig(**{**size, "position": "none", OWN[name][0]: name})
    head = qkv.HeadConfig(kind="lm", outputs=12)
    return Config(decoder=stack, head=head, pad_token_id=0, decoder_start_token_id=2, eos_token_ids=(1,))


def log_probs(network: Any, ids: list[int]) -> list[float]:
    with torch.no_grad():
        table = network(torch.tensor([PROMPT + ids])).log_softmax(-1)[0, len(PROMPT) - 1 :]
    return [float(table[step, token]) for step, token in enumerate(ids)]


@pytest.mark.parametrize("name", OWN)
def test_a_part_of_ones_own_changes_the_network_and_decodes_as_it_computes(name: str, tmp_path: Path) -> None:
    config, slot = config_with(name), OWN[name][0]
    assert config.decoder is not None
    torch.manual_seed(0)
    model = qkv.Model(config, build(config, dtype=torch.float64).eval(), None)
    network: Any = model.network
    torch.manual_seed(0)
    plain = replace(
        config, decoder=replace(config.decoder, **{slot: "gru" if name == "minimal" else next(iter(PARTS[slot]))})
    )
    assert log_probs(build(plain, dtype=torch.float64).eval(), [4, 8]) != pytest.approx(log_probs(network, [4, 8]))
    assert choose_backend(network, GenerationOptions()) is REFERENCE
    result = generate(network, [PROMPT], GenerationOptions(max_tokens=6, min_tokens=6))[0]
    assert [one.logprob for one in result.logprobs] == pytest.approx(log_probs(network, result.ids), abs=1e-9)
    model.save(tmp_path)
    loaded = qkv.load(tmp_path)
    assert loaded.config == config
    assert log_probs(loaded.network.double(), result.ids) == pytest.approx(log_probs(network, result.ids), abs=1e-4)


@pytest.mark.parametrize("name", OWN)
def test_parameters_that_a_part_does_not_state_are_counted(name: str) -> None:
    config = config_with(name)
    summary = summarise_model(config)
    assert summary.total == sum(parameter.numel() for parameter in build(config, device="meta").parameters())
    assert summary.unstated_flops == (() if name == "squared" else (f"{OWN[name][0]} = {name!r}",))


def test_a_stated_cost_counts_as_that_of_a_built_in_part() -> None:
    config = config_with("squared")
    assert config.decoder is not None
    built_in = replace(config, decoder=replace(config.decoder, feedforward="relu"))
    assert summarise_model(config).flops_forward == summarise_model(built_in).flops_forward
    assert summarise_model(config).parameters == summarise_model(built_in).parameters
    assert stack_bytes(config.decoder, 10, 4, False) > 0


def test_info_counts_the_network_if_a_part_states_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(config: Any, width: int) -> qkv.PartCost:
        return qkv.PartCost({"norms": 1}, 0)

    qkv.register_part("norm", "scale", build=Scale, cost=wrong, replace=True)
    config = config_with("scale")
    network = build(config)
    qkv.Model(config, network, None).save(tmp_path)
    assert run_command(["info", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    total = sum(parameter.numel() for parameter in network.parameters())
    assert f"{total:,}" in out
    assert re.search(rf"other +{5 * 16 - 5}\b", out)
    qkv.Model(config_with("near"), build(config_with("near")), None).save(tmp_path / "near")
    assert run_command(["info", str(tmp_path / "near")]) == 0
    assert "unknown: position = 'near'" in capsys.readouterr().out


def test_a_part_has_its_own_sites(tmp_path: Path) -> None:
    config = config_with("squared")
    sites = list_sites(config)
    assert "decoder.1.squared" in sites
    assert not any("mlp_pre" in site or "mlp_post" in site for site in sites)
    tap = qkv.Tap(record=["*"])
    build(config)(torch.tensor([PROMPT]), tap=tap)
    assert [*tap.values] == [site for site in sites if site != "logits"]
    assert tap["decoder.1.squared"].min() >= 0


@pytest.mark.parametrize("key", ["feedforward", "block"])
def test_a_recipe_trains_it(key: str, tmp_path: Path) -> None:
    keys = {"feedforward": 'heads = 2\nfeedforward = "squared"', "block": 'family = "minimal"'}[key]
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 60)
    (tmp_path / "recipe.toml").write_text(RECIPE.format(folder=tmp_path, keys=keys))
    model = qkv.train(tmp_path / "recipe.toml")
    loaded = qkv.load(tmp_path / "run")
    assert getattr(loaded.config.stack, key) == keys.split('"')[1], "model.family names a part that is a whole stack"
    assert loaded.config.stack.ffn_width == (4 * 16 if key == "feedforward" else 16), "a part that is not gated"
    assert loaded.generate("the ", max_tokens=5).text == model.generate("the ", max_tokens=5).text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: qkv.register_part("feedforward", "gelu", build=Scale), "'gelu' is built in"),
        (lambda: qkv.register_part("feedforward", "squared", build=Scale), "another feedforward named 'squared'"),
        (lambda: qkv.register_part("feed_forward", "mine", build=Scale), "did you mean 'feedforward'"),  # type: ignore[arg-type]
        (lambda: qkv.register_part("position", "mine", build=Scale), "place = 'none' is unknown"),
        (lambda: qkv.StackConfig(**SIZE, feedforward="squred"), "'squred' is unknown; did you mean 'squared'"),
    ],
)
def test_what_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((qkv.UsageError, ValueError), match=message):
        call()


@pytest.mark.parametrize("format", ["hf", "ctranslate2"])
@pytest.mark.parametrize("name", ["", *(name for name in OWN if name != "minimal")])
def test_an_export_is_refused_with_a_reason(name: str, format: str, tmp_path: Path) -> None:
    gpt2 = {"position": "learned", "feedforward": "gelu_tanh", "init": "scaled"}
    own = {OWN[name][0]: name} if name else {}
    head = qkv.HeadConfig(kind="lm", outputs=12, tied=True)
    config = Config(decoder=qkv.StackConfig(**{**SIZE, **gpt2, **own}), head=head, eos_token_ids=(1,))
    model = qkv.Model(config, build(config), None)
    if name:
        with pytest.raises(qkv.QkvError, match=f"'{name}'"):
            model.export(tmp_path / "out", format)
    elif format == "hf":
        model.export(tmp_path / "out", format)
    else:
        assert unsupported_settings(config) == []
    assert (tmp_path / "out").exists() == (name == "" and format == "hf")


def test_a_position_with_a_table_ends_at_max_positions() -> None:
    qkv.register_part("position", "steps", build=Steps, place="embedding", is_limited=True, replace=True)
    with pytest.raises(qkv.UsageError, match="64"):
        build(config_with("steps"))(torch.zeros(1, 65, dtype=torch.long))
    build(config_with("near"))(torch.zeros(1, 65, dtype=torch.long))


@pytest.mark.parametrize("name", ["doubled", "gained", "squared"])
def test_tensor_parallelism_splits_built_in_parts_only(name: str) -> None:
    with pytest.raises(qkv.UsageError, match="not a built-in part"):
        check_divisible(build(config_with(name), device="meta"), 2)


def test_a_folder_that_needs_a_part_says_so(tmp_path: Path) -> None:
    config = config_with("gained")
    qkv.Model(config, build(config), None).save(tmp_path)
    PARTS["block"].unregister("gained")
    with pytest.raises(qkv.QkvError, match=r"needs the plugin .*test_register_part: .* block = 'gained'.*--import"):
        qkv.load(tmp_path)


class Silent(nn.Module):
    """A feed-forward that never calls its tap."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, tap: Any = None) -> Tensor:
        return self.inner(x)


class Untouched(nn.Module):
    """An attention that reads only the token itself, and ignores which positions are selected."""

    def __init__(self, config: Any, *, cross: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, *arguments: Any, **named: Any) -> Tensor:
        return self.inner(x)


@pytest.fixture
def own() -> Iterator[None]:
    OWN.update({"silent": ("feedforward", {}), "untouched": ("attention", {})})
    yield
    unregister()
    del OWN["silent"], OWN["untouched"]


def test_a_site_that_is_stated_but_never_tapped_is_an_error(own: None) -> None:
    qkv.register_part("feedforward", "silent", build=Silent, sites=["quiet"])
    model = qkv.Model(config_with("silent"), build(config_with("silent")), None)
    with pytest.raises(qkv.UsageError, match=r"nothing was recorded at '\*.quiet': .*tap\('quiet', …\)"):
        model.trace(PROMPT, sites=["*.quiet", "*.resid_post"])


def test_look_shows_the_views_of_the_sites_that_parts_have(own: None) -> None:
    qkv.register_part("feedforward", "silent", build=Silent)
    qkv.register_part("attention", "untouched", build=Untouched)
    for name, shown, absent in (
        ("silent", {"attention", "lens"}, "neurons. The parts of this model have no mlp_post"),
        ("untouched", {"neurons", "lens"}, "attention, mask, alignment. The parts of this model have no pattern"),
    ):
        document = qkv.Model(config_with(name), build(config_with(name)), None).look(PROMPT).document
        assert shown <= {*document["views"]}
        assert f"Not shown: {absent}." in document["notes"]


def test_a_part_that_ignores_selected_positions_is_selected_afterwards(own: None) -> None:
    qkv.register_part("attention", "untouched", build=Untouched)
    network = build(config_with("untouched")).eval()
    x, _ = network.hidden(torch.tensor([PROMPT, PROMPT[::-1]]))
    for selected in (torch.tensor([1, 6]), torch.tensor([[1], [2]])):
        found, _ = network.hidden(torch.tensor([PROMPT, PROMPT[::-1]]), selected=selected)
        assert torch.equal(found, x.flatten(0, 1)[selected.flatten()])


def test_training_adds_an_auxiliary_loss_and_validation_does_not(own: None) -> None:
    def initialise(module: Silent, config: Any) -> None:
        nn.init.constant_(module.inner.weight, 0.25)

    def square(module: Silent) -> Tensor:
        return module.inner.weight.square().mean()

    qkv.register_part("feedforward", "silent", build=Silent, init=initialise, aux_loss=square)
    network = build(config_with("silent"))
    module = TrainingModule(network, ObjectiveSection(kind="causal_lm"))
    batch = make_labelled_batch(random_batch(network.config), torch.device("cpu"))
    half = torch.tensor(0.5 / batch.batch.label_counts[0])  # as if another micro-batch had as many labels
    trained, validated = module.train()(batch, half, half), module.eval()(batch, half, half)
    assert (trained - validated).item() == pytest.approx(0.5 * 2 * 0.0625, rel=1e-4), "two layers"


def test_a_gated_feed_forward_is_narrower_by_default(own: None) -> None:
    needs: Any = ModelRequirements(SimpleNamespace(vocab_size=9))  # type: ignore[arg-type]
    qkv.register_part("feedforward", "silent", build=Silent)
    assert modern_stack({"width": 96, "feedforward": "silent"}, needs).ffn_width == 384
    qkv.register_part("feedforward", "silent", build=Silent, gated=True, replace=True)
    assert modern_stack({"width": 96, "feedforward": "silent"}, needs).ffn_width == 256


@pytest.mark.parametrize("slot", ["norm", "feedforward", "position"])
def test_only_attentions_and_blocks_have_a_cache(slot: Any) -> None:
    with pytest.raises(ValueError, match="cache is for an attention or a block"):
        qkv.register_part(slot, "mine", build=Silent, cache=lambda config: {"h": (2,)}, place="embedding")
    assert "mine" not in PARTS[slot]


class Unset(nn.Module):
    """A feed-forward whose weights are whatever is in memory."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(config.width, config.width))

    def forward(self, x: Tensor, tap: Any = None) -> Tensor:
        return x @ self.up


def test_parameters_that_nothing_samples_are_an_error(own: None) -> None:
    qkv.register_part("feedforward", "silent", build=Unset)
    with pytest.raises(qkv.QkvError, match=r"decoder.blocks.0.ffn.up has no first values: .*pass init="):
        build(config_with("silent"))
    assert not torch.are_deterministic_algorithms_enabled()
    qkv.register_part("feedforward", "silent", build=Unset, init=lambda m, _: nn.init.ones_(m.up), replace=True)
    assert build(config_with("silent")).decoder.blocks[0].ffn.up.mean() == 1


def test_a_whole_stack_reads_the_fields_that_it_declares() -> None:
    qkv.register_part("block", "minimal", **{**OWN["minimal"][1], "fields": ["heads"]}, replace=True)
    size = {**SIZE, "ffn_width": 0, "heads": 4, "block": "minimal"}
    assert qkv.StackConfig(**size).heads == 4
    with pytest.raises(ValueError, match="kv_heads = 2 does not apply to block = "):
        qkv.StackConfig(**size, kv_heads=2)
    with pytest.raises(ValueError, match="recurrent_attention = 'none' does not apply to block = "):
        qkv.StackConfig(**size, recurrent_attention="none")
