"""Prepare Multi30k as in the literature: lower case, normalised punctuation, Moses tokenisation.

pip install sacremoses
python examples/multi30k_tokenise.py path/to/multi30k data/multi30k

The script reads train.en.gz, val.en.gz, test_2016_flickr.en.gz and every other part in the folder, in English, German
and French. It writes plain text files for `qkv train multi30k`.
"""

import gzip
import sys
from pathlib import Path

LANGUAGES = ("en", "de", "fr")


def main(source: Path, target: Path) -> None:
    """Read the compressed files in `source` and write tokenised text files to `target`."""
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    target.mkdir(parents=True, exist_ok=True)
    for language in LANGUAGES:
        normalise, tokenise = MosesPunctNormalizer(language).normalize, MosesTokenizer(language).tokenize
        for file in sorted(source.glob(f"*.{language}.gz")):
            with gzip.open(file, "rt", encoding="utf-8") as text:
                lines = [line.rstrip("\n") for line in text]
            words = [tokenise(normalise(line.lower()), escape=False) for line in lines]
            written = target / file.name.removesuffix(".gz")
            written.write_text("".join(" ".join(line) + "\n" for line in words), encoding="utf-8")
            print(f"{written.name}: {len(lines):,} lines, {sum(map(len, words)):,} words")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
