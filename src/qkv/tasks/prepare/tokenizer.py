"""The tokenizer of a run: loaded from a folder or a checkpoint, or trained on the data.

A trained tokenizer is cached under a hash of its data and options, so that the next run with the same data and options
loads it instead of training it again.
"""

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from filelock import FileLock

from qkv.data import Problems, Record
from qkv.data.objectives.table import OBJECTIVES, RequiredTokens
from qkv.errors import QkvError
from qkv.files import to_path
from qkv.progress import OnStage
from qkv.store.hub import resolve_folder
from qkv.tasks.prepare.sources import BuiltinSource, DataSource, digest
from qkv.text import Tokenizer
from qkv.text.train import BYTE_LEVEL_KINDS
from qkv.train.recipe.schema import Recipe, TokenizerSection
from qkv.train.run.load import run_path

CACHE_VERSION = 1  # increase it if the same texts and options give another tokenizer
MAX_TRAINING_CHARS = 200_000_000  # more text takes long and hardly changes a tokenizer
ENDLESS_TRAINING_EXAMPLES = 20_000  # examples of an endless dataset: enough to contain its whole vocabulary
NOT_TEXT = ("label", "tags", "score", "starts")  # fields that a tokenizer does not learn from


def load_or_train_tokenizer(
    recipe: Recipe, sources: Sequence[DataSource], root: Path, progress: OnStage | None = None
) -> tuple[Tokenizer, str]:
    """The run's tokenizer, and a phrase that describes its origin."""
    section = recipe.tokenizer
    given = section.from_ or recipe.model.from_
    if given:
        path = run_path(to_path(given))
        folder = path if path.exists() else resolve_folder(given)
        try:
            return Tokenizer.load(folder), f"the tokenizer of {given}"
        except QkvError as error:
            if section.from_:
                raise
            raise QkvError(
                f"{error}\nmodel.from = {given!r} has no tokenizer; set tokenizer.from to a folder that has one"
            ) from None
    required = OBJECTIVES[recipe.objective.kind].required_tokens(recipe.objective)
    options = [section.kind, section.vocab_size, section.lowercase, section.min_frequency]
    identities = [source.identity(root) for source in sources]
    made_from = [CACHE_VERSION, identities, options, required.special_tokens, required.template]
    key = digest(made_from + ([required.num_sentinels] if required.num_sentinels else []))
    folder = root / "tokenizers" / key
    tokenizer = load_cached(folder)
    if tokenizer is None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{key}.lock")):
            tokenizer = load_cached(folder)  # another process may have trained it meanwhile
            if tokenizer is None:
                building = folder.with_name(f".{key}.building")
                train_tokenizer(section, required, sources, progress).save(building)
                shutil.rmtree(folder, ignore_errors=True)
                building.rename(folder)
                tokenizer = Tokenizer.load(folder)
    return tokenizer, f"a {section.kind} tokenizer of {tokenizer.vocab_size:,} tokens, trained on the data"


def load_cached(folder: Path) -> Tokenizer | None:
    """The tokenizer in a folder; None if there is none or it is damaged, so that it is trained again."""
    try:
        return Tokenizer.load(folder)
    except QkvError:
        return None


def train_tokenizer(
    section: TokenizerSection, required: RequiredTokens, sources: Sequence[DataSource], progress: OnStage | None = None
) -> Tokenizer:
    """A tokenizer trained on the texts of the data."""
    special_tokens = required.special_tokens
    if section.kind not in BYTE_LEVEL_KINDS:
        special_tokens = (special_tokens[0], "unk", *special_tokens[1:])
    return Tokenizer.train(
        section.kind,
        training_texts(sources),
        section.vocab_size,
        special_tokens=special_tokens,
        num_sentinels=required.num_sentinels,
        template=required.template,
        lowercase=section.lowercase,
        min_frequency=section.min_frequency,
        progress=partial(progress, "training the tokenizer") if progress else None,
    )


def training_texts(sources: Sequence[DataSource]) -> Iterator[str]:
    """The texts of the records: at most `MAX_TRAINING_CHARS` characters, divided equally between the sources."""
    for source in sources:
        chars_left = MAX_TRAINING_CHARS // len(sources)
        is_endless = isinstance(source, BuiltinSource) and source.dataset.length(source.split) is None
        records = source.records(Problems(max_invalid_fraction=1))
        for record in islice(records, ENDLESS_TRAINING_EXAMPLES if is_endless else None):
            for text in record_texts(record):
                chars_left -= len(text)
                yield text
            if chars_left < 0:
                break


def record_texts(record: Record) -> Iterator[str]:
    """The texts in a record, without labels and tags."""
    for name, value in record.fields.items():
        if name in NOT_TEXT:
            continue
        if isinstance(value, str):
            yield value
        elif name == "tokens":
            yield " ".join(map(str, value))
        elif isinstance(value, list):
            for one in value:
                text = one.get("content") if isinstance(one, dict) else one
                if isinstance(text, str):
                    yield text
