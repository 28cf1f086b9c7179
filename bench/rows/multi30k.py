"""Translation of image captions (Multi30k), English to German (multi30k:de) and French (multi30k:fr).

Data: multi30k/*.gz, lower-cased and Moses-tokenised by examples/multi30k_tokenise.py (needs sacremoses). If the folder
multi30k_tokenised has that script's files, they are read instead. Test sets: 2016, and 2017 and 2018 if their files
(test_2017_flickr, test_2017_mscoco, test_2018_flickr) are there.
Published: En→De, test 2016: BLEU-4 41.02 on tokenised text, beam 5 (Transformer-Tiny in Wu et al. 2021, README-baseline
of github.com/LividWo/Revisit-MMT).
Goal: above 41.02 with at most 3M parameters.
"""

from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from rows import frame

VARIANTS = ("de", "fr")
TESTS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")


def tokenise(source: Path, target: Path) -> None:
    """Tokenise the files as examples/multi30k_tokenise.py does."""
    if find_spec("sacremoses") is None:
        raise SystemExit(
            f"{source}: the text must be tokenised by sacremoses, which is not installed; pip install sacremoses, or "
            f"copy the output of examples/multi30k_tokenise.py to {source.with_name('multi30k_tokenised')}"
        )
    path = Path(__file__).parents[2] / "examples/multi30k_tokenise.py"
    spec = spec_from_file_location("multi30k_tokenise", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(source, target)


def run(data: Path, out: Path, seed: int, quick: bool, variant: str) -> dict[str, Any]:
    """Train the built-in recipe, and translate the test sets with beam 5."""
    tokenised = data / "multi30k_tokenised"
    if not tokenised.exists():
        tokenised = out / "data/tokenised"
        tokenise(data / "multi30k", tokenised)
    parts: dict[str, list[dict[str, str]]] = {}
    for part in ("train", "val", *TESTS):
        if any(tokenised.glob(f"{part}.{variant}*")):
            sides = [frame.read_lines(tokenised / f"{part}.{language}") for language in ("en", variant)]
            pairs = [{"source": en, "target": other} for en, other in zip(*sides, strict=True)]
            parts[part] = frame.shorten(pairs, quick)
    changes: dict[str, Any] = {
        f"data.{key}": frame.write_jsonl(out / "data" / f"{part}.jsonl", parts[part])
        for key, part in (("train", "train"), ("valid", "val"))
    }
    if quick:
        changes["tokenizer.vocab_size"] = 400
    trained = frame.train("multi30k", out, changes, seed=seed, quick=quick)
    predictions = [
        {"part": part, **line}
        for part in TESTS
        if part in parts
        for line in frame.generate(trained, parts[part], beam=5)
    ]
    frame.write_jsonl(out / "predictions.jsonl", predictions)
    return trained.to_dict()


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """BLEU of each test set on the tokenised text, and chrF."""
    scores = {}
    for part in dict.fromkeys(line["part"] for line in predictions):
        lines = [line for line in predictions if line["part"] == part]
        scores |= {f"{part} {metric}": frame.compute(metric, lines) for metric in ("tokenised_bleu", "chrf")}
    return scores
