"""Prepare Multi30k as in the literature: lower case, normalised punctuation, Moses tokenisation.

pip install sacremoses
python examples/multi30k_tokenise.py path/to/multi30k data/multi30k

The script reads train.en.gz, val.en.gz, test_2016_flickr.en.gz and their German counterparts. It writes plain text
files for `qkv train multi30k`.
"""

import gzip
import sys
from pathlib import Path

from sacremoses import MosesPunctNormalizer, MosesTokenizer


def main(source: Path, target: Path) -> None:
    """Read the compressed files in `source` and write tokenised text files to `target`."""
    target.mkdir(parents=True, exist_ok=True)
    for language in ("en", "de"):
        normalise, tokenise = MosesPunctNormalizer(language).normalize, MosesTokenizer(language).tokenize
        for part in ("train", "val", "test_2016_flickr"):
            with gzip.open(source / f"{part}.{language}.gz", "rt", encoding="utf-8") as file:
                lines = [line.rstrip("\n") for line in file]
            words = [tokenise(normalise(line.lower()), escape=False) for line in lines]
            text = "".join(" ".join(line) + "\n" for line in words)
            (target / f"{part}.{language}").write_text(text, encoding="utf-8")
            print(f"{part}.{language}: {len(lines):,} lines, {sum(map(len, words)):,} words")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
