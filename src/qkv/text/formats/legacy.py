"""Tokenizers from the files that came before tokenizer.json: vocab.txt, vocab.json + merges.txt, SentencePiece."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from qkv.errors import QkvError
from qkv.text import files, templates
from qkv.text.formats import sentencepiece_backend as pieces
from qkv.text.formats.families import TokenizerFamily
from qkv.text.formats.sentencepiece import CONTROL, UNKNOWN, Piece, SentencePieceModel
from qkv.text.special_tokens import SPELLINGS, sentinel_token, token_text

TokenizerConfig = dict[str, Any]


def from_vocab_txt(file: Path, family: TokenizerFamily, config: TokenizerConfig) -> Backend:
    """BERT's WordPiece: one piece a line, its id the line's place."""
    lines = files.read_text(file).split("\n")
    vocabulary = {line: number for number, line in enumerate(lines) if line}
    unknown = special_token_text(config, "unk")
    if unknown not in vocabulary:
        raise QkvError(f"{file}: has no line {unknown!r}, the piece for unknown text: this is not BERT's vocabulary")
    backend = Backend(models.WordPiece(vocabulary, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return add_special_tokens(backend, family, config, file)


def from_vocab_merges(vocab_file: Path, merges_file: Path, family: TokenizerFamily, config: TokenizerConfig) -> Backend:
    """GPT-2's and RoBERTa's byte-level BPE."""
    vocabulary = read_vocabulary(vocab_file)
    lines = files.read_text(merges_file).split("\n")
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not all(pair):
            raise QkvError(f"{merges_file}: line {number} is not two pieces with one space between: {line[:60]!r}")
        if pair[1].endswith("</w>"):
            raise QkvError(
                f"{merges_file}: these merges mark the ends of words with </w> (GPT-1 and CLIP); that kind is not read "
                "from these two files: save a tokenizer.json with transformers"
            )
        merges.append((pair[0], pair[1]))
    try:
        backend = Backend(models.BPE(vocabulary, merges))
    except Exception as error:
        raise QkvError(f"{merges_file}: does not fit {vocab_file.name} ({error}); fetch both again") from None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=config.get("add_prefix_space", False))
    backend.decoder = decoders.ByteLevel()
    return add_special_tokens(backend, family, config, vocab_file)


def from_sentencepiece(
    model: SentencePieceModel, file: Path, family: TokenizerFamily, config: TokenizerConfig
) -> Backend:
    """A SentencePiece model laid out as the family does it."""
    if family.layout == "fairseq":
        laid = fairseq_pieces(model, family)
    else:
        marks = int(config.get("extra_ids") or 0)
        laid = [*model.pieces, *(Piece(sentinel_token(number), 0.0, CONTROL) for number in reversed(range(marks)))]
    before: list[Any] = []
    if "keep_accents" in config:  # ALBERT
        before += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        before += [] if config["keep_accents"] else [normalizers.NFKD(), normalizers.StripAccents()]
    if config.get("do_lower_case"):
        before.append(normalizers.Lowercase())
    try:
        backend = pieces.build_backend(model, pieces=laid, pre_normalizers=before)
    except QkvError as error:
        raise QkvError(f"{file}: {error}") from None
    return add_special_tokens(backend, family, config, file)


def fairseq_pieces(model: SentencePieceModel, family: TokenizerFamily) -> list[Piece]:
    """fairseq's order of ids: four special tokens of its own, the file's pieces from the fourth on, languages, mask."""
    first = [Piece("<s>", 0.0, CONTROL), Piece("<pad>", 0.0, CONTROL), Piece("</s>", 0.0, CONTROL)]
    last = [*family.languages, family.spellings["mask"]]
    return [
        *first,
        Piece("<unk>", 0.0, UNKNOWN),
        *model.pieces[3:],
        *(Piece(text, 0.0, CONTROL) for text in last),
    ]


# -------------------------------------------------------------------- what they share


def add_special_tokens(backend: Backend, family: TokenizerFamily, config: TokenizerConfig, file: Path) -> Backend:
    """Mark the special tokens, add those that the folder adds, and set the template."""
    special = []
    for role, entry in SPELLINGS.items():
        text = special_token_text(config, role)
        if text is not None and backend.token_to_id(text) is not None:
            # RoBERTa's and mBART's mask takes the space before it along.
            taking = role == "mask" and family.spellings.get("cls") == "<s>"
            given = config.get(entry.config_key)
            given = given if isinstance(given, Mapping) else {}
            special.append(AddedToken(text, special=True, normalized=False, lstrip=given.get("lstrip", taking)))
    backend.add_special_tokens(special)
    add_extra_tokens(backend, config, file)
    more = [*tokens_in_list(config, "additional_special_tokens"), *tokens_in_list(config, "extra_special_tokens")]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in more])
    tokens: dict[str, tuple[str, int]] = {}
    for role in SPELLINGS:
        text = special_token_text(config, role)
        if text is not None and (number := backend.token_to_id(text)) is not None:
            tokens[role] = (text, number)
    name = family.template
    if "add_bos_token" in config or "add_eos_token" in config:
        ends = [part for part, key in (("bos", "add_bos_token"), ("eos", "add_eos_token")) if config.get(key)]
        name = "-".join(ends) or "none"
    if not templates.template_roles(name) <= tokens.keys() | {"language"}:
        name = "none"  # a vocabulary of one's own, without the family's tokens
    if family.languages:
        tokens["language"] = language_token(backend, config, "src_lang", file)
    backend.post_processor = templates.make_post_processor(name, tokens)
    return backend


def make_target_backend(
    backend: Backend, family: TokenizerFamily, config: TokenizerConfig, file: Path
) -> Backend | None:
    """The tokenizer of the target texts, where that language lays out its own (mBART); None where it is the same."""
    if not family.languages or not config.get("tgt_lang"):
        return None
    copy = Backend.from_str(backend.to_str())
    end = special_token_text(config, "eos") or ""
    number = backend.get_vocab()[end]
    tokens = {"language": language_token(backend, config, "tgt_lang", file), "eos": (end, number)}
    copy.post_processor = templates.make_post_processor(family.template, tokens)
    return copy


def language_token(backend: Backend, config: TokenizerConfig, key: str, file: Path) -> tuple[str, int]:
    code = config[key]
    number = backend.token_to_id(code) if isinstance(code, str) else None
    if number is None:
        raise QkvError(f"{file.parent}: {key} = {code!r} in tokenizer_config.json is not a language of this tokenizer")
    return code, number


def add_extra_tokens(backend: Backend, config: TokenizerConfig, file: Path) -> None:
    """The tokens that a folder adds to its vocabulary: `added_tokens_decoder`, or the older added_tokens.json."""
    added: dict[int, AddedToken] = {}
    for text, number in files.read_object(file.parent / "added_tokens.json").items():
        added[number] = AddedToken(text, normalized=False)
    for number, entry in (config.get("added_tokens_decoder") or {}).items():
        flags = {name: bool(entry.get(name)) for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}
        added[int(number)] = AddedToken(entry["content"], **flags)
    for number, token in sorted(added.items()):
        backend.add_tokens([token])
        if (given := backend.token_to_id(token.content)) != number:
            raise QkvError(
                f"{file.parent}: the added token {token.content!r} should have the id {number} but gets {given}: "
                "the vocabulary and the list of added tokens do not belong together"
            )


def tokens_in_list(config: TokenizerConfig, key: str) -> list[str]:
    """The tokens of a list in tokenizer_config.json."""
    value = config.get(key)
    return [text for token in value if (text := token_text(token))] if isinstance(value, list) else []


def special_token_text(config: TokenizerConfig, role: str) -> str | None:
    return token_text(config.get(SPELLINGS[role].config_key))


def complete_config(
    config: TokenizerConfig, family: TokenizerFamily, model: SentencePieceModel | None = None
) -> TokenizerConfig:
    """The folder's settings; where it says nothing, the SentencePiece file's; where that does not, the family's."""
    spellings = dict(family.spellings)
    if model is not None and family.layout == "as-is":
        spellings |= {role: model.pieces[number].text for role, number in model.role_ids().items()}
    return {**family.settings, **{SPELLINGS[role].config_key: text for role, text in spellings.items()}, **config}


def read_vocabulary(file: Path) -> dict[str, int]:
    """A vocab.json: every piece with its id."""
    vocabulary = files.read_object(file)
    if not vocabulary:
        raise QkvError(f"{file}: the vocabulary is empty; fetch the file again")
    for piece, number in vocabulary.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**31:
            raise QkvError(
                f"{file}: the piece {piece[:40]!r} has the id {json.dumps(number)[:40]}, not a whole number from 0"
            )
    return vocabulary
