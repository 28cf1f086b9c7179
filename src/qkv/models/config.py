"""The config of a model: an encoder, a decoder or both, a head, and the special tokens that the network needs.

encoder only           BERT and its relatives
decoder only           GPT and its relatives
encoder and decoder    the 2017 Transformer, T5, BART
"""

from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Literal

from qkv.blocks import HeadConfig, RotaryScaling, StackConfig
from qkv.errors import QkvError, suggest_name
from qkv.renamed import describe_old_names, find_old_names
from qkv.values import check_field_types

Family = Literal["encoder", "decoder", "seq2seq"]
CONFIG_VERSION = 1
"""The version of `config.json`, increased when an older qkv would misread a newer file."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that `build` needs to build a network.

    >>> stack = StackConfig(vocab_size=100, width=64, layers=2, heads=4, ffn_width=256)
    >>> Config(decoder=stack, head=HeadConfig(kind="lm", outputs=100, tied=True)).family
    'decoder'
    """

    encoder: StackConfig | None = None
    decoder: StackConfig | None = None
    head: HeadConfig = field(default_factory=HeadConfig)
    share_embeddings: bool = False  # seq2seq: source and target share one token embedding
    pad_token_id: int | None = None  # None: the model has no such token
    decoder_start_token_id: int | None = None  # the first token of a target
    eos_token_ids: tuple[int, ...] = ()  # the tokens that end a generated text
    architecture: str = ""  # the architecture that it was imported from, the first choice for export

    def __post_init__(self) -> None:
        check_field_types(self, list_fields=("eos_token_ids",))
        if self.encoder is None and self.decoder is None:
            raise ValueError("a config needs an encoder, a decoder or both")
        if self.share_embeddings:
            if self.family != "seq2seq":
                raise ValueError("share_embeddings needs an encoder and a decoder")
            for name in ("vocab_size", "width", "embedding_width"):
                a, b = getattr(self.encoder, name), getattr(self.decoder, name)
                if a != b:
                    raise ValueError(f"share_embeddings needs one {name}, not {a} (encoder) and {b} (decoder)")
        if self.family == "seq2seq" and self.encoder.width != self.decoder.width:  # type: ignore[union-attr]
            raise ValueError("encoder and decoder must have the same width, because of cross-attention")
        if self.family == "seq2seq" and self.decoder.residual == "parallel":  # type: ignore[union-attr]
            raise ValueError('decoder: residual = "parallel" does not support cross-attention; use "serial"')
        if self.head.kind in ("lm", "mlm") and self.head.outputs != self.stack.vocab_size:
            raise ValueError(f"head outputs = {self.head.outputs} must equal vocab_size = {self.stack.vocab_size}")

    @property
    def family(self) -> Family:
        """Encoder-only, decoder-only, or seq2seq."""
        if self.decoder is None:
            return "encoder"
        return "decoder" if self.encoder is None else "seq2seq"

    @property
    def stack(self) -> StackConfig:
        """The stack that the head reads: the decoder if there is one."""
        stack = self.decoder or self.encoder
        assert stack is not None
        return stack

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, as `config.json` holds them."""
        return {"format": "qkv", "version": CONFIG_VERSION, "family": self.family, **asdict(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "config.json") -> "Config":
        """The inverse of `to_dict`. An error names the fields that are unknown or missing."""
        if not isinstance(values, dict):
            raise QkvError(f"{where}: expected a table of fields, found {type(values).__name__}")
        if old := find_old_names(values, "config"):
            raise QkvError(describe_old_names(where, old))
        version = values.get("version", CONFIG_VERSION)
        if version != CONFIG_VERSION:
            raise QkvError(f"{where}: format version {version!r}, but this qkv reads {CONFIG_VERSION}; update qkv")
        family = values.get("family")
        values = {k: v for k, v in values.items() if k not in ("format", "version", "family")}
        for side in ("encoder", "decoder"):
            if values.get(side) is not None:
                values[side] = _stack_from(values[side], f"{where}: {side}")
        if "head" in values:
            values["head"] = _construct(HeadConfig, values["head"], f"{where}: head")
        config: Config = _construct(cls, values, where)
        if family not in (None, config.family):
            raise QkvError(f"{where}: family = {family!r}, but with its stacks it is {config.family!r}")
        return config


def _stack_from(values: Any, where: str) -> StackConfig:
    if isinstance(values, dict) and values.get("rotary_scaling") is not None:
        scaling = _construct(RotaryScaling, values["rotary_scaling"], f"{where}: rotary_scaling")
        values = {**values, "rotary_scaling": scaling}
    stack: StackConfig = _construct(StackConfig, values, where)
    return stack


def _construct(cls: type, values: Any, where: str) -> Any:
    """A config dataclass from plain values; errors name the field."""
    if not isinstance(values, dict):
        raise QkvError(f"{where}: expected a table of fields, found {type(values).__name__}")
    known = {f.name: f for f in fields(cls)}
    for name in values:
        if name not in known:
            raise QkvError(f"{where}: unknown field {name!r}; {suggest_name(name, known)}")
    needed = [n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in needed if name not in values]
    if missing:
        raise QkvError(f"{where}: missing {', '.join(missing)}")
    try:
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except (ValueError, TypeError) as error:
        raise QkvError(f"{where}: {error}") from error
