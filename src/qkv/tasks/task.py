"""A task: what a model can do with a text, declared once.

A task has one file in `qkv.tasks.verbs`. Everything else is derived from it: the method of `Model`, the options of
`qkv run`, the HTTP route, the panel of the studio, the evaluation, the report and the recipe of `qkv init`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from qkv.data.modalities import MODALITIES, describe_front_ends
from qkv.data.objectives.table import OBJECTIVES, ObjectiveSpec
from qkv.data.records import Record
from qkv.errors import UsageError, shorten, suggest_name
from qkv.models import Config
from qkv.tasks.results import Result
from qkv.tasks.scorer import TaskScorer, own_metrics
from qkv.tasks.text_model import TextModel
from qkv.values import PYTHON, read

if TYPE_CHECKING:
    from qkv.tasks.evaluation import EvaluationOptions, Scored
    from qkv.tasks.starters.starter import Starter

EMBED_POOLED = "embed with pooling="


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Base of the options of a task. Its fields are keywords, flags of `qkv run` and fields of HTTP requests.

    A field is annotated with its limits and its description. Further checks belong to `check`.
    """

    def check(self) -> None:
        """Raise an error if the options contradict each other."""


class Task(ABC):
    """A task. Its subclasses declare the class variables, and have one instance in the table of tasks."""

    name: ClassVar[str]  # the verb: m.<name>, POST /<name>
    starter_name: ClassVar[str] = ""  # qkv init <starter_name>; empty: the name
    description: ClassVar[str]  # completes "a model that …" in messages
    question: ClassVar[str]  # what the HTTP route does, for its documentation
    title: ClassVar[str]  # the title of a result in the studio
    objective: ClassVar[str]  # the row of `OBJECTIVES` that a model of this task has learned
    inputs: ClassVar[tuple[str, ...]]  # the fields of a record that the model reads; the first is always needed
    target: ClassVar[str]  # the field that it predicts
    reads_words: ClassVar[bool] = False  # a text may be given as the list of its words
    needs_all_inputs: ClassVar[bool] = False  # whether a text alone is not enough
    Options: ClassVar[type[TaskOptions]] = TaskOptions
    results: ClassVar[tuple[type[Result], ...]]  # the types of results; each model returns one of them
    EvalOptions: ClassVar[type["EvaluationOptions"]]
    scorers: ClassVar[tuple[type[TaskScorer], ...]] = ()  # one of them compares predictions with records
    metrics: ClassVar[tuple[str, ...]] = ()  # the metrics of a task without scorers, the main one first
    calls: ClassVar[tuple[str, ...]] = (EMBED_POOLED,)  # other methods of `Model` that such a model supports
    batch_size: ClassVar[int] = 32  # of texts, by default
    evaluation_batch_size: ClassVar[int] = 32
    max_samples: ClassVar[int] = 5  # predictions that an evaluation shows, by default
    more_inputs: ClassVar[tuple[str, ...]] = ()  # further inputs that a request may have
    generates: ClassVar[bool] = False  # the model generates text
    modalities: ClassVar[tuple[str, ...]] = ()  # what models read that were trained for it elsewhere
    reads_documents: ClassVar[bool] = False  # it is evaluated on the tokens of running text
    starter: ClassVar["Starter | None"] = None  # the recipe that `qkv init` writes
    shows_details: ClassVar[bool] = False  # `qkv run` prints the table of details below each text
    continues_by_default: ClassVar[bool] = False  # without its options, `qkv run` generates one continuation
    preview_options: ClassVar[Mapping[str, Any]] = {}  # of `run_default` in the studio, where a short result is enough
    example_inputs: ClassVar[tuple[str, ...]] = ("your text",)  # placeholders of the inputs in an example of a command
    example_data: ClassVar[str] = ""  # what a file of records looks like, for error messages

    @property
    def spec(self) -> ObjectiveSpec:
        """The objective's row."""
        return OBJECTIVES[self.objective]

    def supports(self, config: Config) -> bool:
        """Whether a model can do this task. A decoder can do the task of an encoder if it has the task's head."""
        families = {*self.spec.families, *(["decoder"] if self.spec.families == ("encoder",) else [])}
        return config.head.kind == self.spec.head and config.family in families

    def list_calls(self) -> str:
        """The methods of `Model` that a model of this task supports, for an error message."""
        return ", ".join(f"m.{name}" for name in dict.fromkeys((self.name, *self.calls)))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the inputs of a call."""
        return self.inputs if self.needs_all_inputs else ("texts",)

    @property
    def needed_fields(self) -> list[str]:
        """The fields that every record needs for an evaluation."""
        always = {
            spec_field.name for spec_field in self.spec.fields if not spec_field.optional and not spec_field.only_with
        }
        return [name for name in (*self.inputs, self.target) if name in always]

    def example_line(self, fields: Collection[str] = ()) -> str:
        """A line with placeholders of the inputs, for a model that was trained on records with these fields."""
        read = self.inputs if self.needs_all_inputs else {self.inputs[0], *fields}
        return "\t".join(text for name, text in zip(self.inputs, self.example_inputs, strict=True) if name in read)

    @property
    def accepts_pairs(self) -> bool:
        """Whether the model reads two texts together."""
        return len(self.inputs) > 1

    def read_line(self, line: str) -> str | tuple[str, ...]:
        """The input in a line: a text or, if the model reads two texts, two with a tab between them."""
        return tuple(line.split("\t")) if self.accepts_pairs and line.count("\t") == 1 else line

    @abstractmethod
    def decode(self, model: TextModel, texts: Sequence[Any], options: Any) -> Sequence[Result]:
        """The result of each text, in order."""

    def check_model(  # noqa: B027 — most tasks have nothing to check
        self, config: Config, texts: Sequence[Any]
    ) -> None:
        """Raise an error if the model cannot read these texts, which have the right types."""

    @abstractmethod
    def score_records(self, model: TextModel, records: Sequence[Record], options: Any, notes: list[str]) -> "Scored":
        """Predict the records and compute the metrics. The notes say which records were left out, and why."""

    def find_scorer(self, config: Config, records: Sequence[Record]) -> TaskScorer | None:
        """The scorer that compares predictions with records one by one; None for tasks that are evaluated on tokens."""
        return None

    def make_scorer(self, config: Config, records: Sequence[Record]) -> TaskScorer | None:
        """The scorer of records, with the metrics that were registered for this task."""
        scorer = self.find_scorer(config, records)
        if scorer is not None:
            scorer.metrics = {**scorer.metrics, **own_metrics(self.name)}
        return scorer

    def list_metrics(self) -> list[str]:
        """All metrics of the task, whatever the model and the records."""
        built_in = [*self.metrics, *(name for scorer in self.scorers for name in scorer.metrics)]
        return list(dict.fromkeys([*built_in, *own_metrics(self.name)]))

    def available_metrics(self, config: Config, records: Sequence[Record]) -> Sequence[str]:
        """The metrics of a model on these records, the main one first. The records have the task's fields."""
        scorer = self.make_scorer(config, records)
        return self.metrics if scorer is None else list(scorer.metrics)

    def make_options(self, values: Mapping[str, Any]) -> Any:
        """Check the options of a call, given by name."""
        known = [one.name for one in fields(self.Options)]
        for name in values:
            if name not in known:
                raise UsageError(f"m.{self.name} has no option {name!r}; {suggest_name(name, known)}")
        options = read(self.Options, values, notation=PYTHON)
        options.check()
        return options

    def run(self, model: TextModel, texts: Sequence[Any], values: Mapping[str, Any]) -> Sequence[Result]:
        """Check the texts and the options, and decode: the one way from texts to results."""
        self.check_inputs(model.config, texts)
        self.check_model(model.config, texts)
        check_proteins(model, texts)
        return self.decode(model, texts, self.make_options(values))

    def run_default(self, model: TextModel, texts: Sequence[Any], values: Mapping[str, Any]) -> Sequence[Result]:
        """What `m.run` does."""
        return self.run(model, texts, values)

    def check_inputs(self, config: Config, values: Sequence[Any]) -> None:
        """Raise an error if an input is not of the modality that the model reads."""
        modality = self.input_modality(config)
        if modality == "text":
            return self.check_texts(values)
        if modality not in (read := {*self.modalities, *(spec_field.modality for spec_field in self.spec.fields)}):
            raise UsageError(
                f"m.{self.name} reads {' and '.join(sorted(read))}, but this model reads {modality}; call m.run, which "
                "is the call of the model's own task"
            )
        for number, value in enumerate(values, start=1):
            if not isinstance(value, str) and (problem := MODALITIES[modality].check(value)):
                other = "an array of samples" if modality == "audio" else "a Pillow image"
                raise UsageError(f"{modality} {number} {problem}; give a path, the bytes of a file, or {other}")

    def join_inputs(self, values: tuple[Any, ...]) -> Any:
        """The input that a request has as values of `parameters`, and of `more_inputs` if they are given."""
        return values

    def map_payloads(self, value: Any, function: Callable[[Any], Any]) -> Any:
        """An input with `function` of each of its images or sounds. A server calls it for models that read them."""
        return function(value)

    def input_modality(self, config: Config) -> str:
        """What a model reads: "text", or a modality such as "image"."""
        return next(iter(describe_front_ends(config)), "text")

    def check_texts(self, texts: Sequence[Any]) -> None:
        """Raise an error if a text is not of a type that the task reads."""
        for number, text in enumerate(texts):
            is_list = isinstance(text, list | tuple) and all(isinstance(part, str) for part in text)
            is_known = self.reads_words or (self.accepts_pairs and len(text) == 2) if is_list else isinstance(text, str)
            if is_known and isinstance(text, str) and self.needs_all_inputs:
                needed = " and its ".join(self.inputs)
                raise UsageError(
                    f"text {number + 1} is not a {needed}; give both as ({', '.join(self.inputs)}), or in one line "
                    "with a tab between them"
                )
            if not is_known:
                raise UsageError(f"text {number + 1} is {self._describe_wrong(text)}")

    def _describe_wrong(self, text: Any) -> str:
        wanted, advice = "one text at a time", "give a list of strings"
        if self.reads_words:
            wanted = "words"
        elif self.accepts_pairs:
            is_pair = isinstance(text, list | tuple) and len(text) == 2
            wanted, advice = "one text or two texts", f"give {'two strings' if is_pair else 'a string, or two'}"
        shown = f"{shorten(repr(text), 60)} ({type(text).__name__})"
        return f"{shown}, but a model that {self.description} reads {wanted}; {advice}"


def check_proteins(model: TextModel, texts: Sequence[Any]) -> None:
    """Raise an error if a model of proteins would read DNA."""
    if not model.tokenizer.reads_residues:
        return
    from qkv.text.residues import looks_like_dna

    for number, text in enumerate(texts, start=1):
        if isinstance(text, str) and looks_like_dna("".join(text.split())):
            raise UsageError(
                f"text {number} has only the letters of nucleotides ({shorten(text, 30)}), but this model reads "
                "proteins; translate it first"
            )
