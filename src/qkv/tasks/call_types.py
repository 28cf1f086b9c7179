"""The types of the calls of a model, such as `m.translate`: one result for a text, a list for a list.

Written by `python docs/task_pages.py`; do not edit.
"""

from collections.abc import Iterator
from typing import Any, Literal, Protocol, overload

from qkv.progress import OnProgress
from qkv.tasks.run.generate import GeneratedText
from qkv.tasks.verbs.answer import Answer
from qkv.tasks.verbs.classify import ClassPrediction
from qkv.tasks.verbs.complete import Completion
from qkv.tasks.verbs.fill import FilledText
from qkv.tasks.verbs.tag import TaggedText


class TranslateCall(Protocol):
    """`m.translate`: a model that generates a text for a text."""

    @overload
    def __call__(
        self,
        texts: str | tuple[str, ...],
        *,
        beam: int = 1,
        max_tokens: int | None = None,
        top: int = 1,
        prompt: str = "",
        length_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        stop: list[str] | None = None,
        align: bool = False,
        prefix: str = "",
        sentences: bool | None = None,
        batch_size: int = 64,
        progress: OnProgress | None = None,
    ) -> GeneratedText: ...

    @overload
    def __call__(
        self,
        texts: list[str] | list[tuple[str, str]],
        *,
        beam: int = 1,
        max_tokens: int | None = None,
        top: int = 1,
        prompt: str = "",
        length_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        stop: list[str] | None = None,
        align: bool = False,
        prefix: str = "",
        sentences: bool | None = None,
        batch_size: int = 64,
        progress: OnProgress | None = None,
    ) -> list[GeneratedText]: ...

    @overload
    def __call__(
        self,
        texts: Iterator[str] | Iterator[str | tuple[str, ...]],
        *,
        beam: int = 1,
        max_tokens: int | None = None,
        top: int = 1,
        prompt: str = "",
        length_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        stop: list[str] | None = None,
        align: bool = False,
        prefix: str = "",
        sentences: bool | None = None,
        batch_size: int = 64,
        progress: OnProgress | None = None,
    ) -> Iterator[GeneratedText]: ...

    @overload
    def __call__(
        self,
        texts: Any,
        *,
        beam: int = 1,
        max_tokens: int | None = None,
        top: int = 1,
        prompt: str = "",
        length_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        stop: list[str] | None = None,
        align: bool = False,
        prefix: str = "",
        sentences: bool | None = None,
        batch_size: int = 64,
        progress: OnProgress | None = None,
    ) -> Any: ...


class SummariseCall(Protocol):
    """`m.summarise`: a model that generates a text for a text."""

    @overload
    def __call__(
        self,
        texts: str | tuple[str, ...],
        *,
        beam: int = 1,
        max_tokens: int | None = None,
        top: int = 1,
        prompt: str = "",
        length_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        stop: list[str] | None = None,
        too_long: Literal["split", "truncate", "error"] = "split",
        batch_size: int = 16,
        progress: OnProgress | None = None,
    ) -> GeneratedText: ...

    @overload
    def __call__(
        self,
        texts: list[str] | list[tuple[str, str]],
        *,
        beam: int = 1,
        max_tokens: int | None = None,
        top: int = 1,
        prompt: str = "",
        length_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        stop: list[str] | None = None,
        too_long: Literal["split", "truncate", "error"] = "split",
        batch_size: int = 16,
        progress: OnProgress | None = None,
    ) -> list[GeneratedText]: ...

    @overload
    def __call__(
        self,
        texts: Iterator[str] | Iterator[str | tuple[str, ...]],
        *,
        beam: int = 1,
        max_tokens: int | None = None,
        top: int = 1,
        prompt: str = "",
        length_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        stop: list[str] | None = None,
        too_long: Literal["split", "truncate", "error"] = "split",
        batch_size: int = 16,
        progress: OnProgress | None = None,
    ) -> Iterator[GeneratedText]: ...

    @overload
    def __call__(
        self,
        texts: Any,
        *,
        beam: int = 1,
        max_tokens: int | None = None,
        top: int = 1,
        prompt: str = "",
        length_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        stop: list[str] | None = None,
        too_long: Literal["split", "truncate", "error"] = "split",
        batch_size: int = 16,
        progress: OnProgress | None = None,
    ) -> Any: ...


