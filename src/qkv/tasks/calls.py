"""The calls of a model on texts: `m.translate`, `m.classify` and the other verbs of the table of tasks.

One text gives one result, and a list gives a list. An iterator, such as a generator or an open file, gives a generator
that reads and runs one batch at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from inspect import Parameter, Signature, cleandoc
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from qkv.data.modalities import MODALITIES
from qkv.errors import UsageError, shorten
from qkv.models import Config, Network
from qkv.progress import OnProgress
from qkv.tasks.table import TASKS, find_task
from qkv.tasks.task import Task
from qkv.tasks.text_model import TextModel, require_tokenizer
from qkv.text import Tokenizer
from qkv.values import check_value, find_fields

if TYPE_CHECKING:
    from qkv.tasks.call_types import (
        AnswerCall,
        ClassifyCall,
        CompleteCall,
        FillCall,
        SummariseCall,
        TagCall,
        TranslateCall,
    )
    from qkv.tasks.chat.conversation import Chat, ChatReply
    from qkv.tasks.chat.reply_stream import ReplyStream
    from qkv.tasks.run.generate import GeneratedText
    from qkv.tasks.verbs.draw import DrawnImage

ARTICLES = {"encoder": "an encoder", "decoder": "a decoder", "seq2seq": "an encoder-decoder"}
R = TypeVar("R")


class TaskCall(Generic[R]):
    """A task of a model as a function: `m.translate("…")`. Its options are the fields of the task's `Options`."""

    def __init__(self, calls: "TaskCalls", task: Task) -> None:
        self._calls, self._task = calls, task
        options = [f"    {one.key}: {one.description}" for one in find_fields(task.Options) if not one.is_hidden]
        self.__doc__ = "\n".join([cleandoc(task.decode.__doc__ or ""), "", "Options:", *options])
        self.__name__ = task.name

    @property
    def __signature__(self) -> Signature:
        inputs = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in self._task.parameters]
        named = [
            Parameter(one.key, Parameter.KEYWORD_ONLY, default=one.default)
            for one in find_fields(self._task.Options)
            if not one.is_hidden
        ]
        batch_size = Parameter("batch_size", Parameter.KEYWORD_ONLY, default=self._task.batch_size)
        return Signature([*inputs, *named, batch_size])

    @overload
    def __call__(self, text: str | tuple[str, ...], /, **options: Any) -> R: ...
    @overload
    def __call__(self, first: str, second: str, /, **options: Any) -> R: ...
    @overload
    def __call__(self, /, *texts: Any, **options: Any) -> Any: ...

    def __call__(self, /, *inputs: Any, **options: Any) -> Any:
        """The result of one text, or of each of several texts."""
        batch_size: int | None = options.pop("batch_size", None)
        progress: OnProgress | None = options.pop("progress", None)
        task, names = self._task, self._task.parameters
        self._calls.check_support(task)
        given = list(inputs) + [options.pop(name) for name in names[len(inputs) :] if name in options]
        if not 1 <= len(given) <= len(names):
            raise UsageError(f"m.{task.name} reads {' and '.join(names)}: m.{task.name}({', '.join(names)})")
        if len(given) == 1 and len(names) > 1 and isinstance(given[0], str):
            raise UsageError(
                f"m.{task.name} needs the {' and the '.join(names[1:])}, too: write m.{task.name}({', '.join(names)})"
            )
        modality = task.input_modality(self._calls.config)
        texts = given[0] if len(given) == 1 else join_inputs(names, given, modality)
        size = task.batch_size if batch_size is None else batch_size

        def run(several: Sequence[Any]) -> Sequence[Any]:
            return task.run(self._calls.find_model(task, batch_size=size, progress=progress), several, options)

        return map_texts(run, texts, size, modality)


