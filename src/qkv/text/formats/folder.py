"""Find and read the tokenizer of a folder.

The first of these that the folder has is read:

| files                                                         | format                                         |
|---------------------------------------------------------------|------------------------------------------------|
| `tokenizer.json`                                              | any tokenizer of the Hugging Face library      |
| `source.spm`, `target.spm`, `vocab.json`                      | Marian                                         |
| `spiece.model`, `sentencepiece.bpe.model`, `tokenizer.model`  | SentencePiece: T5, ALBERT, XLM-R, mBART, Llama |
| `vocab.json`, `merges.txt`                                    | byte-level BPE: GPT-2, RoBERTa, BART           |
| `vocab.txt`                                                   | WordPiece: BERT; residues of proteins: ESM     |

Also read, if present: `tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json`, `chat_template.jinja`
and the model's `config.json`.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as Backend

from qkv.errors import QkvError
from qkv.files import parse_json, read_json_object, read_text, to_path
from qkv.text.formats.growth import check_growth
from qkv.text.formats.vocabulary import check_ids, read_vocabulary

if TYPE_CHECKING:
    from qkv.text.formats.families import TokenizerFamily
    from qkv.text.formats.marian import MarianTokenizers
    from qkv.text.formats.sentencepiece import SentencePieceModel

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
MODEL_CONFIG_FILE = "config.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
# File name → tokenizer family, if no other file names the family.
SENTENCEPIECE_FILES = {"spiece.model": "t5", "sentencepiece.bpe.model": "xlmroberta", "tokenizer.model": "llama"}


@dataclass
class TokenizerFiles:
    """The tokenizer of a folder, with the contents of its config files."""

    backend: Backend
    config: dict[str, Any] = field(default_factory=dict)
    model_config: dict[str, Any] = field(default_factory=dict)
    target_backend: Backend | None = None  # for target texts, where they are encoded differently (mBART)
    marian_tokenizers: "MarianTokenizers | None" = None


def load_tokenizer_files(path: Path) -> TokenizerFiles:
    """Read the tokenizer at `path`: a folder, or a tokenizer.json, whose neighbours are read too."""
    path = to_path(path)
    if path.is_file():
        folder, file = path.parent, path
    elif path.is_dir():
        folder, file = path, path / TOKENIZER_FILE
    else:
        raise QkvError(f"{path}: no such file or folder; give a tokenizer.json or a folder with a tokenizer")
    config = read_optional_object(folder / SPECIAL_TOKENS_FILE) | read_optional_object(folder / CONFIG_FILE)
    if (folder / CHAT_TEMPLATE_FILE).is_file():
        config["chat_template"] = read_text(check_link(folder / CHAT_TEMPLATE_FILE))
    model_config = read_optional_object(folder / MODEL_CONFIG_FILE)
    if file.is_file():
        return TokenizerFiles(read_backend(file), config, model_config)
    return load_legacy(folder, config, model_config)


def load_legacy(folder: Path, config: dict[str, Any], model_config: dict[str, Any]) -> TokenizerFiles:
    """Read the tokenizer of a folder without a tokenizer.json."""
    from qkv.text.formats import legacy, marian, sentencepiece
    from qkv.text.formats.families import find_family

    names = {file.name for file in folder.iterdir()}

    def find_family_and_config(
        default_family: str, model: "SentencePieceModel | None" = None
    ) -> "tuple[TokenizerFamily, dict[str, Any]]":
        family = find_family(config, model_config, default_family)
        full_config = legacy.complete_config(config, family, model)
        full_config.pop("tokenizer_class", None)  # a tokenizer saved as tokenizer.json does not need this key
        return family, full_config

    if {"source.spm", "target.spm", "vocab.json"} <= names:
        _, full_config = find_family_and_config("marian")
        both = marian.load_marian(folder, full_config)
        full_config["tokenizer_class"] = "MarianTokenizer"
        return TokenizerFiles(both.source.vocab_backend, full_config, model_config, marian_tokenizers=both)
    if name := next((name for name in SENTENCEPIECE_FILES if name in names), None):
        file = folder / name
        model = sentencepiece.read_model(file)
        family, full_config = find_family_and_config(SENTENCEPIECE_FILES[name], model)
        backend = legacy.from_sentencepiece(model, file, family, full_config)
        target_backend = legacy.make_target_backend(backend, family, full_config, file)
        return TokenizerFiles(backend, full_config, model_config, target_backend)
    if {"vocab.json", "merges.txt"} <= names:
        vocabulary = read_vocabulary(folder / "vocab.json")
        family, full_config = find_family_and_config("roberta" if "<mask>" in vocabulary else "gpt2")
        backend = legacy.from_vocab_merges(folder / "vocab.json", folder / "merges.txt", family, full_config)
        return TokenizerFiles(backend, full_config, model_config)
    if "vocab.txt" in names:
        is_esm = "<cls>" in read_text(folder / "vocab.txt").split("\n")
        family, full_config = find_family_and_config("esm" if is_esm else "bert")
        backend = legacy.from_vocab_txt(folder / "vocab.txt", family, full_config)
        return TokenizerFiles(backend, full_config, model_config)
    if incomplete := names & {"vocab.json", "merges.txt", "source.spm", "target.spm"}:
        raise QkvError(
            f"{folder}: {', '.join(sorted(incomplete))} alone is not a tokenizer: byte-level BPE needs vocab.json and "
            "merges.txt, Marian needs source.spm, target.spm and vocab.json"
        )
    raise QkvError(
        f"{folder}: no tokenizer here; looked for {TOKENIZER_FILE}, {', '.join(SENTENCEPIECE_FILES)}, "
        "vocab.json with merges.txt, vocab.txt"
    )


def read_optional_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file."""
    return read_json_object(file) if os.path.lexists(file) else {}


def check_link(file: Path) -> Path:
    """Return a file of text. Raises an error if it links to a file of another folder, which may be private.

    In the Hub's cache, the files of a folder link to `blobs`, two folders above it.
    """
    folder, target = file.parent.resolve(), file.resolve()
    if not any(target.is_relative_to(allowed) for allowed in (folder, folder.parent.parent / "blobs")):
        raise QkvError(
            f"{file}: links to {target}, which is not in this folder; replace the link by a copy of the file"
        )
    return file


def read_backend(file: Path) -> Backend:
    """Read a tokenizer.json."""
    text = read_text(file)
    with suppress(ValueError):  # the library says what is wrong with other values
        if isinstance(content := parse_json(text), dict):
            check_growth(content, str(file))
    try:
        backend = Backend.from_str(text)
    except Exception as error:  # the library raises plain Exception
        raise QkvError(
            f"{file}: not a usable tokenizer.json ({error}); it may be truncated or from another program: "
            "fetch or save it again"
        ) from None
    check_ids(backend.get_vocab(with_added_tokens=True), file)
    return backend
