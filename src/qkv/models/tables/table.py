"""The machinery of a table: how one public architecture's config keys and tensor names map to ours, both ways.

An `Architecture` is data: rows for config fields, a row for each module's name, and its task heads. Reading and
writing are derived from the same rows, so that what is read can be written again; a config that an architecture
cannot express is found out by writing it, reading it back, and naming the fields that differ.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from qkv.blocks import HeadConfig, StackConfig
from qkv.blocks.config import differences
from qkv.errors import QkvError, nearest
from qkv.models.config import Config

Json = dict[str, Any]
_NEEDED = object()


# ── Config rows ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Key:
    """Our field is their key; `codes` translates their values (keys of the dict) to ours."""

    name: str
    default: Any = _NEEDED
    codes: Mapping[Any, Any] | None = None

    def read(self, theirs: Json) -> Any:
        value = theirs.get(self.name, self.default)
        if value is None and self.default is not _NEEDED:
            value = self.default
        if value is _NEEDED:
            raise QkvError(f"config.json: missing {self.name!r}")
        if self.codes is None:
            return value
        if value not in self.codes:
            known = ", ".join(repr(code) for code in self.codes)
            raise QkvError(f"config.json: {self.name} = {value!r} is not supported; known: {known}")
        return self.codes[value]

    def write(self, value: Any, stack: Any) -> Json:
        if self.codes is None:
            return {self.name: value}
        return {self.name: next((theirs for theirs, ours in self.codes.items() if ours == value), value)}


@dataclass(frozen=True)
class Rule:
    """Our field is computed from several of their keys, and back."""

    read: Callable[[Json], Any]
    write: Callable[[Any, Any], Json]  # (our value, the config it is a field of) → their keys


Rows = Mapping[str, Any]
"""Our field → a Key, a Rule, or the constant that the architecture always has there."""


def read_rows(rows: Rows, theirs: Json) -> Json:
    return {name: row.read(theirs) if isinstance(row, Key | Rule) else row for name, row in rows.items()}


def write_rows(rows: Rows, ours: Any) -> Json:
    out: Json = {}
    for name, row in rows.items():
        if isinstance(row, Key | Rule):
            out.update(row.write(getattr(ours, name), ours))
    return out


# ── Tensor names ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Join:
    """Our fused matrix is several of theirs, one below the other."""

    modules: tuple[str, ...]

    def __init__(self, *modules: str) -> None:
        object.__setattr__(self, "modules", modules)

    def read(self, parts: list[Tensor], suffix: str, stack: StackConfig) -> Tensor:
        return torch.cat(parts)

    def write(self, ours: Tensor, suffix: str, stack: StackConfig) -> list[Tensor]:
        if len(self.modules) == 3:  # query, key, value
            widths = [heads * stack.head_width for heads in (stack.heads, stack.kv_heads, stack.kv_heads)]
            return [part.contiguous() for part in ours.split(widths)]
        return [part.contiguous() for part in ours.chunk(len(self.modules))]


@dataclass(frozen=True)
class Same:
    """Our module is theirs; `transposed` where they keep (in, out) matrices, `row` where a vector is kept as (1, n)."""

    module: str
    transposed: bool = False
    row: bool = False

    @property
    def modules(self) -> tuple[str, ...]:
        return (self.module,)

    def read(self, parts: list[Tensor], suffix: str, stack: StackConfig) -> Tensor:
        if self.row:
            return parts[0][0] if parts[0].dim() == 2 else parts[0]
        return parts[0].T.contiguous() if self.transposed and suffix == "weight" else parts[0]

    def write(self, ours: Tensor, suffix: str, stack: StackConfig) -> list[Tensor]:
        if self.row:
            return [ours[None]]
        return [ours.T.contiguous() if self.transposed and suffix == "weight" else ours]


@dataclass(frozen=True)
class HeadMajor:
    """Their fused projection holds query, key and value of head 0, then those of head 1, …; ours all queries first."""

    module: str

    @property
    def modules(self) -> tuple[str, ...]:
        return (self.module,)

    def read(self, parts: list[Tensor], suffix: str, stack: StackConfig) -> Tensor:
        heads = parts[0].view(stack.heads, 3, stack.head_width, *parts[0].shape[1:])
        return heads.transpose(0, 1).flatten(0, 2).contiguous()

    def write(self, ours: Tensor, suffix: str, stack: StackConfig) -> list[Tensor]:
        heads = ours.view(3, stack.heads, stack.head_width, *ours.shape[1:])
        return [heads.transpose(0, 1).flatten(0, 2).contiguous()]


Ref = Join | Same | HeadMajor


@dataclass(frozen=True)
class When:
    """One name or another, as the config has it."""

    test: Callable[[Config, StackConfig], bool]
    yes: str | Ref
    no: str | Ref


Names = Mapping[str, str | Ref | When]
"""Our module (`encoder.blocks.{i}.attention.out`) or parameter → theirs. A full parameter name wins over its module."""


# ── Architectures ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class HeadTable:
    """One of their model classes: the head that it carries.

    In `names`, a name that starts with `{prefix}` lies inside the body, as BERT's pooler does.
    """

    cls: str
    fields: Rows = field(default_factory=dict)
    names: Names = field(default_factory=dict)
    outputs: str | int = 0  # "vocab", "labels", or a number
    prefix: str | None = None  # what this class puts before the body's names, where it is not the usual one
    stacks: tuple[str, ...] = ()  # the stacks that this class has, where it is not all of them


@dataclass(frozen=True)
class Architecture:
    name: str  # their `model_type`
    stacks: Mapping[str, Rows]
    body: Names
    heads: tuple[HeadTable, ...]  # the first one is meant where a folder does not say
    prefix: str = ""
    config: Rows = field(default_factory=dict)  # rows for Config's own fields
    needs: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # their key → the values that we support
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # their tensor → other names of the same one
    ignored: tuple[str, ...] = ()  # their tensors that hold no weights
    optional: tuple[str, ...] = ()  # their tensors that may be missing: ours then start as zeros


def head_of(architecture: Architecture, theirs: Json) -> HeadTable:
    """The head that a folder says it carries."""
    named = theirs.get("architectures") or [architecture.heads[0].cls]
    if not isinstance(named, list):
        raise QkvError(f"config.json: architectures = {named!r} must be a list of class names")
    for table in architecture.heads:
        if table.cls == named[0]:
            return table
    known = [table.cls for table in architecture.heads]
    raise QkvError(f"config.json: unknown model class {named[0]!r}; {nearest(str(named[0]), known)}")


def read_config(architecture: Architecture, theirs: Json) -> Config:
    """Their config.json as a Config."""
    for name, allowed in architecture.needs.items():
        if name in theirs and theirs[name] not in allowed:
            choices = " or ".join(repr(value) for value in allowed)
            raise QkvError(
                f"config.json: {name} = {theirs[name]!r} is not supported for {architecture.name}, only {choices}"
            )
    table = head_of(architecture, theirs)
    stacks = _stacks(architecture, table)
    try:
        ours = {name: StackConfig(**read_rows(rows, theirs)) for name, rows in stacks.items()}
        head = _read_head(table, theirs, (ours.get("decoder") or ours["encoder"]).vocab)
        config = read_rows(architecture.config, theirs)
        if len(ours) == 1:
            config.pop("shared_embedding", None)
        return Config(
            encoder=ours.get("encoder"),
            decoder=ours.get("decoder"),
            **config,
            head=head,
            architecture=architecture.name,
        )
    except KeyError as error:
        raise QkvError(f"config.json: missing {error}") from error
    except (ValueError, TypeError) as error:
        raise QkvError(f"config.json: {error}") from error


class CannotExpress(QkvError):
    """A layout has no place for some of a config's fields; none are named where it has no such family at all."""

    def __init__(self, name: str, family: str, fields: list[str]) -> None:
        reason = "; ".join(fields) or f"it has no {family} form"
        super().__init__(f"{name} cannot express this model: {reason}")
        self.fields = fields


