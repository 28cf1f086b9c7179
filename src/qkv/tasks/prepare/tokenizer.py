"""The tokenizer of a run: a checkpoint's, a file's, or one trained on the data with the special tokens it will need.

A trained one is kept in the cache under what it was made from, so that the next run with the same data and choices
has it at once, and has the same one.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from filelock import FileLock

from qkv.data import Problems, Record
from qkv.errors import QkvError
from qkv.store.hub import resolve_folder
from qkv.tasks.prepare.sources import BuiltinSource, DataSource, PhaseProgress, digest
from qkv.text import Tokenizer
from qkv.text.train import BYTE_LEVEL_KINDS
from qkv.train.recipe.schema import ObjectiveSection, Recipe, TokenizerSection
from qkv.train.run.load import run_path

CACHE_VERSION = 1  # raise it when the same texts and choices give another tokenizer
MAX_TRAINING_CHARS = 200_000_000  # characters that a tokenizer learns from; more changes little and costs much
ENDLESS_TRAINING_EXAMPLES = (
    20_000  # examples of an endless dataset: what is made by rule has shown all its pieces by then
)
NUM_SENTINELS = 100


@dataclass(frozen=True)
class RequiredTokens:
    """The special tokens that an objective needs, and what encoding lays around a text."""

    special_tokens: tuple[str, ...]
    template: str = "none"
    num_sentinels: int = 0


BERT = RequiredTokens(("pad", "cls", "sep", "mask"), "bert")


def special_of(objective: ObjectiveSection) -> RequiredTokens:
    """What a new tokenizer is given for an objective."""
    match objective.kind:
        case "seq2seq":
            return RequiredTokens(("pad", "bos", "eos"), "eos")
        case "causal_lm":
            # Texts that stand in no frame teach nothing about a start and an end, so there are none to write.
            return (
                RequiredTokens(("pad", "bos", "eos"), "bos") if objective.add_bos_eos else RequiredTokens(("pad",))
            )
        case "span_corruption":
            return RequiredTokens(("pad", "eos"), "eos", NUM_SENTINELS)
        case "denoising":
            return RequiredTokens(("pad", "bos", "eos", "mask"), "eos")
    return BERT


def load_or_train_tokenizer(
    recipe: Recipe, parts: list[DataSource], root: Path, progress: PhaseProgress | None = None
) -> tuple[Tokenizer, str]:
    """The run's tokenizer, and a sentence on where it came from."""
    section = recipe.tokenizer
    given = section.from_ or recipe.model.from_
    if given:
        path = run_path(Path(given).expanduser())
        folder = path if path.exists() else resolve_folder(given)
        try:
            return Tokenizer.load(folder), f"the tokenizer of {given}"
        except QkvError as error:
            if section.from_:
                raise
            raise QkvError(f"{error}\nmodel.from has no tokenizer: say with tokenizer.from where one is") from None
    special = special_of(recipe.objective)
    made_from = digest(
        [
            CACHE_VERSION,
            [part.identity(root) for part in parts],
            _tokenizer_options(section),
            special.special_tokens,
            special.template,
        ]
        + ([special.num_sentinels] if special.num_sentinels else [])
    )
    folder = root / "tokenizers" / made_from
    tokenizer = load_cached(folder)
    if tokenizer is None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{made_from}.lock")):
            tokenizer = load_cached(folder)  # another process may have trained it while we waited
            if tokenizer is None:
                building = folder.with_name(f".{made_from}.building")
                train_tokenizer(section, special, parts, progress).save(building)
                shutil.rmtree(folder, ignore_errors=True)
                building.rename(folder)
                tokenizer = Tokenizer.load(folder)
    return tokenizer, f"a {section.kind} tokenizer of {tokenizer.vocab_size:,} pieces, trained on the data"


def load_cached(folder: Path) -> Tokenizer | None:
    """The tokenizer in a folder; None where there is none, or a damaged one, which is trained again."""
    try:
        return Tokenizer.load(folder)
    except QkvError:
        return None


def _tokenizer_options(section: TokenizerSection) -> list[object]:
    return [section.kind, section.vocab_size, section.lowercase, section.min_frequency]


def train_tokenizer(
    section: TokenizerSection, required: RequiredTokens, parts: list[DataSource], progress: PhaseProgress | None = None
) -> Tokenizer:
    """Train one on the texts of the data."""
    roles = required.special_tokens
    if section.kind not in BYTE_LEVEL_KINDS:
        roles = (roles[0], "unk", *roles[1:])
    report = (lambda done, total: progress("training the tokenizer", done, total)) if progress else None
    return Tokenizer.train(
        section.kind,
        training_texts(parts),
        section.vocab_size,
        special_tokens=roles,
        num_sentinels=required.num_sentinels,
        template=required.template,
        lowercase=section.lowercase,
        min_frequency=section.min_frequency,
        progress=report,
    )


def training_texts(parts: list[DataSource]) -> Iterator[str]:
    """The texts of the records, of each part at most its share of `MOST` characters."""
    for part in parts:
        left = MAX_TRAINING_CHARS // len(parts)
        endless = isinstance(part, BuiltinSource) and part.dataset.length(part.split) is None
        for record in islice(
            part.records(Problems(max_invalid_fraction=1)), ENDLESS_TRAINING_EXAMPLES if endless else None
        ):
            for text in record_texts(record):
                left -= len(text)
                yield text
            if left < 0:
                break


def record_texts(record: Record) -> Iterator[str]:
    """What there is to read in a record; of labels and tags nothing."""
    for name, value in record.fields.items():
        if name in ("label", "tags", "score", "starts"):
            continue
        if isinstance(value, str):
            yield value
        elif name == "tokens":
            yield " ".join(map(str, value))
        elif isinstance(value, list):
            for one in value:
                said = one.get("content") if isinstance(one, dict) else one
                if isinstance(said, str):
                    yield said
