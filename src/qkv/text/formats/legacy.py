"""Tokenizers from the formats older than tokenizer.json: vocab.txt, vocab.json + merges.txt, SentencePiece."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from qkv.errors import QkvError
from qkv.files import read_json_object, read_text
from qkv.text.formats.families import FAMILIES, TokenizerFamily
from qkv.text.formats.sentencepiece import CONTROL, UNKNOWN, Piece, SentencePieceModel
from qkv.text.formats.sentencepiece_backend import build_backend
from qkv.text.formats.vocabulary import read_vocabulary
from qkv.text.residues import ESM_TOKENS, is_residue_vocabulary, make_residue_backend
from qkv.text.special_tokens import SPELLINGS, make_post_processor, sentinel_token, template_roles, token_text

TokenizerConfig = dict[str, Any]

MAX_SENTINELS = 65_536


def from_vocab_txt(file: Path, family: TokenizerFamily, config: TokenizerConfig) -> Backend:
    """BERT's WordPiece, or the residues of proteins: one token a line; the id is the line number, from 0."""
    lines = read_text(file).split("\n")
    vocabulary = {line: token_id for token_id, line in enumerate(lines) if line}
    unk = special_token_text(config, "unk")
    if unk not in vocabulary:
        raise QkvError(f"{file}: not a BERT vocabulary: there is no line {unk!r}, the unk token")
    if is_residue_vocabulary(vocabulary):
        return finish_backend(make_residue_backend(vocabulary, unk), family, config, file)
    backend = Backend(models.WordPiece(vocabulary, unk_token=unk))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return finish_backend(backend, family, config, file)


def make_esm_backend() -> tuple[Backend, TokenizerConfig]:
    """The tokenizer of ESM-2, and its config."""
    family = FAMILIES["esm"]
    config = complete_config({}, family)
    backend = make_residue_backend({token: i for i, token in enumerate(ESM_TOKENS)}, family.special_tokens["unk"])
    return finish_backend(backend, family, config, Path("vocab.txt")), config


def from_vocab_merges(vocab_file: Path, merges_file: Path, family: TokenizerFamily, config: TokenizerConfig) -> Backend:
    """GPT-2's and RoBERTa's byte-level BPE."""
    vocabulary = read_vocabulary(vocab_file)
    lines = read_text(merges_file).split("\n")
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not all(pair):
            raise QkvError(f"{merges_file}: line {number} is not two tokens separated by one space: {line[:60]!r}")
        if pair[1].endswith("</w>"):
            raise QkvError(
                f"{merges_file}: merges with </w> at word ends (GPT-1 and CLIP) are not supported in this format; "
                "save a tokenizer.json with transformers"
            )
        merges.append((pair[0], pair[1]))
    try:
        backend = Backend(models.BPE(vocabulary, merges))
    except Exception as error:
        raise QkvError(f"{merges_file}: does not match {vocab_file.name} ({error}); fetch both files again") from None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=config.get("add_prefix_space", False))
    backend.decoder = decoders.ByteLevel()
    return finish_backend(backend, family, config, vocab_file)


def from_sentencepiece(
    model: SentencePieceModel, file: Path, family: TokenizerFamily, config: TokenizerConfig
) -> Backend:
    """A SentencePiece model, with the ids in the family's layout."""
    if family.layout == "fairseq":
        pieces = fairseq_pieces(model, family)
    else:
        num_sentinels = int(config.get("extra_ids") or 0)
        if num_sentinels > MAX_SENTINELS:
            raise QkvError(
                f"{file.parent}: extra_ids = {num_sentinels} in tokenizer_config.json must be at most {MAX_SENTINELS}"
            )
        sentinels = [Piece(sentinel_token(number), 0.0, CONTROL) for number in reversed(range(num_sentinels))]
        pieces = [*model.pieces, *sentinels]
    pre_normalizers: list[Any] = []
    if "keep_accents" in config:  # ALBERT
        pre_normalizers += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        pre_normalizers += [] if config["keep_accents"] else [normalizers.NFKD(), normalizers.StripAccents()]
    if config.get("do_lower_case"):
        pre_normalizers.append(normalizers.Lowercase())
    try:
        backend = build_backend(model, pieces=pieces, pre_normalizers=pre_normalizers)
    except QkvError as error:
        raise QkvError(f"{file}: {error}") from None
    return finish_backend(backend, family, config, file)


def fairseq_pieces(model: SentencePieceModel, family: TokenizerFamily) -> list[Piece]:
    """The pieces in fairseq's order: four special tokens, the file's pieces from the fourth on, languages, mask."""
    first = [Piece("<s>", 0.0, CONTROL), Piece("<pad>", 0.0, CONTROL), Piece("</s>", 0.0, CONTROL)]
    last = [*family.languages, family.special_tokens["mask"]]
    return [*first, Piece("<unk>", 0.0, UNKNOWN), *model.pieces[3:], *(Piece(text, 0.0, CONTROL) for text in last)]


