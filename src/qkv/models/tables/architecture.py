"""How the config keys and tensor names of a public architecture map to ours, in both directions.

An `Architecture` is data: rows for config fields, a row for the name of each module, and its heads. Importing and
exporting use the same rows. To check that an architecture can express a config, we export the config and import it
again: the error lists the fields that did not survive.

In this file, "ours" means qkv, and "theirs" means the public checkpoint. `read` converts their value to ours, and
`write` converts our value to theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol

from qkv.blocks import HeadConfig, StackConfig
from qkv.errors import QkvError, shorten, suggest_name
from qkv.models.config import Config
from qkv.values import list_differences

if TYPE_CHECKING:
    from torch import Tensor

Json = dict[str, Any]
_REQUIRED = object()
MULTI_LABEL = "multi_label_classification"  # their `problem_type` for a head with independent outputs
# Keys of ours in their config: transformers keeps them and does not use them.
TEMPERATURE_KEY = "calibration_temperature"
THRESHOLD_KEY = "out_of_scope_threshold"
OUT_OF_SCOPE_KEY = "out_of_scope_label"
TAGS_IN_ORDER_KEY = "tags_in_order"
PROCESSOR_KEY = "_image_processor"  # in their config while a folder is read or written: `preprocessor_config.json`
INPUT_KEYS = ("reads_sentences", "reads_pairs", "task", "text_processor")


# ── Config rows ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class ConfigKey:
    """A row for a field of ours that is one key of theirs; `values` maps their values to ours."""

    name: str
    default: Any = _REQUIRED
    values: Mapping[Any, Any] | None = None

    def read(self, theirs: Json) -> Any:
        """Read our value from their config."""
        value = theirs.get(self.name, self.default)
        if value is None and self.default is not _REQUIRED:
            value = self.default
        if value is _REQUIRED:
            raise QkvError(f"config.json: missing {self.name!r}")
        if self.values is None:
            return value
        if value not in self.values:
            known = ", ".join(repr(code) for code in self.values)
            raise QkvError(f"config.json: {self.name} = {value!r} is not supported; known: {known}")
        return self.values[value]

    def write(self, value: Any, stack: Any) -> Json:
        """Convert our value to their key and value."""
        if self.values is None:
            return {self.name: value}
        return {self.name: next((theirs for theirs, ours in self.values.items() if ours == value), value)}


@dataclass(frozen=True)
class ComputedField:
    """A row for a field of ours that is computed from several of their keys, and the reverse."""

    read: Callable[[Json], Any]
    write: Callable[[Any, Any], Json]  # (our value, the config that contains it) → their keys


FieldRows = Mapping[str, Any]
"""Our field → a ConfigKey, a ComputedField, or a constant if all models of the architecture have the same value."""


def read_fields(rows: FieldRows, theirs: Json) -> Json:
    """Read our fields from their config."""
    return {name: row.read(theirs) if isinstance(row, ConfigKey | ComputedField) else row for name, row in rows.items()}


def write_fields(rows: FieldRows, ours: Any) -> Json:
    """Convert our config to their keys."""
    out: Json = {}
    for name, row in rows.items():
        if isinstance(row, ConfigKey | ComputedField):
            out.update(row.write(getattr(ours, name), ours))
    return out


# ── Tensor names ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Concatenated:
    """A row for a fused matrix of ours that concatenates several matrices of theirs."""

    modules: tuple[str, ...]

    def __init__(self, *modules: str) -> None:
        object.__setattr__(self, "modules", modules)

    def read(self, parts: list[Tensor], suffix: str, stack: StackConfig) -> Tensor:
        """Convert their tensors to our tensor."""
        import torch

        return torch.cat(parts)

    def write(self, ours: Tensor, suffix: str, stack: StackConfig) -> list[Tensor]:
        """Convert our tensor to their tensors."""
        if len(self.modules) == 3:  # query, key, value
            widths = [heads * stack.head_dim for heads in (stack.heads, stack.kv_heads, stack.kv_heads)]
            return [part.contiguous() for part in ours.split(widths)]
        return [part.contiguous() for part in ours.chunk(len(self.modules))]


@dataclass(frozen=True)
class Renamed:
    """A row for a module of ours that is one module of theirs.

    They store matrices as (in, out) if `transposed`, a vector as (1, n) if `is_row_vector`, and w as w − `offset`.
    """

    module: str
    transposed: bool = False
    is_row_vector: bool = False
    offset: float = 0.0

    @property
    def modules(self) -> tuple[str, ...]:
        """Their modules."""
        return (self.module,)

    def read(self, parts: list[Tensor], suffix: str, stack: StackConfig) -> Tensor:
        """Convert their tensors to our tensor."""
        if self.is_row_vector:
            return parts[0][0] if parts[0].dim() == 2 else parts[0]
        if self.offset:
            return parts[0] + self.offset
        return parts[0].T.contiguous() if self.transposed and suffix == "weight" else parts[0]

    def write(self, ours: Tensor, suffix: str, stack: StackConfig) -> list[Tensor]:
        """Convert our tensor to their tensors."""
        if self.is_row_vector:
            return [ours[None]]
        if self.offset:
            return [ours - self.offset]
        return [ours.T.contiguous() if self.transposed and suffix == "weight" else ours]


@dataclass(frozen=True)
class InterleavedQkv:
    """Their fused matrix has query, key and value of head 0, then of head 1, …; ours has all queries first."""

    module: str

    @property
    def modules(self) -> tuple[str, ...]:
        """Their modules."""
        return (self.module,)

    def read(self, parts: list[Tensor], suffix: str, stack: StackConfig) -> Tensor:
        """Convert their tensors to our tensor."""
        heads = parts[0].view(stack.heads, 3, stack.head_dim, *parts[0].shape[1:])
        return heads.transpose(0, 1).flatten(0, 2).contiguous()

    def write(self, ours: Tensor, suffix: str, stack: StackConfig) -> list[Tensor]:
        """Convert our tensor to their tensors."""
        heads = ours.view(3, stack.heads, stack.head_dim, *ours.shape[1:])
        return [heads.transpose(0, 1).flatten(0, 2).contiguous()]


@dataclass(frozen=True)
class NoTensor:
    """A row for a tensor of ours without values that they do not have: the token table of a model without tokens."""

    modules: tuple[str, ...] = ()

    def read(self, parts: list[Tensor], suffix: str, stack: StackConfig) -> Tensor:
        """Our tensor: no rows."""
        import torch

        return torch.zeros(0, stack.width)

    def write(self, ours: Tensor, suffix: str, stack: StackConfig) -> list[Tensor]:
        """No tensors of theirs."""
        return []


class TensorRule(Protocol):
    """How tensors of theirs become one of ours, and the reverse."""

    @property
    def modules(self) -> tuple[str, ...]:
        """Their modules."""

    def read(self, parts: list[Tensor], suffix: str, stack: StackConfig) -> Tensor:
        """Convert their tensors to our tensor."""

    def write(self, ours: Tensor, suffix: str, stack: StackConfig) -> list[Tensor]:
        """Convert our tensor to their tensors."""


@dataclass(frozen=True)
class Conditional:
    """A name that depends on the config: `yes` if `test` is true for it, otherwise `no`."""

    test: Callable[[Config, StackConfig], bool]
    yes: str | TensorRule
    no: str | TensorRule


TensorNames = Mapping[str, str | TensorRule | Conditional]
"""Our module (`encoder.blocks.{i}.attention.out`) or parameter → theirs. A parameter's row wins over its module's.
`{i}` is the number of a block, `{e}` of an expert."""


# ── Architectures ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class HeadTable:
    """One of their model classes, and its head.

    In `names`, `{prefix}` marks a tensor that they store under the body's prefix, such as BERT's pooler.
    """

    class_name: str
    fields: FieldRows = field(default_factory=dict)
    names: TensorNames = field(default_factory=dict)
    outputs: str | int = 0  # the number of outputs: "vocab_size", "labels", "fields" (a row of `fields`), or a number
    prefix: str | None = None  # the prefix of the body's tensors; None: the prefix of the architecture
    stacks: tuple[str, ...] = ()  # the stacks of this class; (): all stacks of the architecture


@dataclass(frozen=True)
class Architecture:
    """The mapping of one public architecture."""

    name: str  # their `model_type`
    stacks: Mapping[str, FieldRows]
    body: TensorNames
    heads: tuple[HeadTable, ...]  # the first is used if config.json has no `architectures`
    prefix: str = ""  # the prefix of the body's tensors in classes with a head
    config: FieldRows = field(default_factory=dict)  # rows for fields of Config itself
    # Their key → the values that qkv supports
    supported_values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    aliases: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # their tensor → other names of the same tensor
    ignored: tuple[str, ...] = ()  # glob patterns of checkpoint tensors to skip (buffers, leftovers)
    class_aliases: Mapping[str, str] = field(default_factory=dict)  # other names of a class, in packages of their own
    other_heads: tuple[str, ...] = ()  # glob patterns of tensors of heads that qkv does not have
    optional_tensors: tuple[str, ...] = ()  # their tensors that may be missing: zeros are used instead


def find_head(architecture: Architecture, theirs: Json) -> HeadTable:
    """Return the head of the model class in their config."""
    named = theirs.get("architectures") or [architecture.heads[0].class_name]
    if not isinstance(named, list):
        raise QkvError(f"config.json: architectures = {named!r} must be a list of class names")
    class_name = architecture.class_aliases.get(str(named[0]), named[0])
    for table in architecture.heads:
        if table.class_name == class_name:
            return table
    known = [table.class_name for table in architecture.heads]
    raise QkvError(f"config.json: unknown model class {named[0]!r}; {suggest_name(str(named[0]), known)}")


def read_config(architecture: Architecture, theirs: Json) -> Config:
    """Convert their config.json to a Config."""
    for name, allowed in architecture.supported_values.items():
        if name in theirs and theirs[name] not in allowed:
            choices = " or ".join(repr(value) for value in allowed)
            raise QkvError(
                f"config.json: {name} = {theirs[name]!r} is not supported for {architecture.name}, only {choices}"
            )
    table = find_head(architecture, theirs)
    stacks = _stacks(architecture, table)
    try:
        ours = {name: StackConfig(**read_fields(rows, theirs)) for name, rows in stacks.items()}
        head = _read_head(table, theirs, (ours.get("decoder") or ours["encoder"]).vocab_size)
        config = read_fields(architecture.config, theirs)
        if len(ours) == 1:
            config.pop("share_embeddings", None)
        inputs: Json = {name: theirs.get(name) for name in INPUT_KEYS}
        return Config(
            encoder=ours.get("encoder"),
            decoder=ours.get("decoder"),
            **config,
            head=head,
            architecture=architecture.name,
            **inputs,
        )
    except KeyError as error:
        raise QkvError(f"config.json: missing {error}") from error
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise QkvError(f"config.json: {shorten(str(error), 300)}; correct or restore the file") from error


class UnsupportedConfigError(QkvError):
    """Raised if an architecture cannot express some fields of a config, or its family (then `fields` is empty)."""

    def __init__(self, name: str, family: str, fields: list[str]) -> None:
        self.name = name
        self.reason = f"does not support {'; '.join(fields)}" if fields else f"has no {family} form"
        super().__init__(f"{name} {self.reason}")
        self.fields = fields


def write_config(architecture: Architecture, config: Config) -> tuple[Json, HeadTable]:
    """Convert a Config to their config.json, and return it with the table of the model class.

    An UnsupportedConfigError lists the fields that the architecture cannot express. Fields that only training uses
    (dropout, initialisation) may be lost, but a class that keeps them is preferred.
    """
    found: tuple[Json, HeadTable] | None = None
    closest: list[str] | None = None
    for table in architecture.heads:
        stacks = _stacks(architecture, table)
        if set(stacks) != set(config.stacks):
            continue
        theirs: Json = {"architectures": [table.class_name], "model_type": architecture.name}
        theirs["is_encoder_decoder"] = config.family == "seq2seq"
        theirs.update({name: value for name in INPUT_KEYS if (value := getattr(config, name)) is not None})
        for name, rows in stacks.items():
            theirs.update(write_fields(rows, getattr(config, name)))
        theirs.update(write_fields(architecture.config, config))
        theirs.update(write_fields(table.fields, config.head))
        if table.outputs == "labels":
            labels = config.head.labels or [f"LABEL_{i}" for i in range(config.head.outputs)]
            theirs["id2label"] = {str(i): label for i, label in enumerate(labels)}
            theirs["label2id"] = {label: i for i, label in enumerate(labels)}
            if config.head.multi_label:
                theirs["problem_type"] = MULTI_LABEL
            if config.head.temperature != 1:
                theirs[TEMPERATURE_KEY] = config.head.temperature
            if config.head.threshold:
                theirs[THRESHOLD_KEY] = config.head.threshold
            if config.head.out_of_scope:
                theirs[OUT_OF_SCOPE_KEY] = config.head.out_of_scope
            if config.head.tags_in_order:
                theirs[TAGS_IN_ORDER_KEY] = True
        try:
            again = read_config(architecture, theirs)
            different = _config_differences(_inference_config(again), _inference_config(config))
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
        raise UnsupportedConfigError(architecture.name, config.family, closest or [])
    return found


def _stacks(architecture: Architecture, table: HeadTable) -> Mapping[str, FieldRows]:
    return {name: architecture.stacks[name] for name in table.stacks or architecture.stacks}


def _read_head(table: HeadTable, theirs: Json, vocab: int) -> HeadConfig:
    values = read_fields(table.fields, theirs)
    if table.outputs == "vocab_size":
        values["outputs"] = vocab
    elif table.outputs == "labels":
        names = theirs.get("id2label") or {str(i): f"LABEL_{i}" for i in range(theirs.get("num_labels", 2))}
        labels = tuple(str(names[key]) for key in sorted(names, key=int))
        values["outputs"] = len(labels)
        if any(label != f"LABEL_{i}" for i, label in enumerate(labels)):
            values["labels"] = labels
        if values["kind"] == "tag":
            values["tags_in_order"] = theirs.get(TAGS_IN_ORDER_KEY, False)
        if values["kind"] == "classify":
            values["multi_label"] = theirs.get("problem_type") == MULTI_LABEL
            values["temperature"] = theirs.get(TEMPERATURE_KEY, 1.0)
            values["threshold"] = theirs.get(THRESHOLD_KEY, 0.0)
            values["out_of_scope"] = theirs.get(OUT_OF_SCOPE_KEY, "")
    elif table.outputs != "fields":
        values["outputs"] = table.outputs
    return HeadConfig(**values)


def _inference_config(config: Config) -> Config:
    """Return the config with default values in the fields that only training uses."""

    default = {"dropout": 0.0, "attention_dropout": 0.0, "ffn_dropout": 0.0, "init": "normal", "init_std": 0.02}
    default |= {"balance_loss": StackConfig.balance_loss, "router_z_loss": StackConfig.router_z_loss}
    bare = {name: replace(stack, **default) for name, stack in config.stacks.items()}  # type: ignore[arg-type]
    return replace(config, head=replace(config.head, dropout=0.0), **bare)  # type: ignore[arg-type]


def _config_differences(a: Config, b: Config) -> list[str]:
    """List the fields in which two configs differ, with the full names of nested fields."""
    out = []
    for f in fields(Config):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if f.name == "architecture" or x == y:
            continue
        nested = f.name in ("encoder", "decoder", "head") and x is not None and y is not None
        out += [f"{f.name}.{line}" for line in list_differences(x, y)] if nested else [f"{f.name}: {x!r} → {y!r}"]
    return out


# ── Weights ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class ParameterMapping:
    """One of our parameters, and the tensors of theirs that it is made from."""

    name: str
    rule: TensorRule
    theirs: tuple[str, ...]  # without the class's prefix
    suffix: str
    stack: StackConfig
    in_body: bool  # True: in a checkpoint, the class's prefix comes before these names


def map_parameters(
    architecture: Architecture, table: HeadTable, config: Config, names: Iterable[str]
) -> Iterator[ParameterMapping]:
    """Map each of our parameters to their tensors."""
    rows = {**architecture.body, **table.names}
    for name in names:
        numbers: dict[str, str] = {}
        pattern = name
        for letter, part in (("i", "blocks"), ("e", "experts")):
            if number := re.search(rf"\.{part}\.(\d+)\.", pattern):
                numbers[letter] = number[1]
                pattern = pattern.replace(number[0], f".{part}.{{{letter}}}.", 1)
        module, suffix = pattern.rsplit(".", 1)
        exact = pattern in rows
        rule = rows.get(pattern) or rows.get(module)
        if rule is None:
            raise QkvError(
                f"qkv does not know the name that {architecture.name} gives to our module {module!r}, because a row is "
                "missing in src/qkv/models/tables; this is a bug in qkv: please report it, or add the row"
            )
        side = config.encoder if name.startswith(("encoder.", "source_")) else config.decoder
        stack = side or config.stack
        if isinstance(rule, Conditional):
            rule = rule.yes if rule.test(config, stack) else rule.no
        if isinstance(rule, str):
            rule = Renamed(rule)
        is_of_head = (pattern if exact else module) in table.names
        in_body = not is_of_head or any(one.startswith("{prefix}") for one in rule.modules)
        modules = [_strip_placeholder(m) for m in rule.modules]
        for letter, digits in numbers.items():
            modules = [m.replace(f"{{{letter}}}", digits) for m in modules]
        theirs = tuple(m if exact else f"{m}.{suffix}" for m in modules)
        yield ParameterMapping(name, rule, theirs, suffix, stack, in_body)


def write_weights(
    architecture: Architecture, table: HeadTable, config: Config, ours: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Convert our parameters to their tensors, with the names that their class saves."""
    out: dict[str, Tensor] = {}
    prefix = _prefix(architecture, table)
    for row in map_parameters(architecture, table, config, ours):
        for theirs, part in zip(row.theirs, row.rule.write(ours[row.name], row.suffix, row.stack), strict=True):
            out[prefix + theirs if row.in_body else theirs] = part
    return out


