"""From a recipe's objective to what encodes its records and what makes training examples of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.data import (
    CausalLM,
    Classification,
    Contrastive,
    Denoising,
    EncodeAnswer,
    EncodeChat,
    EncodeClass,
    EncodedExamples,
    EncodePair,
    EncodeTags,
    EncodeText,
    MaskedLM,
    NextSentence,
    Objective,
    QuestionAnswering,
    Seq2SeqLM,
    SpanCorruption,
    SpecialTokenTemplate,
    Tagging,
)
from qkv.data.cache.token_cache import Encode
from qkv.errors import QkvError
from qkv.text import Tokenizer
from qkv.train.recipe.check import TOO_LONG
from qkv.train.recipe.schema import Recipe

MASKED, SPANS, DENOISED = 0.15, 0.15, 0.3  # the papers' own shares of what is hidden: BERT's, T5's, BART's


@dataclass(frozen=True)
class Study:
    """What is learnt from records with these fields."""

    recipe: Recipe
    tokenizer: Tokenizer
    fields: frozenset[str]
    classes: tuple[str, ...] = ()

    def encode(self) -> Encode:
        """What turns the records into integers."""
        objective, tokenizer = self.recipe.objective, self.tokenizer
        match objective.kind:
            case "seq2seq":
                return EncodePair(tokenizer.target, source_tokenizer=tokenizer)
            case "causal_lm" if "messages" in self.fields:
                return EncodeChat(tokenizer)
            case "classification":
                second = "second" if "second" in self.fields else None
                if "score" in self.fields:
                    return EncodeClass(tokenizer, "text", second, score="score")
                return EncodeClass(tokenizer, "text", second, label="label", classes=self.classes)
            case "tagging":
                return EncodeTags(tokenizer, classes=self.classes, label_subwords=objective.label_subwords)
            case "question_answering":
                return EncodeAnswer(tokenizer)
            case "contrastive":
                return EncodeClass(tokenizer, "first", "second", score="score" if "score" in self.fields else None)
        sentences = objective.kind == "next_sentence" or objective.permute_sentences
        return EncodeText(tokenizer, words=objective.whole_word_masking, sentences=sentences)

    def examples(
        self, encoded: EncodedExamples, *, start: int | None = None, shape: tuple[int, ...] | None = None
    ) -> Objective:
        """Encoded records as training examples. `start`: what a decoder is shown first, where the model says.

        `shape`: the lengths of rows that others have already, target and source, instead of the recipe's.
        """
        data, objective, tokenizer = self.recipe.data, self.recipe.objective, self.tokenizer
        too_long: Any = data.too_long or TOO_LONG[objective.kind][0]
        source = shape[-1] if shape else data.max_source_length or None
        one: dict[str, Any] = {"max_length": shape[0] if shape else data.max_length, "too_long": too_long}
        moving = {**one, "random_offset": objective.random_offset}
        match objective.kind:
            case "seq2seq":
                frame = find_source_template(tokenizer)
                target = tokenizer.target
                return Seq2SeqLM(
                    encoded,
                    target,
                    **one,
                    max_source_length=source,
                    source_template=frame,
                    decoder_start_token_id=start,
                )
            case "causal_lm" if "messages" in self.fields:
                return CausalLM(encoded, tokenizer, **moving, loss_mask_field="answer", add_bos_eos=False)
            case "causal_lm":
                return CausalLM(encoded, tokenizer, **moving, add_bos_eos=objective.add_bos_eos)
            case "masked_lm":
                share = objective.mask_prob or MASKED
                return MaskedLM(
                    encoded, tokenizer, **moving, mask_prob=share, whole_word_masking=objective.whole_word_masking
                )
            case "next_sentence":
                share, whole = objective.mask_prob or MASKED, objective.whole_word_masking
                return NextSentence(
                    encoded, tokenizer, max_length=data.max_length, mask_prob=share, whole_word_masking=whole
                )
            case "span_corruption":
                moving |= {"max_source_length": source or data.max_length, "max_length": one["max_length"] if source else None}
                share = objective.mask_prob or SPANS
                spans = SpanCorruption(
                    encoded, tokenizer, **moving, mask_prob=share, mean_span_length=objective.mean_span_length
                )
                spans.decoder_start_token_id = spans.decoder_start_token_id if start is None else start
                return spans
            case "denoising":
                share, span = objective.mask_prob or DENOISED, objective.mean_span_length
                how: dict[str, Any] = {
                    "mask_prob": share,
                    "mean_span_length": span,
                    "permute_sentences": objective.permute_sentences,
                }
                frame = find_source_template(tokenizer)
                spoiled = Denoising(
                    encoded, tokenizer, **moving, max_source_length=source, source_template=frame, **how
                )
                spoiled.decoder_start_token_id = spoiled.decoder_start_token_id if start is None else start
                return spoiled
            case "classification":
                return Classification(encoded, tokenizer, **one)
            case "tagging":
                return Tagging(encoded, tokenizer, **one)
            case "question_answering":
                return QuestionAnswering(encoded, tokenizer, **one, overlap=objective.overlap)
            case "contrastive":
                return Contrastive(encoded, tokenizer, **one, max_source_length=source)
        raise AssertionError(objective.kind)


def find_source_template(tokenizer: Tokenizer) -> SpecialTokenTemplate:
    """What stands around a source: exactly what the tokenizer lays around a text when the model is run."""
    adds = len(tokenizer.encode("a")) > len(tokenizer.encode("a", add_special_tokens=False))
    return SpecialTokenTemplate.from_tokenizer(tokenizer) if adds else SpecialTokenTemplate()


class JoinedExamples:
    """Several sets of encoded examples, one after the other, as one: what a mixture is validated on."""

    def __init__(self, parts: Sequence[EncodedExamples]):
        self.parts = tuple(parts)
        self.fields: tuple[str, ...] = self.parts[0].fields
        self.ends = np.cumsum([len(part) for part in self.parts])

    @property
    def fingerprint(self) -> str:
        return "+".join(part.fingerprint for part in self.parts)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def _locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which part, and which example of it."""
        part = np.searchsorted(self.ends, indices, "right")
        return part, indices - (self.ends - [len(one) for one in self.parts])[part]

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        part, inside = self._locate(np.array([index]))
        return self.parts[int(part[0])][int(inside[0])]

    def lengths(self, field: str) -> np.ndarray:
        return np.concatenate([part.lengths(field) for part in self.parts])

    def gather(
        self, field: str, indices: np.ndarray, starts: np.ndarray | None = None, counts: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        found: list[np.ndarray] = []
        part, inside = self._locate(np.asarray(indices))
        for place in range(len(indices)):  # validation is small: plain is enough
            here = slice(place, place + 1)
            some = [None if one is None else one[here] for one in (starts, counts)]
            found.append(self.parts[int(part[place])].gather(field, inside[here], *some)[0])
        if not found:
            return self.parts[0].gather(field, np.zeros(0, np.int64))
        return np.concatenate(found), np.concatenate([[0], np.cumsum([len(one) for one in found])])

    def location(self, index: int) -> Any:
        part, inside = self._locate(np.array([index]))
        where = getattr(self.parts[int(part[0])], "location", None)
        if where is None:
            raise QkvError("these examples do not know where they come from")
        return where(int(inside[0]))
