"""The config of a model: an encoder, a decoder or both, a head, and the special tokens that the network needs.

encoder only           BERT and its relatives
decoder only           GPT and its relatives
encoder and decoder    the 2017 Transformer, T5, BART
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from qkv.blocks import HeadConfig, StackConfig
from qkv.blocks.back_ends import BACK_ENDS, BackEndConfig
from qkv.blocks.front_ends import FRONT_ENDS, FrontEndConfig
from qkv.blocks.parts import PARTS
from qkv.plugins import Plugin, find_plugins, plugins_to_json
from qkv.tables import OpenTable
from qkv.values import check

Family = Literal["encoder", "decoder", "seq2seq"]
ENDS: dict[str, OpenTable[Any]] = {"front_ends": FRONT_ENDS, "back_ends": BACK_ENDS}
"""The fields of a config that list front ends and back ends, and the tables of their kinds."""
FRONT_ENDS.add_built_in("patches", "qkv.images.config:PATCHES")
FRONT_ENDS.add_built_in("log-mel", "qkv.sounds.config:LOG_MEL")
BACK_ENDS.add_built_in("image-codes", "qkv.images.config:IMAGE_CODES")
BACK_ENDS.add_built_in("griffin-lim", "qkv.sounds.config:GRIFFIN_LIM")
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
    front_ends: tuple[FrontEndConfig, ...] = ()  # what the model reads besides tokens, such as patches of images
    back_ends: tuple[BackEndConfig, ...] = ()  # what draws the codes that the model generates
    share_embeddings: bool = False  # seq2seq: source and target share one token embedding
    pad_token_id: int | None = None  # None: the model has no padding token
    decoder_start_token_id: int | None = None  # the first token of a target
    eos_token_ids: tuple[int, ...] = ()  # the tokens that end a generated text
    architecture: str = ""  # the public architecture of an imported model; export tries it first
    reads_sentences: bool | None = None  # seq2seq: texts are split into sentences by default; None: not known
    reads_pairs: bool | None = None  # classifiers: trained on pairs of texts, not on single texts; None: not known
    task: str | None = None  # the task that it was trained for; None: the default task of its head and family
    text_processor: str | None = None  # translators: the name of a text processor (`tasks/run/translation/processors`)

    def __post_init__(self) -> None:
        check(self)
        for field_name, table in ENDS.items():
            for name in (kinds := [end.kind for end in getattr(self, field_name)]):
                table.find(name, field_name)
                if kinds.count(name) > 1:
                    raise ValueError(f"{field_name}: {name!r} occurs {kinds.count(name)} times; list each kind once")
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
        if self.family != "encoder" and any(stack.embedding_window for stack in self.stacks.values()):
            raise ValueError(f"embedding_window is for a model of family 'encoder', not {self.family!r}; leave it out")
        for name, stack in self.stacks.items():
            if (check_stack := PARTS["block"][stack.block].check) is not None:
                check_stack(stack, name)
        if self.family == "seq2seq" and self.encoder.has_blocks != self.decoder.has_blocks:  # type: ignore[union-attr]
            raise ValueError(
                f"encoder: block = {self.encoder.block!r}, but decoder: block = "  # type: ignore[union-attr]
                f"{self.decoder.block!r}: both stacks must have Transformer blocks, or neither"  # type: ignore[union-attr]
            )
        if self.head.kind in ("lm", "mlm") and self.head.outputs != self.stack.vocab_size:
            raise ValueError(f"head outputs = {self.head.outputs} must equal vocab_size = {self.stack.vocab_size}")
        self._check_codes()

    def _check_codes(self) -> None:
        """Raise if a code of a back end is not an id of the vocabulary, or is also a code of another back end."""
        end = 0
        for one in sorted(self.back_ends, key=lambda one: one.first_id):
            if one.num_codes and one.first_id < end:
                raise ValueError(f"back_ends: the codes of {one.kind!r} overlap with others at {one.first_id}")
            end = max(end, one.ids.stop)
        if end > self.stack.vocab_size:
            raise ValueError(
                f"back_ends: codes end at {end}, but vocab_size = {self.stack.vocab_size}; raise vocab_size"
            )

    @property
    def family(self) -> Family:
        """The family of the model: encoder-only, decoder-only, or seq2seq."""
        if self.decoder is None:
            return "encoder"
        return "decoder" if self.encoder is None else "seq2seq"

    @property
    def stack(self) -> StackConfig:
        """The config of the stack under the head: the decoder if there is one, else the encoder."""
        stack = self.decoder or self.encoder
        assert stack is not None
        return stack

    @property
    def stacks(self) -> dict[str, StackConfig]:
        """The configs of the stacks by name, "encoder" before "decoder"."""
        both = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: stack for name, stack in both.items() if stack is not None}

    @property
    def has_blocks(self) -> bool:
        """Whether the stacks consist of Transformer blocks."""
        return self.stack.has_blocks

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether batches of one shape have tensors of the same shapes in all parts, as CUDA graphs need."""
        return all(stack.has_fixed_shapes for stack in self.stacks.values())

    @property
    def keeps_state(self) -> bool:
        """Whether decoding keeps more than keys and values: the state of a part."""
        return self.stack.keeps_state

    def list_parts(self) -> list[tuple[str, str]]:
        """Return the slots and the names of all parts, such as ("feedforward", "swiglu")."""
        return [(slot, getattr(stack, slot)) for stack in self.stacks.values() for slot in PARTS]

    def find_plugins(self) -> list[Plugin]:
        """Return the modules outside qkv that registered what this config names: parts, front ends, the task."""
        names = [(table.kind, end.kind) for field, table in ENDS.items() for end in getattr(self, field)]
        names += [("task", self.task or ""), ("text processor", self.text_processor or "")]
        return find_plugins([*self.list_parts(), *names])

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `config.json`. `store/config_json.py` has the inverse."""
        values = asdict(self)
        for name in ENDS:
            del values[name]
            if ends := getattr(self, name):
                values[name] = [{"kind": end.kind, **asdict(end)} for end in ends]
        for name in ("task", "text_processor"):
            if values[name] is None:
                del values[name]
        if plugins := self.find_plugins():
            values["plugins"] = plugins_to_json(plugins)
        return {"format": "qkv", "version": CONFIG_VERSION, "family": self.family, **values}
