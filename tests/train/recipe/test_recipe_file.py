"""Recipe files: reading, overrides, errors, writing, and comparing two recipes."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.blocks import HeadConfig, StackConfig
from qkv.errors import QkvError, UsageError
from qkv.train.recipe.recipe_file import (
    CHANGEABLE_ON_RESUME,
    builtin_recipes,
    check_resumable,
    differences,
    loads,
    read,
    to_toml,
    write,
)
from qkv.train.recipe.schema import DataSection, ModelSection, ObjectiveSection, Recipe, TokenizerSection, TrainSection
from qkv.train.recipe.table import SECTIONS, to_table
from qkv.values import Limits, OneOf, Partial
from qkv.values.types import strip_notes

PLAIN = """
run = "runs/a"

[data]
train = {source = "a.en", target = "a.de"}
columns = {source = 0}

[tokenizer]
from = "models/x"

[model]
width = 128
heads = 4
encoder.layers = 3

[model.head]
pool = "mean"

[objective]
kind = "seq2seq"

[train]
minutes = 2
betas = [0.9, 0.99]
"""


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text(PLAIN)
    return file


def test_every_part_of_a_file_finds_its_place(plain: Path) -> None:
    recipe = read(plain)
    assert recipe.run == "runs/a"
    assert recipe.data.train == {"source": "a.en", "target": "a.de"}
    assert recipe.data.columns == {"source": "0"}
    assert recipe.tokenizer.from_ == "models/x"
    assert recipe.model.overrides == {"width": 128, "heads": 4, "encoder": {"layers": 3}, "head": {"pool": "mean"}}
    assert recipe.train.minutes == 2.0
    assert recipe.train.betas == (0.9, 0.99)
    assert recipe.objective == ObjectiveSection()  # what is not said is as the schema has it


def test_changes_from_a_command_line(plain: Path) -> None:
    recipe = read(
        plain,
        [
            "train.lr=1e-4",
            "run = runs/b",
            "model.width=64",
            "model.encoder.layers=1",
            "data.train.source=b.en",
            "data.valid=valid.tsv",
            'model.freeze=["encoder.*"]',
            "tokenizer.from=",
        ],
    )
    assert recipe.train.lr == 1e-4
    assert recipe.run == "runs/b"
    assert recipe.model.overrides["width"] == 64
    assert recipe.model.overrides["encoder"] == {"layers": 1}
    assert recipe.data.train == {"source": "b.en", "target": "a.de"}
    assert recipe.data.valid == "valid.tsv"
    assert recipe.model.freeze == ("encoder.*",)
    assert recipe.tokenizer.from_ == ""


def test_a_section_as_a_change_leaves_what_it_does_not_name(plain: Path) -> None:
    recipe = read(plain, ["train={steps=3}", "model={heads=2, encoder={ffn_width=64}}", "model.head={bias=true}"])
    assert (recipe.train.steps, recipe.train.minutes, recipe.train.betas) == (3, 2.0, (0.9, 0.99))
    assert recipe.model.overrides == {
        "width": 128,
        "heads": 2,
        "encoder": {"layers": 3, "ffn_width": 64},
        "head": {"pool": "mean", "bias": True},
    }


def test_a_table_that_is_a_value_is_replaced_as_a_whole(plain: Path) -> None:
    """A control: files by field are one thing, and so are columns."""
    recipe = read(plain, ["data={train={text='b.txt'}}", "data.columns={text='a'}"])
    assert recipe.data.train == {"text": "b.txt"}
    assert recipe.data.columns == {"text": "a"}


def test_files_by_field_may_replace_a_single_file(plain: Path) -> None:
    assert read(plain, ["data.train=x.tsv"]).data.train == "x.tsv"
    assert read(plain, ["data.train=x.tsv", "data.train.source=a", "data.train.target=b"]).data.train == {
        "source": "a",
        "target": "b",
    }


def test_a_mixture(plain: Path) -> None:
    recipe = read(
        plain, ["data.train=", "data.mix.news.train=a.tsv", "data.mix.news.weight=2", "data.mix.b.train=b.tsv"]
    )
    assert recipe.data.mix == {"news": {"train": "a.tsv", "weight": 2.0}, "b": {"train": "b.tsv"}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train.lrr = 1", "unknown key 'lrr' in [train]; did you mean 'lr'?"),
        ("[trian]\nlr = 1", "unknown key 'trian'; did you mean 'train'?"),
        ("lr = 1", "it belongs in [train]"),
        ("model.lr = 1", "it belongs in [train]"),
        ('train.lr = "fast"', 'train.lr = "fast" must be a number'),
        ("train.steps = 1.5", "train.steps = 1.5 must be an integer"),
        ("train.gradient_checkpointing = 1", "train.gradient_checkpointing = 1 must be true or false"),
        ('train.schedule = "cosin"', "did you mean 'cosine'?"),
        ('train.micro_batch_tokens = "all"', 'must be an integer or "auto"'),
        ("model.widht = 3", "unknown key 'widht' in [model]; did you mean 'width'?"),
        ('model.encoder.width = "wide"', 'model.encoder.width = "wide" must be an integer'),
        ('model.head.kind = "lm"', "unknown key 'kind' in [model.head]"),
        ("model.head = 3", "model.head = 3 must be a table of pool, dense, "),
        ('model.from_ = "x"', "unknown key 'from_' in [model]; did you mean 'from'?"),
        ("model.overrides = {}", "unknown key 'overrides' in [model]"),
        ('model.rotary_scaling = {kind = "linear", factr = 2.0}', "did you mean 'factor'?"),
        ("data = 3", "data = 3 must be a table"),
        ("data.mix.a = 3", "mix.a = 3 must be a table of train, weight"),
        ("data.mix.a.wieght = 3", "did you mean 'weight'?"),
        ("data.columns.source = [1]", "data.columns"),
    ],
)
def test_what_is_wrong_is_told_with_what_was_expected(line: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        loads(line, "mine.toml")
    assert message in str(error.value)
    assert str(error.value).startswith("mine.toml")


@pytest.mark.parametrize(
    ("text", "line"),
    [('run = "a"\n\n[train]\n# lrr\nlrr = 1\n', 5), ("[model.encoder]\nwidht = 1\n", 2), ("[train]\n[trian]\n", 2)],
)
def test_the_line_is_named(text: str, line: int) -> None:
    with pytest.raises(UsageError, match=rf"^mine\.toml:{line}: "):
        loads(text, "mine.toml")


@pytest.mark.parametrize(
    "change", ["train.lr", "=3", "train..lr=3", "train.lr.fast=3", "train.no_reference=3", "no_reference=3"]
)
def test_changes_that_are_none(plain: Path, change: str) -> None:
    with pytest.raises(UsageError):
        read(plain, [change])


def test_broken_toml_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("run = \n")
    with pytest.raises(UsageError, match=r"bad\.toml: not valid TOML.*line 1"):
        read(tmp_path / "bad.toml")


def test_a_name_that_is_nothing() -> None:
    with pytest.raises(UsageError, match="no-such-thing: no such recipe file"):
        read("no-such-thing")


def test_a_name_that_is_nearly_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").touch()
    Path("dates.toml").touch()
    Path("runs/dates").mkdir(parents=True)
    for name, hint in (
        ("mine.tmol", "did you mean mine.toml?"),
        ("mine", "did you mean mine.toml?"),
        ("dates.tml", "did you mean dates.toml?"),
        ("daets", "did you mean 'dates'?"),
        ("runs/datse", "did you mean runs/dates?"),
        ("nothing", "built-in recipes: dates, "),
    ):
        with pytest.raises(UsageError, match=re.escape(f"{name}: no such recipe file; {hint}")):
            read(name)


def test_a_run_folder_has_a_recipe_and_another_folder_does_not(plain: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(UsageError, match=r"has no recipe\.toml"):
        read(run)
    write(read(plain), run / "recipe.toml")
    assert read(run) == read(plain)


@pytest.mark.parametrize("name", builtin_recipes())
def test_the_recipes_that_come_with_qkv_are_sound(name: str) -> None:
    recipe = read(name, ["data.train=given.txt"]) if not loads_train(name) else read(name)
    assert loads(to_toml(recipe)) == recipe


def loads_train(name: str) -> Any:
    """What the built-in recipe trains on; some leave the file to the user."""
    from qkv.train.recipe.recipe_file import find_recipe

    return loads(find_recipe(name)[0]).data.train


# -------------------------------------------------------------------- round trip

NAMES = st.text("abcdefgh_-é. \n\"'", min_size=1, max_size=6)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type."""
    kind, notes = strip_notes(kind)
    origin, inner = get_origin(kind), get_args(kind)
    limits = next((note for note in notes if isinstance(note, Limits)), Limits())
    for note in notes:
        if isinstance(note, OneOf):
            return st.sampled_from([*([""] if note.optional else []), *note.names])
        if isinstance(note, Partial):
            return st.fixed_dictionaries(
                {"train": NAMES}, optional={"weight": st.floats(0.1, 9), "format": st.sampled_from(["csv", ""])}
            )
    if origin is tuple:
        if inner[-1] is not Ellipsis:
            return st.tuples(*map(values_of, inner))
        return st.lists(values_of(inner[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(NAMES, values_of(inner[1]), max_size=2)
    if origin is Literal:
        return st.sampled_from(inner)
    if inner:
        return st.one_of(*map(values_of, inner))
    low, high = limits.minimum, limits.maximum if limits.below is None else limits.below
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-(2**40) if low is None else int(low), 2**40 if high is None else int(high)),
        float: st.floats(low, high, allow_nan=False, allow_infinity=False, exclude_max=limits.below is not None),
        bool: st.booleans(),
        str: NAMES | st.just(""),
    }
    return simple[kind]


def sections(kind: type, skip: tuple[str, ...] = ()) -> st.SearchStrategy[Any]:
    hints = {name: hint for name, hint in get_type_hints(kind, include_extras=True).items() if name not in skip}
    return st.fixed_dictionaries({}, optional={n: values_of(h) for n, h in hints.items()}).map(lambda v: kind(**v))


NO_TOML = ("rotary_scaling", "mask_token_id")  # may be None, which a file cannot say
STACK = {n: h for n, h in get_type_hints(StackConfig, include_extras=True).items() if n not in NO_TOML}
HEAD = {n: get_type_hints(HeadConfig, include_extras=True)[n] for n in ("pool", "dense", "bias", "dropout")}
STACKS = st.fixed_dictionaries({}, optional={name: values_of(hint) for name, hint in STACK.items()})
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "width": values_of(STACK["width"]),
        "norm": values_of(STACK["norm"]),
        "rotary_scaling": st.just({"kind": "linear", "factor": 2.0}),
        "encoder": STACKS,
        "decoder": STACKS,
        "head": st.fixed_dictionaries({}, optional={name: values_of(hint) for name, hint in HEAD.items()}),
    },
)


