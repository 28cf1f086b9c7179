"""Make a config from the values in `config.json`, the inverse of `Config.to_dict`. Errors name the field."""

from dataclasses import MISSING, fields
from typing import Any

from qkv.blocks import HeadConfig, RotaryScaling, StackConfig
from qkv.errors import QkvError, suggest_name
from qkv.models import Config
from qkv.models.config import CONFIG_VERSION, ENDS
from qkv.plugins import describe_missing, read_plugins
from qkv.tables import OpenTable


def parse_config(values: Any, where: str = "config.json") -> Config:
    """Make a config from plain values.

    An error starts with `where`, the name of the file, and names the fields that are unknown, missing or wrong.
    """
    if not isinstance(values, dict):
        raise QkvError(f"{where}: expected a table of fields, found {type(values).__name__}; restore the file")
    version = values.get("version", CONFIG_VERSION)
    if version != CONFIG_VERSION:
        raise QkvError(f"{where}: format version {version!r}, but this qkv reads {CONFIG_VERSION}; update qkv")
    values = {name: value for name, value in values.items() if name not in ("format", "version")}
    if missing := describe_missing(read_plugins(values.pop("plugins", None))):
        raise QkvError(f"{where}: {missing}")
    family = values.pop("family", None)
    for side in ("encoder", "decoder"):
        if values.get(side) is not None:
            values[side] = _parse_stack(values[side], f"{where}: {side}")
    if "head" in values:
        values["head"] = _construct(HeadConfig, values["head"], f"{where}: head")
    for name, table in ENDS.items():
        ends = values.get(name, [])
        if not isinstance(ends, list):
            raise QkvError(f"{where}: {name} must be a list, found {type(ends).__name__}; restore the file")
        values[name] = tuple(_parse_end(one, table, f"{where}: {name}") for one in ends)
    config: Config = _construct(Config, values, where)
    if family not in (None, config.family):
        raise QkvError(
            f"{where}: family = {family!r}, but a model with these stacks is of the family {config.family!r}; "
            "correct the stacks or remove family"
        )
    return config


def _parse_end(values: Any, table: OpenTable[Any], where: str) -> Any:
    """The config of a front end or a back end."""
    if not isinstance(values, dict) or "kind" not in values:
        raise QkvError(f"{where}: each needs a kind; restore the file")
    kind = table.find(values["kind"], f"{where}.kind")
    rest = {name: value for name, value in values.items() if name != "kind"}
    return _construct(kind.config, rest, f"{where}.{values['kind']}")


def _parse_stack(values: Any, where: str) -> StackConfig:
    if isinstance(values, dict) and values.get("rotary_scaling") is not None:
        scaling = _construct(RotaryScaling, values["rotary_scaling"], f"{where}: rotary_scaling")
        values = {**values, "rotary_scaling": scaling}
    stack: StackConfig = _construct(StackConfig, values, where)
    return stack


def _construct(config_class: type, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise QkvError(f"{where}: expected a table of fields, found {type(values).__name__}; restore the file")
    known = {field.name: field for field in fields(config_class)}
    for name in values:
        if name not in known:
            raise QkvError(f"{where}: unknown field {name!r}; {suggest_name(name, known)}")
    required = [n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise QkvError(f"{where}: missing {', '.join(missing)}; add what is missing, or restore the file")
    try:
        return config_class(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})
    except (ValueError, TypeError) as error:
        raise QkvError(f"{where}: {error}") from error