class CompleteCall(Protocol):
    """`m.complete`: a model that continues a text."""

    @overload
    def __call__(
        self,
        texts: str | tuple[str, ...],
        *,
        top: int = 3,
        max_tokens: int = 8,
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> Completion: ...

    @overload
    def __call__(
        self,
        texts: list[str] | list[tuple[str, str]],
        *,
        top: int = 3,
        max_tokens: int = 8,
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> list[Completion]: ...

    @overload
    def __call__(
        self,
        texts: Iterator[str] | Iterator[str | tuple[str, ...]],
        *,
        top: int = 3,
        max_tokens: int = 8,
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> Iterator[Completion]: ...

    @overload
    def __call__(
        self,
        texts: Any,
        *,
        top: int = 3,
        max_tokens: int = 8,
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> Any: ...


class FillCall(Protocol):
    """`m.fill`: a model that fills in masked words."""

    @overload
    def __call__(
        self,
        texts: str | tuple[str, ...],
        *,
        top: int = 5,
        too_long: Literal["window", "error"] = "window",
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> FilledText: ...

    @overload
    def __call__(
        self,
        texts: list[str] | list[tuple[str, str]],
        *,
        top: int = 5,
        too_long: Literal["window", "error"] = "window",
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> list[FilledText]: ...

    @overload
    def __call__(
        self,
        texts: Iterator[str] | Iterator[str | tuple[str, ...]],
        *,
        top: int = 5,
        too_long: Literal["window", "error"] = "window",
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> Iterator[FilledText]: ...

    @overload
    def __call__(
        self,
        texts: Any,
        *,
        top: int = 5,
        too_long: Literal["window", "error"] = "window",
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> Any: ...


class ClassifyCall(Protocol):
    """`m.classify`: a model that predicts the class or the score of a text."""

    @overload
    def __call__(
        self,
        texts: str | tuple[str, ...],
        *,
        top: int = 0,
        threshold: float | None = None,
        too_long: Literal["error", "split", "truncate"] = "error",
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> ClassPrediction: ...

    @overload
    def __call__(
        self,
        texts: list[str] | list[tuple[str, str]],
        *,
        top: int = 0,
        threshold: float | None = None,
        too_long: Literal["error", "split", "truncate"] = "error",
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> list[ClassPrediction]: ...

    @overload
    def __call__(
        self,
        texts: Iterator[str] | Iterator[str | tuple[str, ...]],
        *,
        top: int = 0,
        threshold: float | None = None,
        too_long: Literal["error", "split", "truncate"] = "error",
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> Iterator[ClassPrediction]: ...

    @overload
    def __call__(
        self,
        texts: Any,
        *,
        top: int = 0,
        threshold: float | None = None,
        too_long: Literal["error", "split", "truncate"] = "error",
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> Any: ...


class TagCall(Protocol):
    """`m.tag`: a model that predicts the tag of each word."""

    @overload
    def __call__(
        self,
        texts: str | tuple[str, ...],
        *,
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> TaggedText: ...

    @overload
    def __call__(
        self,
        texts: list[str] | list[tuple[str, ...]] | list[list[str]],
        *,
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> list[TaggedText]: ...

    @overload
    def __call__(
        self,
        texts: Iterator[str] | Iterator[str | tuple[str, ...]],
        *,
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> Iterator[TaggedText]: ...

    @overload
    def __call__(
        self,
        texts: Any,
        *,
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> Any: ...


class AnswerCall(Protocol):
    """`m.answer`: a model that finds the answer to a question in a passage."""

    @overload
    def __call__(
        self,
        question: str,
        context: str,
        *,
        top: int = 1,
        must_answer: bool = False,
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> Answer: ...

    @overload
    def __call__(
        self,
        question: str,
        context: list[str],
        *,
        top: int = 1,
        must_answer: bool = False,
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> list[Answer]: ...

    @overload
    def __call__(
        self,
        question: list[str],
        context: str | list[str],
        *,
        top: int = 1,
        must_answer: bool = False,
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> list[Answer]: ...

    @overload
    def __call__(
        self,
        question: list[tuple[str, str]],
        *,
        top: int = 1,
        must_answer: bool = False,
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> list[Answer]: ...

    @overload
    def __call__(
        self,
        question: Any,
        context: Any,
        *,
        top: int = 1,
        must_answer: bool = False,
        batch_size: int = 32,
        progress: OnProgress | None = None,
    ) -> Any: ...
