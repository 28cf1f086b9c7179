"""How often the word alignment of a translator is right, beside that of its cross-attention.

    python bench/align.py en-fr pairs.tsv --sentences 300

There is no reference alignment, so the links that count are nearly certain: the two words occur together in the pairs
much more often than apart (Dice coefficient above 0.35), and once in their sentences. `pairs.tsv` has a source and a
target per line; sentences of 6 to 14 words are translated.
"""

import argparse
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

import qkv
from qkv.decode.runner import start_token
from qkv.inside import trace
from qkv.tasks.run.generate import GeneratedText
from qkv.tasks.run.translation.align import generated_offsets, token_words
from qkv.text.words import split_words

MIN_DICE = 0.35
MIN_COUNT = 10  # of the sentences with both words


def lower_words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return [text[start:end].lower() for start, end in split_words(text)]


def count_words(pairs: list[list[str]]) -> Callable[[str, str], float]:
    """The Dice coefficient of a source word and a target word."""
    sources, targets, both = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for source, target in pairs:
        of_source, of_target = set(lower_words(source)), set(lower_words(target))
        sources.update(of_source)
        targets.update(of_target)
        both.update((one, other) for one in of_source for other in of_target)

    def dice(one: str, other: str) -> float:
        found = both[one, other]
        return 2 * found / (sources[one] + targets[other]) if found >= MIN_COUNT else 0.0

    return dice


def certain_links(source: list[str], target: list[str], dice: Callable[[str, str], float]) -> dict[int, int]:
    """The number of the source word for the number of a target word."""
    links = {}
    for number, word in enumerate(target):
        values = [dice(other, word) if other.isalpha() else 0.0 for other in source]
        best = int(np.argmax(values))
        is_unique = target.count(word) == 1 and source.count(source[best]) == 1
        if word.isalpha() and is_unique and values[best] > MIN_DICE:
            links[number] = best
    return links


def attended_words(model: qkv.Model, source: str, result: GeneratedText, layer: int) -> dict[int, int]:
    """The source word with the most cross-attention for each target word, averaged over the heads of a layer."""
    assert model.tokenizer is not None
    ids, offsets = model.tokenizer.encode_with_offsets(source, add_special_tokens=True)
    site = f"decoder.{layer}.cross_pattern"
    inputs = [start_token(model.network), *result.ids[:-1]]
    weights = trace(model.network, ids, inputs, tokenizer=model.tokenizer, sites=[site])[site].mean(0).numpy()
    source_words, target_words = split_words(source), split_words(result.text)
    columns = token_words(source, source_words, offsets)
    rows = token_words(result.text, target_words, generated_offsets(model.tokenizer.target, result.ids))
    totals = np.zeros((len(target_words), len(source_words)))
    for row, target in enumerate(rows):
        for column, word in enumerate(columns):
            if target is not None and word is not None:
                totals[target, word] += weights[row, column]
    return dict(enumerate(totals.argmax(1).tolist()))


def main() -> None:
    """Print the fraction of certain links that each method finds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--sentences", type=int, default=300)
    options = parser.parse_args()
    lines = options.pairs.read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t")[:2] for line in lines if "\t" in line]
    dice, model = count_words(pairs), qkv.load(options.model)
    sources = sorted({source for source, _ in pairs if 6 <= len(source.split()) <= 14})
    sources = random.Random(0).sample(sources, min(options.sentences, len(sources)))
    found, total = Counter[str](), 0
    for source, result in zip(sources, model.translate(sources, sentences=False, align=True), strict=True):
        expected = certain_links(lower_words(source), lower_words(result.text), dice)
        starts = {
            "source": [start for start, _ in split_words(source)],
            "target": [start for start, _ in split_words(result.text)],
        }
        total += len(expected)
        by_method = {
            "m.translate(align=True)": {
                starts["target"].index(link.target_start): starts["source"].index(link.source_start)
                for link in result.alignment
            }
        }
        for layer in range(model.config.stack.layers):
            by_method[f"cross-attention of layer {layer}"] = attended_words(model, source, result, layer)
        for method, links in by_method.items():
            found[method] += sum(links.get(target) == word for target, word in expected.items())
    print(f"{len(sources)} sentences, {total} links")
    for method, count in found.items():
        print(f"{method:30} {count / total:6.1%}")


if __name__ == "__main__":
    main()
