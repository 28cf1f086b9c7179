"""The table of objectives. Each row describes one objective to the rest of the toolkit.

The table is used to check recipes, to recognise columns, to prepare the data, tokenizer and model, and to find the loss
of a batch. The row of an objective is in the objective's own file, and is imported when it is first used. To add an
objective from outside, call `register_objective`; CONTRIBUTING.md shows how.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from qkv.data.cache.examples import EncodedExamples
from qkv.data.cache.writer import RecordEncoder
from qkv.data.modalities import MODALITIES
from qkv.data.objectives.base import TOKEN_LABELS, Label, Objective, TooLongPolicy
from qkv.data.objectives.loss import ForwardPass, LossSums, token_loss
from qkv.data.payloads import PayloadFormat
from qkv.data.text_lists import ListMeaning
from qkv.errors import UsageError
from qkv.tables import OpenTable
from qkv.text import Tokenizer

if TYPE_CHECKING:
    from qkv.blocks.config import HeadConfig


@dataclass(frozen=True)
class RecordField:
    """A field that an objective reads, and other column names that are recognised as this field."""

    name: str
    column_names: tuple[str, ...] = ()
    modality: str = "text"  # a row of `MODALITIES`
    optional: bool = False
    only_with: str = ""  # the field is read only if the records have this other field, too
    unless: tuple[str, ...] = ()  # records with one of these fields may lack this one: pairs are made of them
    is_sparse: bool = False  # only some of the records may have this field
    is_drawn: bool = False  # the model does not read it, but learns to draw it with a back end
    list_meaning: ListMeaning | None = None  # what a list of texts in this field means; None: the field is not a text


@dataclass(frozen=True)
class RequiredTokens:
    """The special tokens of a tokenizer that is trained for an objective, and its template."""

    special_tokens: tuple[str, ...]
    template: str = "none"
    num_sentinels: int = 0


@dataclass(frozen=True)
class ObjectiveSetup:
    """The settings from which the encoder and the examples of an objective are made."""

    options: Any  # the recipe's [objective] section
    tokenizer: Tokenizer
    fields: frozenset[str]  # the fields of the records
    classes: tuple[str, ...] = ()
    multi_label: bool = False  # classification: a record has a list of labels
    max_length: int = 512  # tokens of a sequence; for encoder-decoder models, of the target
    max_source_length: int | None = None  # None: the objective chooses a length
    too_long: TooLongPolicy = "error"
    decoder_start_token_id: int | None = None  # None: chosen by the tokenizer
    max_score: float = 1.0  # scores are divided by this number
    payloads: Mapping[str, PayloadFormat] = field(default_factory=dict)  # by the field of the records
    codec: Any = None  # the back end whose codes are the targets
    family: str = ""  # of the model
    is_evaluation: bool = False  # the examples are validation data

    def for_evaluation(self) -> "ObjectiveSetup":
        """The setup for validation data: nothing is augmented or dropped."""
        return replace(
            self, is_evaluation=True, payloads={name: one.for_evaluation() for name, one in self.payloads.items()}
        )

    @property
    def sequence_kwargs(self) -> dict[str, Any]:
        """Keyword arguments for objectives with one sequence per example."""
        return {"max_length": self.max_length, "too_long": self.too_long}

    @property
    def window_kwargs(self) -> dict[str, Any]:
        """Keyword arguments for objectives that cut documents into windows."""
        return {**self.sequence_kwargs, "random_offset": self.options.random_offset}


def only_token_labels(head: "HeadConfig") -> tuple[Label, ...]:
    """The labels of objectives that predict a class for each token."""
    return (TOKEN_LABELS,)


@dataclass(frozen=True, kw_only=True)
class ObjectiveSpec:
    """A row of the table."""

    name: str
    families: tuple[str, ...]  # the model families that support the objective; the first is the default
    head: str  # the kind of the model's head
    fields: tuple[RecordField, ...]
    required_tokens: Callable[[Any], RequiredTokens]  # [objective] section → special tokens of a new tokenizer
    too_long_policies: tuple[TooLongPolicy, ...]  # the allowed values of data.too_long; the first is the default
    options: tuple[str, ...]  # the keys of [objective] that apply to this objective
    make_encoder: Callable[[ObjectiveSetup], RecordEncoder]  # records → token ids
    make_examples: Callable[[ObjectiveSetup, EncodedExamples], Objective]  # token ids → training examples
    loss: Callable[[ForwardPass], LossSums] = token_loss
    labels: Callable[["HeadConfig"], tuple[Label, ...]] = only_token_labels  # the labels that suit a head
    # groups of fields; a record needs exactly one field of each group, and the first is preferred
    alternatives: tuple[tuple[str, ...], ...] = ()
    reads_documents: bool = False  # whether a text file is read as one document; otherwise each line is a record
    aligned_fields: tuple[str, ...] = ()  # the fields of two line-aligned files, in the order of the files
    group_by: str = ""  # records with equal values of this field stay on the same side of a validation split
    class_field: str = ""  # the field whose values are the classes of the head
    pair_field: str = ""  # if records have this field, a sequence holds two texts and needs token types
    reads_payloads: bool = False  # whether fields of the records can be payloads
    hashes_words: bool = False  # whether a model can read hashed words instead of subwords
    token_types: int = 0  # of every sequence, for each class; a sequence with two texts has two anyway
    next_sentence_classes: int = 0  # number of classes of the extra next-sentence classifier (BERT)

    @property
    def required_fields(self) -> list[str]:
        """The fields that every record needs, including the preferred alternative."""
        always = [one.name for one in self.fields if not one.optional and not one.only_with]
        return [*(group[0] for group in self.alternatives), *always]

    @property
    def sparse_names(self) -> list[str]:
        """The names of columns that only some of the records may have."""
        return [name for one in self.fields if one.is_sparse for name in (one.name, *one.column_names)]

    def describe_missing(self, fields: Collection[str]) -> list[str]:
        """The required fields that are not in `fields`; alternatives are listed together, as in "label or score"."""
        applicable = [one for one in self.fields if one.only_with in ("", *fields) and not {*one.unless} & {*fields}]
        needed = [one.name for one in applicable if not one.optional]
        missing = [name for name in needed if name not in fields]
        return missing + [" or ".join(group) for group in self.alternatives if not {*group} & {*fields}]


BUILT_IN = (
    "seq2seq",
    "causal_lm",
    "masked_lm",
    "next_sentence",
    "span_corruption",
    "denoising",
    "classification",
    "tagging",
    "question_answering",
    "contrastive",
    "captioning",
    "visual_questions",
    "drawing",
    "transcription",
    "speech",
)

OBJECTIVES = OpenTable[ObjectiveSpec]("objective", lazy={name: f"qkv.data.objectives.{name}:SPEC" for name in BUILT_IN})


def register_objective(spec: ObjectiveSpec, *, replace: bool = False) -> ObjectiveSpec:
    """Add an objective from outside qkv to the table. `replace` allows the name of an earlier call."""
    return OBJECTIVES.register(spec.name, spec, replace=replace)


def payload_formats(
    spec: ObjectiveSpec, names: Collection[str], settings: Mapping[str, Any] | None = None, augment: Sequence[str] = ()
) -> dict[str, PayloadFormat]:
    """Those of the named fields of an objective's records that are payloads, by the table of modalities.

    `settings` has a table for each modality, such as `[model.image]` of a recipe.
    """
    formats = {}
    for one in (known for known in spec.fields if known.name in names and not known.is_drawn):
        format = MODALITIES.find(one.modality, f"the modality of {one.name}").payload
        if format is not None:
            formats[one.name] = format.configure((settings or {}).get(one.modality, {}), augment)
    if formats and not spec.reads_payloads:
        raise UsageError(f"{spec.name} reads only texts, but its field {next(iter(formats))!r} is a payload")
    if augment and not formats:
        raise UsageError(f"data.augment = {list(augment)} changes images and sounds, but there are none; leave it out")
    return formats


def file_fields(spec: ObjectiveSpec, names: Collection[str]) -> tuple[str, ...]:
    """Those of the named fields of an objective's records whose values are the content of files."""
    found = (one for one in spec.fields if one.name in names)
    return tuple(one.name for one in found if MODALITIES.find(one.modality).payload is not None)


def find_objective(head: "HeadConfig", family: str) -> ObjectiveSpec | None:
    """The first objective that a model with this head and family can learn; None if there is none."""
    suitable = [
        spec
        for spec in OBJECTIVES.values()
        if spec.head == head.kind and bool(spec.next_sentence_classes) == bool(head.next_sentence_classes)
    ]
    own = [spec for spec in suitable if family in spec.families]
    return next(iter(own or [spec for spec in suitable if spec.labels(head)]), None)


def applicable_objectives(option: str) -> list[str]:
    """The objectives that read a key of the recipe's [objective] section.

    >>> applicable_objectives("mean_span_length")
    ['span_corruption', 'denoising']
    """
    return [name for name, spec in OBJECTIVES.items() if option in spec.options]


# Values that several rows share

TEXT_FIELD = RecordField("text", ("content", "document", "body", "article", "story"))
ANY_LENGTH: tuple[TooLongPolicy, ...] = ("split", "skip", "truncate", "error")
WHOLE: tuple[TooLongPolicy, ...] = ("truncate", "skip", "error")


def bert_tokens(options: Any) -> RequiredTokens:
    """The special tokens and the template of BERT."""
    return RequiredTokens(("pad", "cls", "sep", "mask"), "bert")
