"""The tokenizer of a run: loaded from a folder or a checkpoint, or trained on the data.

A trained tokenizer is cached under a hash of its data and options, so that the next run with the same data and options
loads it instead of training it again.
"""

import shutil
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from unicodedata import category

from filelock import FileLock

from qkv.data import Problems, Record
from qkv.data.objectives.table import OBJECTIVES, ObjectiveSpec, RequiredTokens
from qkv.errors import QkvError
from qkv.files import describe_os_error, to_path
from qkv.progress import OnStage
from qkv.store.hub import resolve_folder
from qkv.tasks.prepare.sources import BuiltinSource, DataSource, FileSource, digest
from qkv.text import Tokenizer
from qkv.text.kinds import TOKENIZER_KINDS
from qkv.text.tokenizer import SYMBOLS_KEY
from qkv.train.checkpoint.files import run_path
from qkv.train.recipe.schema import Recipe, TokenizerSection

CACHE_VERSION = 3  # increase it if the same texts and options give another tokenizer
MAX_TRAINING_CHARS = 200_000_000  # a longer text is sampled: more text takes long and hardly changes a tokenizer
SAMPLE_SEED = 0
PROBE_CHARS = 16_000_000  # characters from which the number of all characters is estimated
SAMPLE_KEY = "training_sample"  # key of tokenizer_config.json: the fraction of the text that was sampled
MIN_SYMBOL_TEXTS = 5  # a symbol in fewer texts counts as unseen
MAX_SYMBOL_TEXTS = 100_000  # texts of new data whose symbols are added to a trained tokenizer
ENDLESS_TRAINING_EXAMPLES = 20_000  # examples of an endless dataset: enough to contain its whole vocabulary
TEXT_MODALITIES = ("text", "texts", "words", "messages")
ROLES_WITHOUT_TEXT = ("pad", "bos", "eos", "cls")  # special tokens of a model that reads no texts
NOT_TEXT = (
    "label",
    "tags",
    "score",
    "starts",
    "start",
    "end",
    "speaker",
)  # fields that a tokenizer does not learn from


def load_or_train_tokenizer(
    recipe: Recipe, sources: Sequence[DataSource], root: Path, progress: OnStage | None = None
) -> tuple[Tokenizer, str]:
    """The run's tokenizer, and a phrase that describes its origin."""
    section, spec = recipe.tokenizer, OBJECTIVES[recipe.objective.kind]
    given = section.from_ or recipe.model.from_
    if given:
        path = run_path(to_path(given))
        folder = path if path.exists() else resolve_folder(given)
        try:
            loaded = Tokenizer.load(folder)
        except QkvError as error:
            if section.from_:
                raise
            if not reads_texts(spec, sources):
                return Tokenizer.without_tokens(), "no tokens, because the model reads no texts"
            raise QkvError(
                f"{error}\nmodel.from = {given!r} has no tokenizer; set tokenizer.from to a folder that has one"
            ) from None
        if isinstance(loaded.config.get(SYMBOLS_KEY), str):
            add_symbols(loaded, sources)
        return loaded, f"the tokenizer of {given}"
    if recipe.data.modality == "protein" and section.kind == "char" and spec.families[0] == "encoder":
        return Tokenizer.for_proteins(), "the tokenizer of ESM-2: one token for each residue"
    required = spec.required_tokens(recipe.objective)
    if not reads_texts(spec, sources):
        kept = tuple(role for role in required.special_tokens if role in ROLES_WITHOUT_TEXT)
        section, required, sources = replace(section, kind="special"), RequiredTokens(kept), ()
    options = [section.kind, section.vocab_size, section.lowercase, section.min_frequency]
    identities = [source.identity(root) for source in sources]
    made_from = [CACHE_VERSION, identities, options, required.special_tokens, required.template]
    key = digest(made_from + ([required.num_sentinels] if required.num_sentinels else []))
    folder = root / "tokenizers" / key
    tokenizer = load_cached(folder)
    if tokenizer is None:
        try:
            tokenizer = train_into_cache(folder, section, required, sources, progress)
        except OSError as error:
            raise QkvError(
                f"{root}: cannot be the folder for tokenised data ({describe_os_error(error)}); "
                "choose another with data.cache_dir=…"
            ) from error
    if section.kind == "special":
        return tokenizer, "a vocabulary of special tokens, because the records have no texts"
    sample = tokenizer.config.get(SAMPLE_KEY)
    trained_on = f"a sample of {sample['fraction']:.2%} of the text (seed {sample['seed']})" if sample else "the data"
    return tokenizer, f"a {section.kind} tokenizer of {tokenizer.vocab_size:,} tokens, trained on {trained_on}"


def reads_texts(spec: ObjectiveSpec, sources: Sequence[DataSource]) -> bool:
    """Whether a field of the records is a text."""
    return any(one.modality in TEXT_MODALITIES for one in spec.fields if one.name in sources[0].fields)


