"""Prepare everything that training needs: the data as packed sequences, a tokenizer, a config, and notes.

    prepared = prepare(read_recipe("translate.toml"))
    prepared.build_network()                     the network to train
    Loader(prepared.train_data)                  the batches

Contradictions between recipe, data and model are errors here, before the first step.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qkv.data import EncodedExamples, Objective, Problems, Record, SequenceStream, SpecialTokenTemplate, find_classes
from qkv.data.modalities import describe_front_ends
from qkv.data.objectives.table import OBJECTIVES, ObjectiveSetup, ObjectiveSpec, payload_formats
from qkv.data.payloads import PayloadFormat
from qkv.data.problems import TooManyProblems
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError, UsageError
from qkv.images.codec import ImageCodes
from qkv.models import Config, Network
from qkv.progress import OnStage
from qkv.store.word_vectors import WordVectors
from qkv.tasks.metrics import is_entity_tagging
from qkv.tasks.prepare.aligner import SpeechAligner
from qkv.tasks.prepare.codec import load_or_fit_codec
from qkv.tasks.prepare.columns import check_num_classes
from qkv.tasks.prepare.evaluation_check import check_evaluation
from qkv.tasks.prepare.joined_examples import JoinedExamples
from qkv.tasks.prepare.memory import check_fixed_memory
from qkv.tasks.prepare.model import (
    ModelRequirements,
    build_config,
    build_network,
    checkpoint_notes,
    ignored_notes,
    make_words_config,
)
from qkv.tasks.prepare.sentence_pairs import MAX_PAIRS, MAX_PAIRS_READ, find_reads_sentences
from qkv.tasks.prepare.sources import (
    DataSource,
    DataSources,
    FileSource,
    cache_root,
    check_cache_folder,
    find_unseen_label,
    open_sources,
    rank_records,
    sample_records,
)
from qkv.tasks.prepare.tokenizer import load_or_train_tokenizer
from qkv.tasks.prepare.word_vectors import apply_word_vectors, load_word_vectors
from qkv.tasks.run.tag_order import is_possible
from qkv.tasks.table import name_task
from qkv.text import Tokenizer
from qkv.text.chat_template import DEFAULT_TEMPLATE
from qkv.train.recipe.check import check_recipe
from qkv.train.recipe.schema import Recipe
from qkv.train.run.load import load_model

MAX_CLASSES = 10_000  # a column with more distinct values is not a label
MIN_IN_ORDER = 0.99  # of the sentences, if the tags of a tagger are in order; the others are mistakes
MAX_LAST_RECORDS = 10_000  # validation records that the last evaluation may use
MAX_SCOPE_RECORDS = 4000  # validation records used to fit the threshold for texts out of scope
CHUNK_EXAMPLES = 2**18  # examples whose lengths are read at a time


@dataclass
class PreparedRun:
    """Everything that a run needs."""

    recipe: Recipe
    tokenizer: Tokenizer
    config: Config
    train_data: SequenceStream
    valid_data: SequenceStream | None
    valid_records: list[Record]  # for the task's metrics, with the objective's field names
    more_valid_records: list[Record]  # that the last evaluation uses, too, as far as there is time
    scope_records: list[Record]  # validation records in and out of scope, if the recipe has objective.out_of_scope
    labels: tuple[str, ...]
    notes: list[str]  # for the user: what was skipped, truncated, held out and decided
    problems: Problems  # problems in the training files
    fields: frozenset[str] = field(default_factory=frozenset)  # the objective's fields that the records have
    codec: ImageCodes | SpeechAligner | None = None  # what turns pictures into codes, or aligns texts with speech
    word_vectors: WordVectors | None = None  # the initial embeddings, if the recipe has `model.vectors`

    def build_network(self, device: torch.device | str = "cpu") -> Network:
        """The network to train, with the checkpoint's weights, or new weights that depend on the seed only."""
        network = build_network(self.recipe, self.config, device)
        if self.word_vectors is not None:
            apply_word_vectors(network, self.word_vectors)
        if self.codec is not None:
            network.back_ends[self.codec.config.kind].load_state_dict(self.codec.state_dict())
        return network


