"""Finding and reading a tokenizer in a folder.

What is looked for, in this order; the first that is there is read:

| files                                                         | what they are                                  |
|---------------------------------------------------------------|------------------------------------------------|
| `tokenizer.json`                                              | any tokenizer of the Hugging Face library      |
| `source.spm`, `target.spm`, `vocab.json`                      | Marian                                         |
| `spiece.model`, `sentencepiece.bpe.model`, `tokenizer.model`  | SentencePiece: T5, ALBERT, XLM-R, mBART, Llama |
| `vocab.json`, `merges.txt`                                    | byte-level BPE: GPT-2, RoBERTa, BART           |
| `vocab.txt`                                                   | WordPiece: BERT                                |

Also read, where they are there: `tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json`,
`chat_template.jinja` and the model's `config.json`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from qkv.errors import QkvError
from qkv.text import files
from qkv.text.formats import families, legacy, marian, sentencepiece
from qkv.text.formats.sentencepiece import SentencePieceModel

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
MODEL_CONFIG_FILE = "config.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
# The family meant by the file's name where no other file says.
SENTENCEPIECE_FILES = {"spiece.model": "t5", "sentencepiece.bpe.model": "xlmroberta", "tokenizer.model": "llama"}


@dataclass
class TokenizerFiles:
    """What a folder says about its tokenizer."""

    backend: Backend
    config: dict[str, Any] = field(default_factory=dict)
    model_config: dict[str, Any] = field(default_factory=dict)
    target_backend: Backend | None = None  # the target texts' tokenizer where it differs
    marian_tokenizers: marian.MarianTokenizers | None = None  # Marian's two sides


def load_tokenizer_files(path: Path) -> TokenizerFiles:
    """The tokenizer at `path`: a tokenizer.json (its neighbours are read too), or a folder."""
    if path.is_file():
        folder, file = path.parent, path
    elif path.is_dir():
        folder, file = path, path / TOKENIZER_FILE
    else:
        raise QkvError(f"{path}: no such file or folder; give a tokenizer.json or the folder that holds it")
    config = files.read_object(folder / SPECIAL_TOKENS_FILE) | files.read_object(folder / CONFIG_FILE)
    if (folder / CHAT_TEMPLATE_FILE).is_file():
        config["chat_template"] = files.read_text(folder / CHAT_TEMPLATE_FILE)
    model_config = files.read_object(folder / MODEL_CONFIG_FILE)
    if file.is_file():
        return TokenizerFiles(read_backend(file), config, model_config)
    return load_legacy(folder, config, model_config)


def load_legacy(folder: Path, config: dict[str, Any], model_config: dict[str, Any]) -> TokenizerFiles:
    """The tokenizer of a folder without a tokenizer.json."""
    there = {file.name for file in folder.iterdir()}

    def settled(
        otherwise: str, model: SentencePieceModel | None = None
    ) -> tuple[families.TokenizerFamily, dict[str, Any]]:
        family = families.find_family(config, model_config, otherwise)
        full = legacy.complete_config(config, family, model)
        full.pop("tokenizer_class", None)  # saved as tokenizer.json, any reader can read it
        return family, full

    if {"source.spm", "target.spm", "vocab.json"} <= there:
        _, full = settled("marian")
        both = marian.load_marian(folder, full)
        return TokenizerFiles(
            both.source.vocab_backend,
            full | {"tokenizer_class": "MarianTokenizer"},
            model_config,
            marian_tokenizers=both,
        )
    if name := next((name for name in SENTENCEPIECE_FILES if name in there), None):
        model = sentencepiece.read_model(folder / name)
        family, full = settled(SENTENCEPIECE_FILES[name], model)
        backend = legacy.from_sentencepiece(model, folder / name, family, full)
        return TokenizerFiles(
            backend, full, model_config, legacy.make_target_backend(backend, family, full, folder / name)
        )
    if {"vocab.json", "merges.txt"} <= there:
        vocabulary = legacy.read_vocabulary(folder / "vocab.json")
        family, full = settled("roberta" if "<mask>" in vocabulary else "gpt2")
        backend = legacy.from_vocab_merges(folder / "vocab.json", folder / "merges.txt", family, full)
        return TokenizerFiles(backend, full, model_config)
    if "vocab.txt" in there:
        family, full = settled("bert")
        return TokenizerFiles(legacy.from_vocab_txt(folder / "vocab.txt", family, full), full, model_config)
    if half := there & {"vocab.json", "merges.txt", "source.spm", "target.spm"}:
        raise QkvError(
            f"{folder}: {', '.join(sorted(half))} alone is not a tokenizer: byte-level BPE needs vocab.json and "
            "merges.txt, Marian needs source.spm, target.spm and vocab.json"
        )
    raise QkvError(
        f"{folder}: no tokenizer here; looked for {TOKENIZER_FILE}, {', '.join(SENTENCEPIECE_FILES)}, vocab.json with merges.txt, "
        "vocab.txt"
    )


def read_backend(file: Path) -> Backend:
    """A tokenizer.json as a backend; an error that names the file where it cannot be one."""
    text = files.read_text(file)
    try:
        return Backend.from_str(text)
    except Exception as error:  # the library raises plain Exception for whatever is wrong
        raise QkvError(
            f"{file}: not a usable tokenizer.json ({error}); it may be cut short or made by something else: "
            "fetch or save it again"
        ) from None
