"""A tiny encoder with random weights that embeds texts."""

from pathlib import Path

import qkv
from qkv.text import Tokenizer

TEXT = "the quick brown fox jumps over the lazy dog and sleeps in a warm house by the sea 0123456789 .,?!-#"


def make_embedder(seed: int = 1, head: str = "embed", max_positions: int = 40) -> qkv.Model:
    roles = ["pad", "unk", "cls", "sep", "mask"]
    tokenizer = Tokenizer.train("wordpiece", iter([TEXT]), 150, special_tokens=roles, template="bert", min_frequency=1)
    stack = qkv.StackConfig(
        vocab_size=tokenizer.vocab_size,
        width=16,
        layers=1,
        heads=2,
        ffn_width=32,
        position="learned",
        max_positions=max_positions,
        init_std=0.5,
    )
    heads = {"embed": qkv.HeadConfig(kind="embed", pool="mean", normalize=True), "none": qkv.HeadConfig(kind="none")}
    return qkv.new(
        qkv.Config(encoder=stack, head=heads[head], pad_token_id=tokenizer.special_tokens.pad),
        tokenizer=tokenizer,
        seed=seed,
    )


def write_files(folder: Path) -> Path:
    """A folder with two texts, one in a sub-folder, and files that are skipped."""
    (folder / "deep").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "fox.md").write_text("# The fox\n\nThe quick brown fox jumps.\nIt sleeps.\n\nA house by the sea.\n")
    (folder / "deep/dog.txt").write_bytes(b"\xef\xbb\xbfThe lazy dog.\r\n\r\nIt is warm.\r\n")
    (folder / "picture.bin").write_bytes(b"\x89PNG\0\0")
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    (folder / ".hidden").write_text("the secret fox")
    (folder / ".git/config").write_text("the secret dog")
    (folder / "empty.txt").write_text("")
    return folder
