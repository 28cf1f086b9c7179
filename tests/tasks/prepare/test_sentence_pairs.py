"""Which training data makes a model read texts sentence by sentence."""

from collections.abc import Callable

import pytest

from qkv.tasks.prepare.sentence_pairs import find_reads_sentences

NAMES = [f"{first}{last}" for first in "ABCDEFGHKL" for last in ("da", "no", "rik", "sa", "ton", "via")]
SENTENCE = "{} sees Dr. Who near the 3. house."
TRANSLATION = "“{} voit le docteur.”"


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (SENTENCE, TRANSLATION, True),
        ("{} runs .", "{} läuft !", True),  # tokenised
        ("{} 来た。", "{} came.", True),
        ("{} came.", "{} आया।", True),
        ("{} comes. Who is there?", "{} kommt. Wer ist da?", False),
        ("{} comes.\nWho is there?", "{} comes.", False),
        ("{0} comes. " * 400, "{} comes.", False),
        ("{}, 4. Mai 2021", "2021-05-04", False),
        ("{}", "1987", False),
        ("def {}(x):\n    return x", "Return x.", False),
        ("x = {}.y(1)", "y", False),
        ("{} runs", "{} läuft", False),
        ("{} is good.", "positive", None),
        ("How old is {}?", "SELECT age FROM people WHERE name = '{}'", None),
        ("translate English to German: {} runs.", "{} läuft.", None),
        (">>fra<< {} runs.", "{} court.", None),
    ],
)
def test_only_pairs_of_sentences_are_read_sentence_by_sentence(source: str, target: str, expected: bool | None) -> None:
    assert find_reads_sentences([(source.format(name), target.format(name)) for name in NAMES]) is expected


def mixed(is_other: Callable[[int], bool], other: tuple[str, str]) -> list[tuple[str, str]]:
    pairs = [other if is_other(n) else (SENTENCE, TRANSLATION) for n in range(len(NAMES))]
    return [(one.format(name), two.format(name)) for (one, two), name in zip(pairs, NAMES, strict=True)]


def test_a_few_other_pairs_do_not_matter_but_many_do() -> None:
    other = ("{} comes. Who is there?", "{} vient. Qui est là ?")
    assert find_reads_sentences(mixed(lambda n: n % 10 == 0, other)) is True
    assert find_reads_sentences(mixed(lambda n: n % 3 == 0, other)) is None
    assert find_reads_sentences(mixed(lambda n: n % 3 > 0, other)) is False


def test_several_tasks_are_recognised_by_their_names() -> None:
    pairs = mixed(lambda n: False, ("", ""))
    tasks = ("translate to French:", "correct the mistakes:", "make it polite:")
    assert find_reads_sentences([(f"{tasks[n % 3]} {one}", two) for n, (one, two) in enumerate(pairs)]) is None


def test_few_pairs_decide_nothing() -> None:
    assert find_reads_sentences(mixed(lambda n: False, ("", ""))[:49]) is None