@given(
    st.builds(
        Recipe,
        run=NAMES,
        data=sections(DataSection),
        tokenizer=sections(TokenizerSection),
        model=st.tuples(sections(ModelSection, ("overrides",)), CHANGES).map(lambda p: replace(p[0], overrides=p[1])),
        objective=sections(ObjectiveSection),
        train=sections(TrainSection),
    )
)
def test_a_recipe_written_and_read_is_the_same(recipe: Recipe) -> None:
    assert loads(to_toml(recipe)) == recipe


def test_what_is_written_spells_out_every_field_in_order() -> None:
    table = to_table(loads(PLAIN))
    assert list(table) == ["run", "plugins", "data", "tokenizer", "model", "objective", "train"]
    assert list(table["train"]) == [field.name for field in fields(TrainSection)]
    text = to_toml(loads(PLAIN))
    for name in table["train"]:
        assert f"\n{name} = " in text


# -------------------------------------------------------------------- comparing


def test_differences_by_dotted_key() -> None:
    old = loads(PLAIN)
    new = replace(old, train=replace(old.train, lr=0.01), model=replace(old.model, overrides={"width": 64}))
    assert differences(old, new) == [
        "model.width: 128 → 64",
        "model.heads: 4 → not set",
        "model.encoder.layers: 3 → not set",
        'model.head.pool: "mean" → not set',
        "train.lr: 0.001 → 0.01",
    ]
    assert differences(old, old) == []


