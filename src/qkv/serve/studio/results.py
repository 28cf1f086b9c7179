"""The result of a model's task for a text, with some parts of the model switched off."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from qkv.api import Model
from qkv.errors import UsageError
from qkv.inside import Edit, EditTap
from qkv.models import Config
from qkv.serve.studio.switches import make_edits
from qkv.tasks.results import Result
from qkv.tasks.run.complete import weights_version
from qkv.tasks.run.trace import encode_text
from qkv.tasks.table import find_task, supported_tasks
from qkv.tasks.text_model import TextModel, require_tokenizer

MAX_KEPT_RESULTS = 32


@dataclass(frozen=True)
class ShownResult:
    """The result of a task, or the reason why there is none."""

    title: str
    result: Result | None = None
    problem: str = ""

    @property
    def text(self) -> str:
        """The result in one line."""
        return "" if self.result is None else self.result.body().replace("\t", " ").strip()

    @property
    def ids(self) -> list[int]:
        """The tokens of a generated text."""
        return list(getattr(self.result, "ids", ()))

    def to_dict(self) -> dict[str, Any]:
        """The title, the text, a table of details, and the JSON values that `qkv run --json` prints."""
        values = {"title": self.title, "text": self.text, "problem": self.problem}
        if self.result is None:
            return values
        return {**values, "rows": [list(row) for row in self.result.rows()], "result": self.result.to_dict()}


def split_pair(config: Config, text: str) -> str | tuple[str, str]:
    """The text or, for a model that reads pairs, the two texts on the sides of a tab."""
    first, tab, second = text.partition("\t")
    is_pair = config.family == "encoder" and tab and "\t" not in second
    return (first, second) if is_pair else text


def read_text(model: Model, text: str) -> tuple[Sequence[int], list[int] | None]:
    """The ids and the token types of a text."""
    return encode_text(model.tokenizer, model.config, split_pair(model.config, text))


class ResultCache:
    """The latest results of each model, so that another panel of the same text does not compute them again."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: WeakKeyDictionary[Model, dict[Hashable, ShownResult]] = WeakKeyDictionary()

    def find(self, model: Model, text: str, off: tuple[str, ...]) -> ShownResult:
        """The result of a model with some parts switched off, computed now or taken from the cache."""
        key = (text, off, weights_version(model.network))
        with self._lock:
            kept = self._kept.setdefault(model, {})
        if key not in kept:
            found = find_results(model, [text], make_edits(model.config, off))[0]
            while len(kept) >= MAX_KEPT_RESULTS:
                kept.pop(next(iter(kept)))
            kept[key] = found
        return kept[key]


def find_results(model: Model, texts: Sequence[str], edits: Sequence[Edit] = ()) -> list[ShownResult]:
    """The result for each text, with the edits applied. A text that the task cannot read has none."""
    if not supported_tasks(model.config):
        return [ShownResult("") for _ in texts]
    task = find_task(model.config)

    def run(several: Sequence[str]) -> list[ShownResult]:
        tap = EditTap(edits) if edits else None
        tokenizer = require_tokenizer(model.tokenizer)
        text_model = TextModel(model.network, tokenizer, model.config, tap, task.batch_size)
        inputs = [task.read_line(text) for text in several]
        results = task.run_default(text_model, inputs, task.preview_options)
        return [ShownResult(task.title, result) for result in results]

    try:
        return run(texts)
    except UsageError as error:
        if len(texts) == 1:
            return [ShownResult(task.title, None, str(error))]
        return [shown for text in texts for shown in find_results(model, [text], edits)]


def label_text(labels: Sequence[str], index: int) -> str:
    """The name of a label; its number if the labels have no names."""
    return labels[index] if labels else f"#{index}"