class TaskCalls:
    """The calls of a model on texts. Each verb of the table of tasks is a method."""

    config: Config
    network: Network
    tokenizer: Tokenizer | None
    _chat: "tuple[str | None, Chat] | None" = None

    if TYPE_CHECKING:
        draw: TaskCall[DrawnImage]
        describe: TaskCall[GeneratedText]
        ask: TaskCall[GeneratedText]
        translate: TranslateCall
        summarise: SummariseCall
        complete: CompleteCall
        fill: FillCall
        classify: ClassifyCall
        tag: TagCall
        answer: AnswerCall

    def __getattr__(self, name: str) -> Any:
        if name in TASKS:
            return TaskCall(self, TASKS[name])
        raise AttributeError(f"a {type(self).__name__} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *TASKS]

    def run(self, texts: Any, *, batch_size: int | None = None, **options: Any) -> Any:
        """Call the model's own task: generate, classify, tag, answer, embed or fill masks.

        Pass a pair of texts (a question and its context, or two texts to classify) as a tuple. The words of a text to
        tag can also be a tuple.
        """
        config = self.config
        task = find_task(config)
        size, progress = task.batch_size if batch_size is None else batch_size, options.pop("progress", None)

        def run(several: Sequence[Any]) -> Sequence[Any]:
            return task.run_default(self.find_model(task, batch_size=size, progress=progress), several, options)

        return map_texts(run, texts, size, task.input_modality(config))

    @overload
    def chat(self, messages: Any, *, stream: Literal[False] = False, **options: Any) -> "ChatReply": ...
    @overload
    def chat(self, messages: Any, *, stream: Literal[True], **options: Any) -> "ReplyStream": ...

    def chat(
        self,
        messages: str | Sequence[Mapping[str, str]],
        *,
        system: str | None = None,
        template: str | None = None,
        stream: bool = False,
        **options: Any,
    ) -> Any:
        """The reply to a text, or to a list of messages such as {"role": "user", "content": "Hello"}.

        To continue a chat, append a message to `reply.messages`. The tokenizer's chat template makes the prompt. For a
        model without a chat template, pass `template="plain"`. If the chat is longer than the model's context, the
        oldest messages are left out, with a warning. Without `special=True`, the names of control tokens inside
        messages are ordinary text. With `stream=True`, the result is an iterator of texts. With `on_text`, this
        function is called with each text instead. Other options are the fields of `qkv.decode.GenerationOptions`;
        `max_tokens` is 512 by default.
        """
        check_value(bool, stream, "stream")
        chat = self.find_chat(template)
        if stream:
            from qkv.tasks.chat.reply_stream import ReplyStream

            return ReplyStream(lambda on_text: chat.reply(messages, system, on_text=on_text, **options))
        return chat.reply(messages, system, **options)

    def find_chat(self, template: str | None = None) -> "Chat":
        """The model with its chat template, as `chat` uses it; an error if the model cannot chat."""
        from qkv.tasks.chat.conversation import Chat

        model = self.find_model(TASKS["complete"], "chat")
        kept = self._chat
        if kept is None or kept[0] != template or kept[1].model != model:
            kept = self._chat = (template, Chat(model, template))
        return kept[1]

    def find_model(self, task: Task, call: str = "", **how: Any) -> TextModel:
        """The model for a task, and how it runs; an error if it does not support the task or has no tokenizer."""
        self.check_support(task, call)
        kept = self.__dict__.setdefault("_kept", {})
        return TextModel(self.network, require_tokenizer(self.tokenizer), self.config, kept=kept, **how)

    def check_support(self, task: Task, call: str = "") -> None:
        """Raise an error if the model does not support a task. The message says what the model is, and which calls it
        supports.
        """
        if not task.supports(self.config):
            found = find_task(self.config)
            family, head = ARTICLES[self.config.family], self.config.head.kind
            raise UsageError(
                f"m.{call or task.name} needs a model that {task.description}, but this model is {family} with head "
                f"{head!r}, which {found.description}; use {found.list_calls()}"
            )


def map_texts(
    run: Callable[[Sequence[Any]], Sequence[Any]], texts: Any, batch_size: int, modality: str = "text"
) -> Any:
    """Run a function of several texts on one text (a string or a tuple), a list of texts, or an iterator of texts.

    With another modality, such as "image", a single value of it is also accepted.
    """
    if isinstance(texts, str | tuple) or (modality != "text" and not MODALITIES[modality].check(texts)):
        return run([texts])[0]
    if not isinstance(texts, list):
        from qkv.data.tables import column_values  # `qkv run` does not need it

        texts = column_values(texts)
    if isinstance(texts, Sequence) and not isinstance(texts, bytes | bytearray | memoryview):
        return run(texts)
    if isinstance(texts, Iterable) and not isinstance(texts, Mapping | Set | bytes | bytearray | memoryview):
        if batch_size < 1:
            raise UsageError(f"batch_size = {batch_size}: a batch needs at least 1 text; raise it")
        return stream_batches(run, iter(texts), batch_size)
    raise UsageError(
        "texts must be a text, or a list or an iterator of texts (a pair of texts is a tuple), "
        f"got {shorten(repr(texts), 60)} ({type(texts).__name__})"
    )


def stream_batches(
    run: Callable[[Sequence[Any]], Sequence[Any]], texts: Iterator[Any], batch_size: int
) -> Iterator[Any]:
    """Yield the results of an iterator's texts in order, batch by batch."""
    while batch := list(islice(texts, batch_size)):
        yield from run(batch)


def join_inputs(names: Sequence[str], given: Sequence[Any], modality: str = "text") -> Any:
    """The inputs as tuples, one for each text. If one input is a single text and another a list or an iterator, the
    single text is used for all.

    With another modality, such as "image", a value of it, or a tuple of several, is also single.
    """

    def is_single(side: Any) -> bool:
        is_value = modality != "text" and (isinstance(side, tuple) or not MODALITIES[modality].check(side))
        return isinstance(side, str) or is_value

    for name, side in zip(names, given, strict=True):
        if not is_single(side) and (not isinstance(side, Iterable) or isinstance(side, bytes)):
            raise UsageError(f"{name} must be a text, or a list or an iterator of texts, got {shorten(repr(side), 60)}")
    if all(map(is_single, given)):
        return tuple(given)
    several = [side for side in given if not is_single(side)]
    has_iterator = any(isinstance(side, Iterator) for side in several)
    if not has_iterator and len({len(side) for side in several}) > 1:
        counts = " for ".join(f"{len(side)} {name}s" for name, side in zip(names, given, strict=True))
        raise UsageError(f"{counts}; give lists of equal length")
    rows = zip(*several, strict=True)
    tuples = (tuple(side if is_single(side) else next(row) for side in given) for row in map(iter, rows))
    return tuples if has_iterator else list(tuples)
