"""Tagging of words (named entities, parts of speech): predict the tag of each word.

A word may have several tokens. `EncodeTags` puts the tag on the first token of the word, or on all its tokens. With a
tokenizer that hashes words, each word is one token, and a payload has its features.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.encode.align import first_nonspace_character
from qkv.data.encode.encoders import EncodedFields, EncodeOneByOne, encode_fingerprint
from qkv.data.encode.words import WordFormat, word_features, word_payloads
from qkv.data.labels import label_text
from qkv.data.modalities import get_field
from qkv.data.objectives.base import IGNORE_INDEX, FlatExamples, TooLongPolicy, check_choice
from qkv.data.objectives.table import ANY_LENGTH, ObjectiveSpec, RecordField, bert_tokens
from qkv.data.objectives.windows import TemplateWindowObjective
from qkv.data.payloads import PayloadSlot
from qkv.data.problems import InvalidRecord
from qkv.data.ragged import IntArray
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import suggest_name
from qkv.text import Tokenizer
from qkv.text.word_features import NUM_FEATURES


class EncodeTags(EncodeOneByOne):
    """Encodes words with tags as `ids`, and `tags` with the class of each token. Words are joined by spaces.

    `label_subwords="first"` puts the tag of a word on its first token; the loss ignores its other tokens. With `"all"`,
    every token gets the tag of its word. If the tag is `B-X`, the later tokens get `I-X`, if that class exists.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        words: str = "tokens",
        tags: str = "tags",
        *,
        classes: Sequence[str],
        label_subwords: str = "first",
    ):
        check_choice("label_subwords", label_subwords, ("first", "all"))
        self.tokenizer = tokenizer
        self.words, self.tags, self.label_subwords = words, tags, label_subwords
        self.classes = tuple(classes)
        self.class_ids = {name: class_id for class_id, name in enumerate(self.classes)}
        self.continuation_tags = [  # class id → class id for the later tokens of a word
            self.class_ids.get("I-" + name[2:], class_id) if name.startswith("B-") else class_id
            for name, class_id in self.class_ids.items()
        ]
        self.fields: tuple[str, ...] = ("ids", "tags", "features") if tokenizer.hashes_words else ("ids", "tags")
        features = [WordFormat.fingerprint] if tokenizer.hashes_words else []
        self.fingerprint = encode_fingerprint("tags", tokenizer, words, tags, self.classes, label_subwords, *features)

    def encode_one(self, record: Record) -> EncodedFields:
        """Encode one sentence."""
        words = get_field(record, self.words, "words")
        tags = [label_text(tag, "tag") for tag in get_field(record, self.tags, "tags")]
        if len(words) != len(tags):
            raise InvalidRecord(
                f"the field {self.words!r} has {len(words)} entries, but {self.tags!r} has {len(tags)}", "uneven lists"
            )
        unknown = [tag for tag in tags if tag not in self.class_ids]
        if unknown:
            hint = suggest_name(unknown[0], self.classes[:50])
            raise InvalidRecord(f"the tag {unknown[0]!r} is not one of the classes; {hint}", "unknown class")
        text = " ".join(map(str, words))
        ids, offsets = self.tokenizer.encode_with_offsets(text)
        word_at = [index for index, word in enumerate(words) for _ in range(len(str(word)) + 1)]  # + 1 for the space
        labels, previous_word = [], -1
        for offset in offsets:
            character = first_nonspace_character(text, offset)
            word = word_at[character]
            label = self.class_ids[tags[word]]
            if text[character : character + 1].isspace() or (word == previous_word and self.label_subwords == "first"):
                label = IGNORE_INDEX
            elif word == previous_word:
                label = self.continuation_tags[label]
            labels.append(label)
            previous_word = word if label != IGNORE_INDEX else previous_word
        if not self.tokenizer.hashes_words:
            return {"ids": ids, "tags": labels}
        return {"ids": ids, "tags": labels, "features": token_features(text, offsets)}


def token_features(text: str, offsets: Sequence[tuple[int, int]]) -> np.ndarray:
    """The features of all tokens of a text as a flat array, for tokens that are words."""
    return word_features([text[start:end] for start, end in offsets]).reshape(-1)


class TaggingObjective(TemplateWindowObjective):
    """Records with `ids` and `tags`: one class, or `IGNORE_INDEX`, for each token; and perhaps `features` of words."""

    name = "tagging"

    def __init__(
        self, examples: EncodedExamples, tokenizer: Tokenizer, *, max_length: int, too_long: TooLongPolicy = "error"
    ):
        super().__init__(examples, tokenizer, "ids", "tags", max_length=max_length, too_long=too_long)
        self.payloads = (PayloadSlot(WordFormat()),) if "features" in examples.fields else ()

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Windows of tokens with special tokens, and the tag of each token as its label."""
        record, first, count = self.windows.locate(examples, rng)
        tokens, _ = self.examples.gather("ids", record, first, count)
        tags, _ = self.examples.gather("tags", record, first, count)
        ids, lengths = self.template.add_special_tokens((tokens, count))
        payloads = []
        if self.payloads:
            features, _ = self.examples.gather("features", record, first * NUM_FEATURES, count * NUM_FEATURES)
            payloads.append(word_payloads(features, count, lengths, len(self.template.prefix)))
        labels = {"tokens": self.template.align_labels(IGNORE_INDEX, (tags, count))}
        return FlatExamples(lengths, ids, labels, payloads=payloads)

    def describe_labels(
        self, ids: IntArray, labels: Mapping[str, np.ndarray], decode: Callable[[Any], str], classes: Sequence[str]
    ) -> dict[str, str]:
        """The names of the tags."""
        return {"target": " ".join(classes[one] for one in labels["tokens"].tolist() if one != IGNORE_INDEX)}


SPEC = ObjectiveSpec(
    name="tagging",
    families=("encoder", "decoder"),
    head="tag",
    fields=(
        RecordField("tokens", ("words", "form", "forms", "text", "sentence", "query", "utterance"), "words"),
        RecordField(
            "tags",
            ("ner_tags", "pos_tags", "labels", "upos", "ner", "pos", "entities", "slots", "spans"),
            "tags",
        ),
    ),
    class_field="tags",
    required_tokens=bert_tokens,
    too_long_policies=ANY_LENGTH,
    options=("label_subwords", "label_smoothing"),
    hashes_words=True,
    make_encoder=lambda setup: EncodeTags(
        setup.tokenizer, classes=setup.classes, label_subwords=setup.options.label_subwords
    ),
    make_examples=lambda setup, encoded: TaggingObjective(encoded, setup.tokenizer, **setup.sequence_kwargs),
)