def write_config(architecture: Architecture, config: Config) -> tuple[Json, HeadTable]:
    """A Config as their config.json, and the class that it is for; CannotExpress names what they have no place for.

    What only training reads (dropout, initialisation) may be lost, but a class that keeps it is preferred.
    """
    found: tuple[Json, HeadTable] | None = None
    closest: list[str] | None = None
    for table in architecture.heads:
        stacks = _stacks(architecture, table)
        if set(stacks) != {name for name in ("encoder", "decoder") if getattr(config, name) is not None}:
            continue
        theirs: Json = {"architectures": [table.cls], "model_type": architecture.name}
        theirs["is_encoder_decoder"] = config.family == "seq2seq"
        for name, rows in stacks.items():
            theirs.update(write_rows(rows, getattr(config, name)))
        theirs.update(write_rows(architecture.config, config))
        theirs.update(write_rows(table.fields, config.head))
        if table.outputs == "labels":
            labels = config.head.labels or [f"LABEL_{i}" for i in range(config.head.outputs)]
            theirs["id2label"] = {str(i): label for i, label in enumerate(labels)}
            theirs["label2id"] = {label: i for i, label in enumerate(labels)}
        try:
            again = read_config(architecture, theirs)
            different = _different(_as_run(again), _as_run(config))
        except QkvError as error:
            different = [str(error)]
        else:
            if again == replace(config, architecture=architecture.name):
                return theirs, table
        if not different:
            found = found or (theirs, table)
        elif closest is None or len(different) < len(closest):
            closest = different
    if found is None:
        raise CannotExpress(architecture.name, config.family, closest or [])
    return found


def _stacks(architecture: Architecture, table: HeadTable) -> Mapping[str, Rows]:
    return {name: architecture.stacks[name] for name in table.stacks or architecture.stacks}