def prepare(
    recipe: Recipe,
    progress: OnStage | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    free_memory: int | None = None,
) -> PreparedRun:
    """Read, tokenise and pack a recipe's data, and choose the config of a model for it.

    A resumed run passes the `tokenizer` that it already has. A model that needs more than `free_memory` bytes is an
    error before the data is tokenised.

    >>> prepare(recipe).train_data.batch_size                                  # doctest: +SKIP
    """
    check_recipe(recipe)
    root = cache_root(recipe.data)
    if recipe.data.cache_dir:
        check_cache_folder(root)
    try:
        return _prepare(recipe, open_sources(recipe), root, progress, tokenizer, free_memory)
    except TooManyProblems as error:
        raise QkvError(str(error).replace("max_invalid_fraction", "data.max_invalid_fraction")) from None


def _prepare(
    recipe: Recipe,
    sources: DataSources,
    root: Path,
    progress: OnStage | None,
    tokenizer: Tokenizer | None,
    free_memory: int | None,
) -> PreparedRun:
    data, spec = recipe.data, OBJECTIVES[recipe.objective.kind]
    train_sources = list(sources.train.values())
    fields = train_sources[0].fields
    check_fields(fields, [*train_sources, *sources.valid])
    check_micro_batch(recipe, fields)
    notes = list(sources.notes)
    if tokenizer is None:
        tokenizer, origin = load_or_train_tokenizer(recipe, train_sources, root, progress)
        notes.append(origin)
    if "messages" in fields and not tokenizer.config.get("chat_template"):
        tokenizer.config["chat_template"] = DEFAULT_TEMPLATE
    classes, multi_label, tags_in_order = _find_classes(recipe, train_sources, fields)

    payloads = find_payload_formats(recipe, fields)
    codec, on_codec = load_or_fit_codec(recipe, train_sources, root, tokenizer, classes, progress)
    notes += [on_codec] if on_codec else []
    # The config depends only on the fields of the records, so it is checked before they are tokenised.
    requirements = ModelRequirements(
        tokenizer,
        classes,
        is_regression=spec.head == "classify" and "score" in fields,
        multi_label=multi_label,
        tags_in_order=tags_in_order,
        token_types=2 if spec.pair_field in fields else spec.token_types * (len(classes) or 1),
        max_length=max(data.max_length, data.max_source_length),
        front_ends=(
            *{format.kind: format.front_end for format in payloads.values()}.values(),
            *make_words_config(recipe, tokenizer),
        ),
        back_ends=() if codec is None else (codec.config,),
    )
    config = name_task(build_config(recipe, requirements), recipe.objective.kind)
    check_fixed_memory(recipe, config, free_memory)
    notes += [*ignored_notes(recipe), *checkpoint_notes(recipe, config, tokenizer)]
    word_vectors = load_word_vectors(recipe.model, config, tokenizer)
    if word_vectors is not None:
        notes.append(word_vectors.describe(tokenizer.vocab_size))
    out_of_scope = recipe.objective.out_of_scope
    valid_records, more = _sample_validation(sources.valid, recipe.train.eval_examples, without=out_of_scope)
    scope_records = _sample_validation(sources.valid, MAX_SCOPE_RECORDS)[0] if out_of_scope else []
    check_evaluation(recipe, config, valid_records)

    setup = ObjectiveSetup(
        recipe.objective,
        tokenizer,
        fields,
        classes,
        multi_label,
        max_length=data.max_length,
        max_source_length=data.max_source_length or None,
        too_long=data.too_long or spec.too_long_policies[0],
        decoder_start_token_id=config.decoder_start_token_id,
        max_score=data.max_score,
        payloads=payloads,
        codec=codec,
        family=config.family,
    )
    reader = _ExampleReader(recipe, setup, config, root, progress)
    problems = Problems(data.max_invalid_fraction)
    train_data = reader.read_training_data(sources, problems, notes)
    valid_data = reader.read_validation_data(sources, train_data, problems, notes) if sources.valid else None
    if problems.num_invalid or problems.categories:
        notes.append(str(problems.summary()))
    config = _describe_inputs(config, spec, fields, train_sources, notes)
    return PreparedRun(
        recipe=recipe,
        tokenizer=tokenizer,
        config=config,
        train_data=train_data,
        valid_data=valid_data,
        valid_records=valid_records,
        more_valid_records=[] if spec.reads_documents else more,
        scope_records=scope_records,
        labels=classes,
        notes=notes,
        problems=problems,
        fields=fields,
        word_vectors=word_vectors,
        codec=codec,
    )