def _strip_placeholder(name: str) -> str:
    return name.removeprefix("{prefix}")


def _prefix(architecture: Architecture, table: HeadTable) -> str:
    """Return the prefix of the body's tensors. heads[0], their base class, uses no prefix."""
    if table.prefix is not None:
        return table.prefix
    return architecture.prefix if table is not architecture.heads[0] else ""


def normalize_name(architecture: Architecture, table: HeadTable, name: str) -> str:
    """Remove the prefix from one of their names, and replace the old names of norm weights (gamma, beta)."""
    for prefix in (table.prefix, architecture.prefix):
        if prefix and name.startswith(prefix):
            name = name[len(prefix) :]
            break
    return re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))


def is_ignored(architecture: Architecture, name: str) -> bool:
    """Whether one of their tensors is skipped: a buffer, or a leftover of an old release."""
    return any(fnmatchcase(name, pattern) for pattern in architecture.ignored)


def belongs_to_head(architecture: Architecture, name: str) -> bool:
    """Whether one of their tensors belongs to any head of the architecture."""
    if any(fnmatchcase(name, pattern) for pattern in architecture.other_heads):
        return True
    for other in architecture.heads:
        for rule in other.names.values():
            assert not isinstance(rule, Conditional)
            modules = (rule,) if isinstance(rule, str) else rule.modules
            if any(
                name == _strip_placeholder(module) or name.startswith(_strip_placeholder(module) + ".")
                for module in modules
            ):
                return True
    return False