def train_into_cache(
    folder: Path,
    section: TokenizerSection,
    required: RequiredTokens,
    sources: Sequence[DataSource],
    progress: OnStage | None,
) -> Tokenizer:
    """Train a tokenizer and save it in `folder`, unless another process does so meanwhile."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if (tokenizer := load_cached(folder)) is not None:
            return tokenizer
        building = folder.with_name(f".{folder.name}.building")
        fractions = sample_fractions(sources) or [1.0]
        tokenizer = train_tokenizer(section, required, sources, fractions, progress)
        if min(fractions) < 1:
            tokenizer.config[SAMPLE_KEY] = {"fraction": min(fractions), "seed": SAMPLE_SEED}
        tokenizer.save(building)
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
        return Tokenizer.load(folder)


def load_cached(folder: Path) -> Tokenizer | None:
    """The tokenizer in a folder; None if there is none or it is damaged, so that it is trained again."""
    try:
        return Tokenizer.load(folder)
    except QkvError:
        return None


def train_tokenizer(
    section: TokenizerSection,
    required: RequiredTokens,
    sources: Sequence[DataSource],
    fractions: Sequence[float],
    progress: OnStage | None = None,
) -> Tokenizer:
    """A tokenizer trained on the texts of the data, or on a sample of each source."""
    special_tokens, kind = required.special_tokens, TOKENIZER_KINDS[section.kind]
    if kind.reads_texts and not kind.is_byte_level:
        special_tokens = (special_tokens[0], "unk", *special_tokens[1:])
    counts = Counter[str]()
    tokenizer = Tokenizer.train(
        section.kind,
        count_symbols(training_texts(sources, fractions[: len(sources)]), counts),
        section.vocab_size,
        special_tokens=special_tokens,
        num_sentinels=required.num_sentinels,
        template=required.template,
        lowercase=section.lowercase,
        min_frequency=section.min_frequency,
        progress=partial(progress, "training the tokenizer") if progress else None,
    )
    tokenizer.config[SYMBOLS_KEY] = frequent_symbols(counts)
    return tokenizer


def count_symbols(texts: Iterable[str], counts: Counter[str]) -> Iterator[str]:
    """Yield the texts, and count in `counts` for each character the number of texts that contain it."""
    for text in texts:
        counts.update(set(text))
        yield text


def frequent_symbols(counts: Counter[str]) -> str:
    """The symbols and punctuation marks that are in at least `MIN_SYMBOL_TEXTS` texts."""
    return "".join(
        sorted(one for one, count in counts.items() if count >= MIN_SYMBOL_TEXTS and category(one)[0] in "PS")
    )


def add_symbols(tokenizer: Tokenizer, sources: Sequence[DataSource]) -> None:
    """Add the symbols of new training data to the symbols that a tokenizer has seen."""
    counts = Counter[str]()
    texts = training_texts(sources, [1.0] * len(sources))
    deque(count_symbols(islice(texts, MAX_SYMBOL_TEXTS), counts), maxlen=0)
    symbols = {*tokenizer.config[SYMBOLS_KEY], *frequent_symbols(counts)}
    tokenizer.config[SYMBOLS_KEY] = "".join(sorted(symbols))


def sample_fractions(sources: Sequence[DataSource]) -> list[float]:
    """The fraction of each source's records to train on: `MAX_TRAINING_CHARS` characters, the same for each source."""
    return [min(1.0, MAX_TRAINING_CHARS / len(sources) / max(estimate_chars(source), 1)) for source in sources]


def estimate_chars(source: DataSource) -> float:
    """The number of characters in a source's texts, estimated from its first records and the size of its files."""
    if not isinstance(source, FileSource):
        return 0.0
    done_bytes = total_bytes = chars = 0

    def progress(done: int, total: int) -> None:
        nonlocal done_bytes, total_bytes
        done_bytes, total_bytes = done, total

    for record in source.files.records(Problems(max_invalid_fraction=1), progress):
        chars += sum(map(len, record_texts(record)))
        if chars >= PROBE_CHARS and 0 < done_bytes < total_bytes:
            return chars * total_bytes / done_bytes
    return float(chars)


def training_texts(sources: Sequence[DataSource], fractions: Sequence[float]) -> Iterator[str]:
    """The texts of the records, or of a random sample of them, which is the same in every run."""
    for source, fraction in zip(sources, fractions, strict=True):
        rng = Random(SAMPLE_SEED)
        is_endless = isinstance(source, BuiltinSource) and source.dataset.length(source.split) is None
        records = source.records(Problems(max_invalid_fraction=1))
        for record in islice(records, ENDLESS_TRAINING_EXAMPLES if is_endless else None):
            if fraction == 1 or rng.random() < fraction:
                yield from record_texts(record)


def record_texts(record: Record) -> Iterator[str]:
    """The texts in a record, without labels and tags."""
    for name, value in record.fields.items():
        if name in NOT_TEXT:
            continue
        if isinstance(value, str):
            yield value
        elif name == "tokens" and isinstance(value, list):
            yield " ".join(map(str, value))
        elif isinstance(value, list):
            for one in value:
                text = one.get("content") if isinstance(one, dict) else one
                if isinstance(text, str):
                    yield text
