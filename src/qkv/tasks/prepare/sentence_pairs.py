"""Whether an encoder-decoder learns from single sentences, so that it should read longer texts sentence by sentence.

Only pairs of sentences show this with some certainty, because each sentence of a text then has its own output. Dates,
words, code and other texts without end marks, and texts of several sentences, must be read in one piece. Nothing is
decided for sentences with other targets (labels, queries). Nor is it for sources that begin with the name of a task or
a language, because only the first sentence of a text would begin with this name.

The fractions of single sentences among the sources and the targets of 1,000 pairs: Multi30k 0.95 and 0.99, Tatoeba 0.99
and 0.99, COGS (logical forms) 1.00 and 0.00. Among sources only: instructions 0.69, dates 0.03, abstracts of papers,
e-mails and SCAN 0.00.
"""

from collections import Counter
from collections.abc import Sequence

from qkv.text.sentences import CLOSING_MARKS, SENTENCE_ENDINGS, split_sentences

MIN_PAIRS = 50
"""With fewer pairs, nothing is decided."""
MAX_PAIRS = 1000  # a sample of the first `MAX_PAIRS_READ`
MAX_PAIRS_READ = 10_000
MIN_SENTENCES = 0.8
MIN_POSSIBLE_SENTENCES = 0.5
MAX_SENTENCE_CHARS = 2000
END_MARKS = (*SENTENCE_ENDINGS, *"。！？।؟۔")
MARKS_AFTER_END = CLOSING_MARKS + "」』） "
MAX_TASKS = 20
TAG_STARTS = ("<", ">", "[", "{")  # <2de>, >>fra<<, [summarise]


def find_reads_sentences(pairs: Sequence[tuple[str, str]]) -> bool | None:
    """Whether texts should be split into sentences, decided by pairs of the training data; None if the pairs do not
    decide it.

    >>> find_reads_sentences([(f"It is {n}:00.", f"Es ist {n} Uhr.") for n in range(5)] * 10) is None  # always "It is"
    True
    """
    if len(pairs) < MIN_PAIRS:
        return None
    sources, targets = zip(*pairs, strict=True)
    fraction = fraction_of_sentences(sources)
    if fraction < MIN_POSSIBLE_SENTENCES:
        return False
    are_pairs = min(fraction, fraction_of_sentences(targets)) >= MIN_SENTENCES
    return True if are_pairs and not begin_with_task(sources) else None


def fraction_of_sentences(texts: Sequence[str]) -> float:
    """The fraction of texts that are one sentence with an end mark.

    >>> fraction_of_sentences(["Dr. Who met J. Smith.", "Hi! Who are you?", "4. Mai 2021", "A dog runs ."])
    0.5
    """
    short = [text for text in texts if len(text) <= MAX_SENTENCE_CHARS]
    ended = [text for text in short if text.rstrip().rstrip(MARKS_AFTER_END).endswith(END_MARKS)]
    return sum(len(split_sentences(text)) == 1 for text in ended) / len(texts)


def begin_with_task(sources: Sequence[str]) -> bool:
    """Whether most texts begin with a tag, or with one of a few openings: "translate English to German: …"."""
    openings = Counter(" ".join(text.split()[:2]) for text in sources)
    with_opening = sum(count for _, count in openings.most_common(MAX_TASKS))
    with_tag = sum(text.startswith(TAG_STARTS) for text in sources)
    return max(with_opening, with_tag) >= MIN_SENTENCES * len(sources)