def finish_backend(backend: Backend, family: TokenizerFamily, config: TokenizerConfig, file: Path) -> Backend:
    """Add the special tokens and other added tokens of a folder, and set the template."""
    special = []
    for role, spelling in SPELLINGS.items():
        text = special_token_text(config, role)
        if text is not None and backend.token_to_id(text) is not None:
            # The mask of RoBERTa and mBART includes the space before it.
            lstrip = role == "mask" and family.special_tokens.get("cls") == "<s>"
            entry = config.get(spelling.config_key)
            if isinstance(entry, Mapping):
                lstrip = entry.get("lstrip", lstrip)
            special.append(AddedToken(text, special=True, normalized=False, lstrip=lstrip))
    backend.add_special_tokens(special)
    add_extra_tokens(backend, config, file)
    more = [*tokens_in_list(config, "additional_special_tokens"), *tokens_in_list(config, "extra_special_tokens")]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in more])
    set_template(backend, family, config, file)
    return backend


def set_template(backend: Backend, family: TokenizerFamily, config: TokenizerConfig, file: Path) -> None:
    """Set the post-processor: the family's template, or a template made from `add_bos_token` and `add_eos_token`."""
    tokens: dict[str, tuple[str, int]] = {}
    for role in SPELLINGS:
        text = special_token_text(config, role)
        if text is not None and (token_id := backend.token_to_id(text)) is not None:
            tokens[role] = (text, token_id)
    name = family.template
    if "add_bos_token" in config or "add_eos_token" in config:
        name = "-".join(role for role in ("bos", "eos") if config.get(f"add_{role}_token")) or "none"
    if not template_roles(name) <= tokens.keys() | {"language"}:
        name = "none"  # a custom vocabulary without the family's tokens
    if family.languages:
        tokens["language"] = language_token(backend, config, "src_lang", file)
    backend.post_processor = make_post_processor(name, tokens)


def make_target_backend(
    backend: Backend, family: TokenizerFamily, config: TokenizerConfig, file: Path
) -> Backend | None:
    """The backend for target texts if they have a different language token (mBART); None if they are encoded like
    sources.
    """
    if not family.languages or not config.get("tgt_lang"):
        return None
    copy = Backend.from_str(backend.to_str())
    eos = special_token_text(config, "eos") or ""
    tokens = {"language": language_token(backend, config, "tgt_lang", file), "eos": (eos, backend.get_vocab()[eos])}
    copy.post_processor = make_post_processor(family.template, tokens)
    return copy


def language_token(backend: Backend, config: TokenizerConfig, key: str, file: Path) -> tuple[str, int]:
    """The token of the language code under `key` in tokenizer_config.json, and its id."""
    code = config[key]
    token_id = backend.token_to_id(code) if isinstance(code, str) else None
    if token_id is None:
        raise QkvError(f"{file.parent}: {key} = {code!r} in tokenizer_config.json is not a language of this tokenizer")
    return code, token_id


def add_extra_tokens(backend: Backend, config: TokenizerConfig, file: Path) -> None:
    """Add the tokens of `added_tokens_decoder` in tokenizer_config.json, or of the older added_tokens.json."""
    added: dict[int, AddedToken] = {}
    added_file = file.parent / "added_tokens.json"
    for text, token_id in (read_json_object(added_file) if added_file.is_file() else {}).items():
        added[token_id] = AddedToken(text, normalized=False)
    for token_id, entry in (config.get("added_tokens_decoder") or {}).items():
        flags = {name: bool(entry.get(name)) for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}
        added[int(token_id)] = AddedToken(entry["content"], **flags)
    for token_id, token in sorted(added.items()):
        backend.add_tokens([token])
        if (actual := backend.token_to_id(token.content)) != token_id:
            raise QkvError(
                f"{file.parent}: the added token {token.content!r} should have the id {token_id} but gets {actual}: "
                "the vocabulary and the list of added tokens do not belong together"
            )


def tokens_in_list(config: TokenizerConfig, key: str) -> list[str]:
    """The tokens of a list in tokenizer_config.json."""
    value = config.get(key)
    return [text for token in value if (text := token_text(token))] if isinstance(value, list) else []


def special_token_text(config: TokenizerConfig, role: str) -> str | None:
    """The spelling of a role in tokenizer_config.json."""
    return token_text(config.get(SPELLINGS[role].config_key))


def complete_config(
    config: TokenizerConfig, family: TokenizerFamily, model: SentencePieceModel | None = None
) -> TokenizerConfig:
    """The folder's tokenizer config, completed from the SentencePiece file and then from the family."""
    spellings = dict(family.special_tokens)
    if model is not None and family.layout == "as-is":
        spellings |= {role: model.pieces[i].text for role, i in model.role_ids().items()}
    return {**family.settings, **{SPELLINGS[role].config_key: text for role, text in spellings.items()}, **config}