def _read_head(table: HeadTable, theirs: Json, vocab: int) -> HeadConfig:
    values = read_rows(table.fields, theirs)
    if table.outputs == "vocab":
        values["outputs"] = vocab
    elif table.outputs == "labels":
        names = theirs.get("id2label") or {str(i): f"LABEL_{i}" for i in range(theirs.get("num_labels", 2))}
        labels = tuple(str(names[key]) for key in sorted(names, key=int))
        values["outputs"] = len(labels)
        if any(label != f"LABEL_{i}" for i, label in enumerate(labels)):
            values["labels"] = labels
    else:
        values["outputs"] = table.outputs
    return HeadConfig(**values)


def _as_run(config: Config) -> Config:
    """A config without what only training reads."""

    def bare(stack: StackConfig | None) -> StackConfig | None:
        if stack is None:
            return None
        return replace(stack, dropout=0.0, attention_dropout=0.0, ffn_dropout=0.0, init="normal", init_std=0.02)

    return replace(
        config,
        encoder=bare(config.encoder),
        decoder=bare(config.decoder),
        head=replace(config.head, dropout=0.0),
    )


def _different(a: Config, b: Config) -> list[str]:
    """What differs between two configs, down to the fields of their parts."""
    out = []
    for f in fields(Config):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if f.name == "architecture" or x == y:
            continue
        nested = f.name in ("encoder", "decoder", "head") and x is not None and y is not None
        out += [f"{f.name}.{line}" for line in differences(x, y)] if nested else [f"{f.name}: {x!r} → {y!r}"]
    return out


# ── Weights ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Found:
    """One of our parameters, and where theirs are."""

    name: str
    ref: Ref
    theirs: tuple[str, ...]  # without the class's prefix
    suffix: str
    stack: StackConfig
    in_body: bool  # whether the class's prefix goes before their names


def find(architecture: Architecture, table: HeadTable, config: Config, names: Iterable[str]) -> Iterator[Found]:
    """Where each of our parameters lies in their folder."""
    rows = {**architecture.body, **table.names}
    for name in names:
        number = re.search(r"\.blocks\.(\d+)\.", name)
        i = number[1] if number else ""
        pattern = name.replace(f".blocks.{i}.", ".blocks.{i}.", 1) if number else name
        module, suffix = pattern.rsplit(".", 1)
        exact = pattern in rows
        ref = rows.get(pattern) or rows.get(module)
        if ref is None:
            raise QkvError(f"the table of {architecture.name} has no row for {module!r}")
        side = config.encoder if name.startswith(("encoder.", "source_")) else config.decoder
        stack = side or config.stack
        if isinstance(ref, When):
            ref = ref.yes if ref.test(config, stack) else ref.no
        if isinstance(ref, str):
            ref = Same(ref)
        in_body = (pattern if exact else module) not in table.names or ref.modules[0].startswith("{prefix}")
        modules = [_bare(m).replace("{i}", i) for m in ref.modules]
        theirs = tuple(m if exact else f"{m}.{suffix}" for m in modules)
        yield Found(name, ref, theirs, suffix, stack, in_body)


def write_weights(
    architecture: Architecture, table: HeadTable, config: Config, ours: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Our parameters under their names, as their class saves them."""
    out: dict[str, Tensor] = {}
    prefix = _prefix(architecture, table)
    for row in find(architecture, table, config, ours):
        for theirs, part in zip(row.theirs, row.ref.write(ours[row.name], row.suffix, row.stack), strict=True):
            out[prefix + theirs if row.in_body else theirs] = part
    return out


def _bare(name: str) -> str:
    return name.removeprefix("{prefix}")


def _prefix(architecture: Architecture, table: HeadTable) -> str:
    """The base class (the one without a head of its own) saves its body bare."""
    if table.prefix is not None:
        return table.prefix
    return architecture.prefix if table is not architecture.heads[0] else ""


def plain_name(architecture: Architecture, table: HeadTable, name: str) -> str:
    """One of their names without the class's prefix, and with today's spelling of norms."""
    for prefix in (table.prefix, architecture.prefix):
        if prefix and name.startswith(prefix):
            name = name[len(prefix) :]
            break
    return re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))


def is_ignored(architecture: Architecture, name: str) -> bool:
    """Whether one of their tensors holds no weights: a buffer, or a relic of an old release."""
    return any(fnmatchcase(name, pattern) for pattern in architecture.ignored)


def of_a_head(architecture: Architecture, name: str) -> bool:
    """Whether one of their tensors belongs to some head of the architecture, if not to the one that is loaded."""
    for other in architecture.heads:
        for ref in other.names.values():
            assert not isinstance(ref, When)
            modules = (ref,) if isinstance(ref, str) else ref.modules
            if any(name == _bare(module) or name.startswith(_bare(module) + ".") for module in modules):
                return True
    return False