def _describe_inputs(
    config: Config, spec: ObjectiveSpec, fields: frozenset[str], sources: list[DataSource], notes: list[str]
) -> Config:
    """The config, which says whether the training texts are single sentences, and whether they are pairs."""
    reads_sentences = _find_reads_sentences(sources) if fields >= {"source", "target"} else None
    reads_pairs = spec.pair_field in fields if spec.head == "classify" else None
    if reads_sentences:
        notes.append(
            "the pairs are single sentences, so qkv run and m.translate will read a text sentence by sentence; with "
            "--no-sentences (sentences=False), they read it in one piece"
        )
    processor = "careful" if reads_sentences else None
    return replace(config, reads_sentences=reads_sentences, reads_pairs=reads_pairs, text_processor=processor)


def find_payload_formats(recipe: Recipe, fields: frozenset[str]) -> dict[str, PayloadFormat]:
    """How the images of the records are read: as the recipe says, or as the checkpoint that training starts from."""
    spec, overrides = OBJECTIVES[recipe.objective.kind], recipe.model.overrides
    if recipe.model.from_:
        found = load_model(recipe.model.from_, device="meta", unfinished=False).config
        overrides = {**overrides, **describe_front_ends(found)}
    return payload_formats(spec, fields, overrides, recipe.data.augment)


@dataclass
class _ExampleReader:
    """Turns sources into streams of examples, and describes them in the notes."""

    recipe: Recipe
    setup: ObjectiveSetup
    config: Config
    root: Path
    progress: OnStage | None

    def __post_init__(self) -> None:
        self.spec = OBJECTIVES[self.recipe.objective.kind]
        self.encode = self.spec.make_encoder(self.setup)

    def read_training_data(self, sources: DataSources, problems: Problems, notes: list[str]) -> SequenceStream:
        """The stream of training examples. This sets the sequence lengths that all sources share in `setup`."""
        encoded = {name: self.encode_source(source, problems) for name, source in sources.train.items()}
        objectives, self.setup = _make_objectives(self.recipe, self.setup, encoded)
        mixed = objectives if self.recipe.data.mix else next(iter(objectives.values()))
        stream = self.make_stream(mixed, weights=sources.weights or None)
        check_positions(self.config, objectives)
        check_token_types(self.config, self.setup.tokenizer, stream)
        notes += [f"{name or 'training'}: {objective.counts}" for name, objective in objectives.items()]
        return stream

    def read_validation_data(
        self, sources: DataSources, train_data: SequenceStream, problems: Problems, notes: list[str]
    ) -> SequenceStream:
        """The stream of validation examples. `problems` gets the problems of files that training does not read."""
        found = Problems(self.recipe.data.max_invalid_fraction)
        try:
            parts = [self.encode_source(source, found) for source in sources.valid]
        except TooManyProblems as error:
            advice = _advise_out_of_scope(self.recipe, sources.valid, self.setup.classes)
            raise TooManyProblems(f"{error}{advice}") from None
        examples = parts[0] if len(parts) == 1 else JoinedExamples(parts)
        objective = self.spec.make_examples(self.setup.for_evaluation(), examples)
        if objective.counts.examples == 0:
            raise QkvError(
                f"no validation examples are left ({objective.counts}); raise data.valid_fraction or data.max_length, "
                "or set data.valid to other files"
            )
        check_positions(self.config, {"validation": objective})
        notes.append(f"validation: {objective.counts}")
        if not sources.valid_is_held_out:
            problems.merge(found.summary().to_dict())
        elif unseen := found.categories.get("unknown class"):
            have = "records have" if unseen.count > 1 else "record has"
            notes.append(
                f"validation: {unseen.count:,} {have} a {'tag' if self.spec.head == 'tag' else 'label'} that is not in "
                "the training data: left out of the loss, and counted as wrong"
            )
        return self.make_stream(objective, max_documents=train_data.max_documents)

    def encode_source(self, source: DataSource, problems: Problems) -> EncodedExamples:
        """The token ids of a source."""
        stage = partial(self.progress, f"tokenising {source.description}") if self.progress else None
        return source.encoded(self.encode, self.root, problems, stage)

    def make_stream(self, examples: Objective | Mapping[str, Objective], **options: Any) -> SequenceStream:
        """The stream of these examples, with the recipe's batches, seed and layout."""
        train, layout = self.recipe.train, self.recipe.data.layout
        return SequenceStream(examples, batch_tokens=train.batch_tokens, seed=train.seed, layout=layout, **options)


