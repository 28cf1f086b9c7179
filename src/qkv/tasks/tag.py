"""Tag: a class for each word of a text (names of people and places, parts of speech)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qkv.data.align import first_character
from qkv.data.draw import Draw
from qkv.data.examples import MemoryExamples
from qkv.data.objectives import IGNORE, Tags
from qkv.data.records import Record
from qkv.errors import QkvError, UsageError
from qkv.models import Config, Network
from qkv.tasks import metrics as measure
from qkv.tasks.classify import class_names, told
from qkv.tasks.layout import Laid, batches, exact, room
from qkv.tasks.task import Evaluation, Progress, Usable, choose, evaluating, tokenizer_of
from qkv.text import Tokenizer
from qkv.train.watch import Sample

CHUNKED = ("f1", "precision", "recall", "accuracy")
PLAIN = ("accuracy", "macro_f1")
# Words of running text: letters and digits, with what may stand inside a word; any other sign by itself.
WORD = re.compile(r"\w+(?:[-'’.]\w+)*|[^\w\s]")


@dataclass(frozen=True)
class Tagged:
    """A word, its tag, and how sure the model is of it."""

    word: str
    tag: str
    probability: float


def run(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    texts: Sequence[str | Sequence[str]],
    *,
    batch: int = 32,
    progress: Progress | None = None,
) -> list[list[Tagged]]:
    """The words of each text with their tags. A text is cut into words and signs; a list of words is taken as it is."""
    words = [WORD.findall(text) if isinstance(text, str) else list(text) for text in texts]
    said = read(network, tokenizer_of(tokenizer), config, words, batch, progress)
    return [
        [Tagged(word, *answer) for word, answer in zip(listed, answers, strict=True)]
        for listed, answers in zip(words, said, strict=True)
    ]


def known(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics that can be asked for; first what a model is judged by."""
    return (*CHUNKED, *PLAIN) if measure.is_chunked(class_names(config)) else PLAIN


def evaluate(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    records: Sequence[Record],
    *,
    batch: int = 32,
    beam: int = 1,
    progress: Progress | None = None,
    metrics: Sequence[str] = (),
    samples: int = 5,
) -> Evaluation:
    """For marks and kinds (B-PER, I-PER, O) how many whole entities are right; for plain classes how many words."""
    usable = Usable.of(records, tokens=list, tags=list)
    notes = usable.notes
    even = [one for one in usable.records if len(one.fields["tokens"]) == len(one.fields["tags"]) > 0]
    if len(even) < len(usable.records):
        notes.append(f"{len(usable.records) - len(even):,} records left out: not as many tags as words, or none")
    if not even:
        raise UsageError(f"{records[0].where}: not as many tags as words, or none; nor has any other record")
    words = [[str(word) for word in record.fields["tokens"]] for record in even]
    expected = [[str(tag) for tag in record.fields["tags"]] for record in even]
    classes = class_names(config)
    strange = sorted({tag for tags in expected for tag in tags} - set(classes))
    if strange:
        notes.append(f"tags that the model does not have, counted as wrong: {told(strange)}")
    chunked = measure.is_chunked(classes)
    names = choose(metrics, known(config, even), CHUNKED if chunked else PLAIN)
    answers = read(network, tokenizer_of(tokenizer), config, words, batch, progress)
    said = [[tag for tag, _ in listed] for listed in answers]
    flat = [tag for tags in said for tag in tags], [tag for tags in expected for tag in tags]
    scores = {"accuracy": measure.accuracy(*flat), "macro_f1": measure.macro_f1(*flat)}
    if chunked:
        scores |= measure.entity_scores(said, expected)
    shown = [
        Sample(" ".join(listed), " ".join(tags), " ".join(wanted))
        for listed, tags, wanted in list(zip(words, said, expected, strict=True))[:samples]
    ]
    return Evaluation({name: scores[name] for name in names}, shown, names[0], len(even), tuple(notes))


def read(
    network: Network,
    tokenizer: Tokenizer,
    config: Config,
    sentences: Sequence[Sequence[str]],
    batch: int,
    progress: Progress | None = None,
) -> list[list[tuple[str, float]]]:
    """The tag and its probability for each word, read off the word's first token.

    Long sentences are read in windows, as in training. A word that the tokenizer makes nothing of is tagged O, or with
    the first class.
    """
    classes = class_names(config)
    nothing = "O" if "O" in classes else classes[0]
    answers = [[(nothing, 0.0) for _ in words] for words in sentences]
    marked = [first_tokens(tokenizer, words) for words in sentences]
    filled = [i for i, example in enumerate(marked) if example["ids"]]
    if not filled:
        return answers
    # The "tags" of these examples are the numbers of words: the layout carries them to their places.
    objective = Tags(
        MemoryExamples([marked[i] for i in filled], ("ids", "tags")), tokenizer, length=room(config), too_long="split"
    )
    windows = np.arange(objective.count(Draw(0)))
    pieces = objective.build(windows, Draw(0))
    owner = objective.windows.locate(windows, Draw(0))[0]
    laid = Laid(network, pieces, objective.pad)
    assert laid.labels is not None
    with evaluating(network):
        for chosen in batches(pieces.lengths, batch, progress):
            x, _ = laid.vectors(chosen)
            shares = exact(network.head.read(x)).softmax(-1)
            best, number = (part.cpu().numpy() for part in shares.max(-1))
            for row, i in enumerate(chosen):
                for place in np.flatnonzero(laid.labels[i] != IGNORE):
                    word = int(laid.labels[i][place])
                    answers[filled[owner[i]]][word] = classes[number[row, place]], float(best[row, place])
    return answers


def first_tokens(tokenizer: Tokenizer, words: Sequence[str]) -> dict[str, list[int]]:
    """The ids of words joined by spaces and, beside each, the number of the word that it is the first token of.

    The same token carries a word's tag in training (`EncodeTags`).
    """
    text = " ".join(words)
    try:
        ids, offsets = tokenizer.encode_offsets(text)
    except QkvError as error:
        raise QkvError(f"the words {text[:60]!r} cannot be read: {error}") from error
    owner = [number for number, word in enumerate(words) for _ in range(len(word) + 1)]  # and the space after it
    numbers, before = [], -1
    for offset in offsets:
        place = first_character(text, offset)
        word = owner[place]
        begins = not text[place : place + 1].isspace() and word != before
        numbers.append(word if begins else IGNORE)
        before = word if begins else before
    return {"ids": ids, "tags": numbers}
