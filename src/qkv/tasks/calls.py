"""The calls of a model on texts: `m.translate`, `m.classify`, `m.tag` and more. `Model` inherits them.

One text gives one result, and a list gives a list. An iterator, such as a generator or an open file, gives a generator
that reads and runs one batch at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, overload

from qkv.errors import UsageError, shorten, suggest_name
from qkv.models import Config, Network
from qkv.tasks.evaluate import TASKS, check_texts, find_task
from qkv.tasks.evaluate import run as run_task
from qkv.tasks.results import Answer, ChatReply, ClassPrediction, Completion, FilledText, GeneratedText, TaggedText
from qkv.tasks.run.translation import parts
from qkv.tasks.task import TextModel, check_flag, require_tokenizer
from qkv.text import Tokenizer

if TYPE_CHECKING:
    from qkv.tasks.chat.conversation import Chat
    from qkv.tasks.chat.reply_stream import ReplyStream
    from qkv.tasks.run.complete import Completer

COMPLETE_OPTIONS = ("top", "max_tokens")
ARTICLES = {"encoder": "an encoder", "decoder": "a decoder", "seq2seq": "an encoder-decoder"}


class TaskCalls:
    """The calls of a model on texts. `run` is the call of the model's own task, whatever it is."""

    config: Config
    network: Network
    tokenizer: Tokenizer | None
    _completer: "Completer | None" = None
    _chat: "tuple[str | None, Chat] | None" = None

    def run(self, texts: Any, *, batch_size: int = 32, **options: Any) -> Any:
        """Run the model on texts: generate, classify, tag, answer, embed or fill masks, depending on its head.

        A pair of texts (a question and its context, or two texts to classify) is a tuple, and so are the words of a
        text to tag. `qkv.tasks.run` documents the options and results of each task.
        """
        return map_texts(lambda several: self._run_task(several, batch_size=batch_size, **options), texts, batch_size)

    @overload
    def translate(self, texts: str, **options: Any) -> GeneratedText: ...
    @overload
    def translate(self, texts: Iterable[str], **options: Any) -> Any: ...

    def translate(self, texts: Any, *, batch_size: int = 64, **options: Any) -> Any:
        """Translate texts of any length with an encoder-decoder, sentence by sentence. Line breaks are kept.

        `top=3` adds the other hypotheses of a beam search; `align=True` adds the source word of each word;
        `prefix="Der"` is how the translation begins; `prompt` is put before every sentence; `sentences=False` reads a
        text in one piece, which is the default if the model was trained on texts that are not sentences
        (`m.config.reads_sentences` is False). Other options are the fields of `qkv.decode.GenerationOptions`, such as
        `beam`.
        """
        return self._map_parts("translate", parts.translate, texts, batch_size, options)

    @overload
    def summarise(self, texts: str, **options: Any) -> GeneratedText: ...
    @overload
    def summarise(self, texts: Iterable[str], **options: Any) -> Any: ...

    def summarise(self, texts: Any, *, batch_size: int = 16, **options: Any) -> Any:
        """Summarise texts with an encoder-decoder.

        A text that is too long is summarised in parts; `too_long="truncate"` reads its beginning only, and
        `too_long="error"` refuses it. Other options are those of `translate`.
        """
        return self._map_parts("summarise", parts.summarise, texts, batch_size, options)

    @overload
    def classify(self, texts: str | tuple[str, str], **options: Any) -> ClassPrediction: ...
    @overload
    def classify(self, texts: Iterable[str | tuple[str, str]], **options: Any) -> Any: ...

    def classify(self, texts: Any, *, batch_size: int = 32, **options: Any) -> Any:
        """The class of each text, or of each pair of texts (a tuple), with calibrated probabilities.

        `top=3` lists the three most likely classes; without it, all are listed. With `threshold=0.7`, the label is None
        where no class is that likely: the text is out of scope. The default is the threshold that training has fitted
        on validation data with such texts, if there are any (`objective.out_of_scope`). A model with several labels per
        text returns all that reach the threshold (0.5 by default). `too_long` is "error", "truncate" or "split". The
        label of an empty text is None.
        """
        return self._map_task("classify", texts, batch_size, options)

    @overload
    def tag(self, texts: str | tuple[str, ...], **options: Any) -> TaggedText: ...
    @overload
    def tag(self, texts: Iterable[str | Sequence[str]], **options: Any) -> Any: ...

    def tag(self, texts: Any, *, batch_size: int = 32, **options: Any) -> Any:
        """The tags of the words of each text, and the entities that BIO or BIOES tags form, with character offsets.

        A text may also be given as its words: a tuple of words is one text; in a list of texts, so is a list of words.
        """
        return self._map_task("tag", texts, batch_size, options)

    @overload
    def answer(self, question: str, context: str, **options: Any) -> Answer: ...
    @overload
    def answer(self, question: Any, context: Any = None, **options: Any) -> Any: ...

    def answer(self, question: Any, context: Any = None, *, batch_size: int = 32, **options: Any) -> Any:
        """The part of `context` that answers the question, with its character offsets and its probability.

        Either argument may be a list; a single text is then used for all. Without `context`, `question` has pairs
        (question, context), in a list or an iterator. A context of any length is read in overlapping windows. `top=3`
        adds two more answers. With `no_answer=False`, there is always an answer.
        """
        return self._map_task("answer", pair_questions(question, context), batch_size, options)

    @overload
    def fill(self, texts: str, **options: Any) -> FilledText: ...
    @overload
    def fill(self, texts: Iterable[str], **options: Any) -> Any: ...

    def fill(self, texts: Any, *, batch_size: int = 32, **options: Any) -> Any:
        """Fill in the masked words of texts ("Paris is the [MASK] of France."); `top` candidates for each mask.

        Of a text that is too long, the text around the masks is read; `too_long="error"` refuses it.
        """
        return self._map_task("fill", texts, batch_size, options)

    @overload
    def complete(self, texts: str, **options: Any) -> Completion: ...
    @overload
    def complete(self, texts: Iterable[str], **options: Any) -> Any: ...

    def complete(self, texts: Any, **options: Any) -> Any:
        """The most likely continuations of a text while it is being typed: the rest of a word, and what follows.

        There are at most `top` suggestions (3) of at most `max_tokens` tokens (8). The keys and values of the text are
        kept for the next call, which is fast if its text begins in the same way.
        """
        model = self._text_model("complete", "language")
        for name in options:
            if name not in COMPLETE_OPTIONS:
                raise UsageError(f"m.complete has no option {name!r}; {suggest_name(name, COMPLETE_OPTIONS)}")

        def run(several: Sequence[Any]) -> Sequence[Any]:
            check_texts(TASKS["language"], several)
            completer = self._find_completer(model)
            return [completer.complete(text, **options) for text in several]

        return map_texts(run, texts, batch_size=1)

    @overload
    def chat(self, messages: Any, *, stream: Literal[False] = False, **options: Any) -> ChatReply: ...
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

        To continue a chat, append a message to `reply.messages`. The prompt is made by the chat template of the
        tokenizer; `template="plain"` is for a model without one. If the chat is longer than the model's context, the
        oldest messages are left out, with a warning. The names of control tokens inside messages are ordinary text
        without `special=True`. With `stream=True`, the result is an iterator of texts; `on_text` is a function that is
        called with each text instead. Other options are the fields of `qkv.decode.GenerationOptions`; `max_tokens` is
        512 by default.
        """
        check_flag("stream", stream)
        chat = self.find_chat(template)
        if stream:
            from qkv.tasks.chat.reply_stream import ReplyStream

            return ReplyStream(lambda on_text: chat.reply(messages, system, on_text=on_text, **options))
        return chat.reply(messages, system, **options)

    def find_chat(self, template: str | None = None) -> "Chat":
        """The model with its chat template, as `chat` uses it; an error if the model cannot chat."""
        from qkv.tasks.chat.conversation import Chat

        model = self._text_model("chat", "language")
        kept = self._chat
        if kept is None or kept[0] != template or kept[1].model != model:
            kept = self._chat = (template, Chat(model, template))
        return kept[1]

    def _find_completer(self, model: TextModel) -> "Completer":
        from qkv.tasks.run.complete import Completer, weights_version

        kept = self._completer
        if kept is None or kept.network is not self.network or kept.version != weights_version(kept.network):
            kept = self._completer = Completer(model)
        return kept

    def _map_parts(
        self, call: str, run_parts: Callable[..., Any], texts: Any, batch_size: int, options: dict[str, Any]
    ) -> Any:
        model = self._text_model(call, "text_to_text")

        def run(several: Sequence[Any]) -> Sequence[Any]:
            check_texts(TASKS["text_to_text"], several)
            results: Sequence[Any] = run_parts(model, several, batch_size=batch_size, **options)
            return results

        return map_texts(run, texts, batch_size)

    def _map_task(self, call: str, texts: Any, batch_size: int, options: dict[str, Any]) -> Any:
        """Run the task of the same name as the call."""
        self._text_model(call, call)
        return map_texts(lambda several: self._run_task(several, batch_size=batch_size, **options), texts, batch_size)

    def _run_task(self, texts: Sequence[Any], **options: Any) -> Sequence[Any]:
        return run_task(self.network, self.tokenizer, self.config, texts, **options)

    def _text_model(self, call: str, task: str) -> TextModel:
        """The model, or an error if it is for another task: what the model is, and which calls it supports."""
        found = find_task(self.config)
        if found.name != task:
            family, head = ARTICLES[self.config.family], self.config.head.kind
            raise UsageError(
                f"m.{call} needs a model that {TASKS[task].description}, but this model is {family} with head "
                f"{head!r}, which {found.description}; it can: {found.list_calls()}"
            )
        return TextModel(self.network, require_tokenizer(self.tokenizer), self.config)


def map_texts(run: Callable[[Sequence[Any]], Sequence[Any]], texts: Any, batch_size: int) -> Any:
    """Run a function of several texts on one text (a string or a tuple), a list of texts, or an iterator of texts."""
    if isinstance(texts, str | tuple):
        return run([texts])[0]
    if hasattr(texts, "tolist"):  # an array, or a column of a data frame
        texts = texts.tolist()
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


def pair_questions(question: Any, context: Any) -> Any:
    """Questions with their contexts, as pairs."""
    if context is None:
        if isinstance(question, str):
            raise UsageError("m.answer needs a passage to find the answer in: m.answer(question, context)")
        return question
    for name, side in (("question", question), ("context", context)):
        if not isinstance(side, Iterable) or isinstance(side, bytes):
            raise UsageError(f"{name} must be a text, or a list or an iterator of texts, got {shorten(repr(side), 60)}")
    if isinstance(question, str) and isinstance(context, str):
        return question, context
    has_iterator = isinstance(question, Iterator) or isinstance(context, Iterator)
    if isinstance(question, str):
        pairs: Iterator[Any] = ((question, one) for one in context)
    elif isinstance(context, str):
        pairs = ((one, context) for one in question)
    else:
        if not has_iterator and len(question) != len(context):
            raise UsageError(f"{len(question)} questions for {len(context)} contexts; give two lists of equal length")
        pairs = zip(question, context, strict=True)
    return pairs if has_iterator else list(pairs)