def _find_classes(
    recipe: Recipe, sources: Sequence[DataSource], fields: frozenset[str]
) -> tuple[tuple[str, ...], bool, bool]:
    """The classes in all of the training data, whether texts have lists of labels, and whether tags are in order."""
    spec = OBJECTIVES[recipe.objective.kind]
    if spec.class_field not in fields:
        return (), False, False
    problems = Problems(max_invalid_fraction=1)
    num_lists = num_in_order = 0

    def notice_lists(records: Iterable[Record]) -> Iterator[Record]:
        nonlocal num_lists, num_in_order
        for record in records:
            labels = record.fields.get(spec.class_field)
            if isinstance(labels, list):
                num_lists += 1
                num_in_order += is_possible([str(one) for one in labels])
            yield record

    readers = [notice_lists(source.records(problems)) for source in sources]
    found = {one for records in readers for one in find_classes(records, spec.class_field)}
    found -= {recipe.objective.out_of_scope}
    name = sources[0].description
    if len(found) > MAX_CLASSES:
        raise UsageError(
            f"{name}: {len(found):,} different values in {spec.class_field}, but at most "
            f"{MAX_CLASSES:,} classes are supported; is this the right column? Set data.columns to choose another"
        )
    if spec.head == "classify":
        check_num_classes(found, name, problems)
    in_order = is_entity_tagging(found) and num_in_order >= MIN_IN_ORDER * num_lists
    return tuple(sorted(found)), spec.head == "classify" and num_lists > 0, in_order


def _advise_out_of_scope(recipe: Recipe, valid: Sequence[DataSource], classes: Collection[str]) -> str:
    """The advice to set `objective.out_of_scope`, if the validation data has one label that the training data lacks."""
    options = OBJECTIVES[recipe.objective.kind].options
    can_advise = "out_of_scope" in options and not recipe.objective.out_of_scope and classes
    label = find_unseen_label(valid, classes) if can_advise else ""
    advice = f' If the texts with the label {label!r} belong to no class, set objective.out_of_scope="{label}".'
    return advice if label else ""


def _find_reads_sentences(sources: Sequence[DataSource]) -> bool | None:
    """Whether the model should read texts sentence by sentence. None if the sources do not agree."""
    found = set()
    for source in sources:
        max_read = MAX_PAIRS  # a built-in dataset has the same kind of pairs everywhere
        if isinstance(source, FileSource):
            # without the split: to read one part of a split may take reading all of the files
            source, max_read = replace(source, split=None), MAX_PAIRS_READ
        records = sample_records(source.records(Problems(max_invalid_fraction=1)), MAX_PAIRS, max_read)
        pairs = [(record.fields.get("source"), record.fields.get("target")) for record in records]
        found.add(find_reads_sentences([(a, b) for a, b in pairs if isinstance(a, str) and isinstance(b, str)]))
    return found.pop() if len(found) == 1 else None


def _make_objectives(
    recipe: Recipe, setup: ObjectiveSetup, encoded: Mapping[str, EncodedExamples]
) -> tuple[dict[str, Objective], ObjectiveSetup]:
    """The training examples of all sources with common sequence lengths, and the setup with these lengths."""
    spec, batch_tokens = OBJECTIVES[recipe.objective.kind], recipe.train.batch_tokens
    objectives = {name: spec.make_examples(setup, examples) for name, examples in encoded.items()}
    max_lengths = [objective.max_lengths for objective in objectives.values()]
    target, *source = np.max(max_lengths, axis=0).tolist()
    setup = replace(setup, max_length=target, max_source_length=source[0] if source else None)
    if len(set(max_lengths)) > 1:
        objectives = {name: spec.make_examples(setup, examples) for name, examples in encoded.items()}
    if batch_tokens < target + sum(source):
        lengths = f"{source[0]} source and {target} target tokens" if source else f"{target} tokens"
        hint = " (the source length follows in proportion, or set data.max_source_length)" if source else ""
        raise UsageError(
            f"train.batch_tokens = {batch_tokens} is less than one sequence of {lengths}: raise it, or lower "
            f"data.max_length{hint}"
        )
    return objectives, setup