def test_changeable_keys_are_keys() -> None:
    table = to_table(Recipe())
    known = {"run", "plugins"} | {f"{section}.{name}" for section in SECTIONS for name in table[section]}
    assert known >= CHANGEABLE_ON_RESUME


@pytest.mark.parametrize("key", sorted(CHANGEABLE_ON_RESUME - {"run", "plugins"}))
def test_a_run_may_go_on_with_these_changed(key: str) -> None:
    section, name = key.split(".")
    old = Recipe()
    part = getattr(old, section)
    value = getattr(part, name)
    other: Any = (not value) if isinstance(value, bool) else ("x",) if isinstance(value, tuple) else "x"
    check_resumable(old, replace(old, **{section: replace(part, **{name: other})}))


def test_a_run_does_not_go_on_as_another() -> None:
    old = Recipe()
    new = replace(old, train=replace(old.train, lr=0.5, steps=9), data=replace(old.data, max_length=64))
    with pytest.raises(QkvError) as error:
        check_resumable(old, new)
    assert "train.lr: 0.001 → 0.5" in str(error.value)
    assert "data.max_length: 512 → 64" in str(error.value)
    assert "train.steps" not in str(error.value)


def test_an_empty_recipe_is_completed_by_overrides(tmp_path):
    (tmp_path / "blank.toml").write_text("")
    assert read(tmp_path / "blank.toml", ["data.train=dates", "train.steps=3"]).train.steps == 3
