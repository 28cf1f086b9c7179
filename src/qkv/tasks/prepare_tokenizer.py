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
from qkv.store.hub import locate
from qkv.tasks.prepare_data import BuiltinPart, Part, Progress, digest
from qkv.text import Tokenizer
from qkv.text.train import LOSSLESS
from qkv.train.midway import run_of
from qkv.train.recipe import ObjectiveSection, Recipe, TokenizerSection

VERSION = 1  # raise it when the same texts and choices give another tokenizer
MOST = 200_000_000  # characters that a tokenizer learns from; more changes little and costs much
MADE = 20_000  # examples of an endless dataset: what is made by rule has shown all its pieces by then
SENTINELS = 100


@dataclass(frozen=True)
class Special:
    """The special tokens that an objective needs, and what encoding lays around a text."""

    roles: tuple[str, ...]
    template: str = "none"
    sentinels: int = 0


BERT = Special(("pad", "classify", "separator", "mask"), "bert")


def special_of(objective: ObjectiveSection) -> Special:
    """What a new tokenizer is given for an objective."""
    match objective.kind:
        case "pairs":
            return Special(("pad", "start", "end"), "end")
        case "next_token":
            # Texts that stand in no frame teach nothing about a start and an end, so there are none to write.
            return Special(("pad", "start", "end"), "start") if objective.framed else Special(("pad",))
        case "spans":
            return Special(("pad", "end"), "end", SENTINELS)
        case "denoise":
            return Special(("pad", "start", "end", "mask"), "end")
    return BERT


def tokenizer_for(
    recipe: Recipe, parts: list[Part], root: Path, progress: Progress | None = None
) -> tuple[Tokenizer, str]:
    """The run's tokenizer, and a sentence on where it came from."""
    section = recipe.tokenizer
    given = section.from_ or recipe.model.from_
    if given:
        path = run_of(Path(given).expanduser())
        folder = path if path.exists() else locate(given)
        try:
            return Tokenizer.load(folder), f"the tokenizer of {given}"
        except QkvError as error:
            if section.from_:
                raise
            raise QkvError(f"{error}\nmodel.from has no tokenizer: say with tokenizer.from where one is") from None
    special = special_of(recipe.objective)
    made_from = digest(
        [VERSION, [part.identity(root) for part in parts], _choices(section), special.roles, special.template]
        + ([special.sentinels] if special.sentinels else [])
    )
    folder = root / "tokenizers" / made_from
    tokenizer = kept(folder)
    if tokenizer is None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{made_from}.lock")):
            tokenizer = kept(folder)  # another process may have trained it while we waited
            if tokenizer is None:
                building = folder.with_name(f".{made_from}.building")
                trained(section, special, parts, progress).save(building)
                shutil.rmtree(folder, ignore_errors=True)
                building.rename(folder)
                tokenizer = Tokenizer.load(folder)
    return tokenizer, f"a {section.kind} tokenizer of {tokenizer.size:,} pieces, trained on the data"


def kept(folder: Path) -> Tokenizer | None:
    """The tokenizer in a folder; None where there is none, or a damaged one, which is trained again."""
    try:
        return Tokenizer.load(folder)
    except QkvError:
        return None


def _choices(section: TokenizerSection) -> list[object]:
    return [section.kind, section.size, section.lowercase, section.min_count]


def trained(
    section: TokenizerSection, special: Special, parts: list[Part], progress: Progress | None = None
) -> Tokenizer:
    """Train one on the texts of the data."""
    roles = special.roles
    if section.kind not in LOSSLESS:
        roles = (roles[0], "unknown", *roles[1:])
    report = (lambda done, total: progress("training the tokenizer", done, total)) if progress else None
    return Tokenizer.train(
        section.kind,
        texts_of(parts),
        section.size,
        roles=roles,
        sentinels=special.sentinels,
        template=special.template,
        lowercase=section.lowercase,
        min_count=section.min_count,
        progress=report,
    )


def texts_of(parts: list[Part]) -> Iterator[str]:
    """The texts of the records, of each part at most its share of `MOST` characters."""
    for part in parts:
        left = MOST // len(parts)
        endless = isinstance(part, BuiltinPart) and part.dataset.length(part.split) is None
        for record in islice(part.records(Problems(max_bad=1)), MADE if endless else None):
            for text in texts_in(record):
                left -= len(text)
                yield text
            if left < 0:
                break


def texts_in(record: Record) -> Iterator[str]:
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