def _sample_validation(
    sources: Sequence[DataSource], count: int, without: str = ""
) -> tuple[list[Record], list[Record]]:
    """`count` validation records, the same number from each source, and up to `MAX_LAST_RECORDS` in all.

    None of them has the label `without`.
    """
    if not sources or not count:
        return [], []
    each = -(-count // len(sources))
    readers: list[Iterable[Record]] = [source.records(Problems(max_invalid_fraction=1)) for source in sources]
    if without:
        readers = [(one for one in records if str(one.fields.get("label")) != without) for records in readers]
    ranked = [rank_records(records, max(each, MAX_LAST_RECORDS // len(sources))) for records in readers]
    usual = [record for one in ranked for _, record in sorted(one[:each], key=lambda pair: pair[0])]
    return usual[:count], [*usual[count:], *(record for one in ranked for _, record in one[each:])]


def check_fields(fields: frozenset[str], sources: Sequence[DataSource]) -> None:
    """Raise an error if a source lacks a field that the first source has."""
    for source in sources[1:]:
        if missing := sorted(fields - source.fields):
            raise UsageError(
                f"{source.description} has no field {missing[0]!r}, but {sources[0].description} has it; "
                "all files must have the same fields: add the column, or set data.columns"
            )


def check_positions(config: Config, objectives: Mapping[str, Objective]) -> None:
    """Raise an error if an example is longer than the model's positions; a packed sequence may be longer."""
    for objective in objectives.values():
        names = ("max_length", "max_source_length")[: len(objective.max_lengths)]
        stacks = (config.stack, config.encoder or config.stack)
        for side, (name, stack) in enumerate(zip(names, stacks, strict=False)):
            if not stack.has_max_positions or objective.max_lengths[side] <= stack.max_positions:
                continue
            longest = max_example_length(objective, side)
            if longest > stack.max_positions:
                raise UsageError(
                    f"an example has {longest:,} tokens, but this model has only {stack.max_positions:,} positions; "
                    f"lower data.{name} to {stack.max_positions:,}, or raise model.max_positions"
                )


def check_micro_batch(recipe: Recipe, fields: frozenset[str]) -> None:
    """Raise an error for gradient accumulation with in-batch negatives, which come from the whole batch."""
    micro, whole = recipe.train.micro_batch_tokens, recipe.train.batch_tokens
    if uses_in_batch_negatives(recipe, fields) and micro not in (0, "auto", whole):
        raise UsageError(
            f"train.micro_batch_tokens = {micro!r}: the contrastive loss compares each pair with all others of a step, "
            "but a micro-batch has fewer pairs. Leave it out and lower train.batch_tokens, or save memory with "
            "train.gradient_checkpointing = true"
        )


def uses_in_batch_negatives(recipe: Recipe, fields: frozenset[str]) -> bool:
    """Whether the loss of an example depends on the others in its batch: embeddings of pairs without scores."""
    return OBJECTIVES[recipe.objective.kind].head == "embed" and "score" not in fields


def check_token_types(config: Config, tokenizer: Tokenizer, stream: SequenceStream) -> None:
    """Raise an error if the tokenizer gives the second of two texts a token type that the model does not have."""
    second, known = SpecialTokenTemplate.from_tokenizer(tokenizer).second_token_type, config.stack.token_types
    if stream.has_token_types and 0 < known <= second:
        raise UsageError(
            f"the tokenizer gives the second of two texts the token type {second}, but this model has only {known} "
            "token type; use the tokenizer that belongs to the model"
        )


def max_example_length(objective: Objective, side: int) -> int:
    """The tokens of the longest example, on the target side (`side` = 0) or the source side (1)."""
    rng, longest = EpochRng(0), 0
    count = objective.num_examples(rng)
    for start in range(0, count, CHUNK_EXAMPLES):
        lengths = objective.lengths(np.arange(start, min(start + CHUNK_EXAMPLES, count)), rng)
        longest = max(longest, int(lengths[:, side].max(initial=0)))
    return longest
