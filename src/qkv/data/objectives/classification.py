"""Classification of texts, pairs of texts, images and sounds: a class, any number of labels, or a score."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.cache.writer import RecordEncoder
from qkv.data.encode.encoders import EncodeClass
from qkv.data.encode.payloads import EncodePayloads
from qkv.data.objectives.base import IGNORE_INDEX, FlatExamples, Label, TooLongPolicy, check_length
from qkv.data.objectives.loss import ForwardPass, LossSums
from qkv.data.objectives.record_objective import RecordObjective
from qkv.data.objectives.table import WHOLE, ObjectiveSetup, ObjectiveSpec, RecordField, bert_tokens
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.payloads import FlatPayloads, PayloadField, PayloadFormat, PayloadSlot
from qkv.data.ragged import IntArray
from qkv.data.stream.random_bits import EpochRng, random_bits, to_integers
from qkv.errors import UsageError
from qkv.text import Tokenizer

if TYPE_CHECKING:
    from qkv.blocks.config import HeadConfig

MIX_LABELS = (
    Label("mixed_classes", "document", is_counted=False),
    Label("mix_weights", "document", "float32", is_counted=False),
)
"""The class of the image that is mixed into an image, and the weight of the image's own class."""
TARGETS = {"score": "scores", "labels": "label_sets", "label": "classes"}
"""The encoded field → the label of the document."""


class ClassificationObjective(RecordObjective):
    """Records with the fields `first`, optionally `second`, and `label`, `labels` (of `num_classes`) or `score`.

    If two texts together are too long, the longer one is truncated first. With `first_format`, `first` is a payload,
    such as an image or a sound, which is never truncated.
    """

    name = "classification"

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        too_long: TooLongPolicy = "error",
        num_classes: int = 0,
        first_format: PayloadFormat | None = None,
        mix: str = "none",
    ):
        self.target_field = next((name for name in TARGETS if name in examples.fields), "label")
        self.num_classes = num_classes
        super().__init__(examples, tokenizer, "first", self.target_field)
        self.first_payloads = None if first_format is None else PayloadField(examples, "first", first_format)
        self.payloads = () if first_format is None else (PayloadSlot(first_format),)
        self.is_pair = "second" in examples.fields
        self.too_long = too_long
        self.template = SpecialTokenTemplate.from_tokenizer(tokenizer)
        self.num_special_tokens = self.template.num_special_tokens(self.is_pair)
        check_length("max_length", max_length, self.num_special_tokens + 2)
        self.max_lengths = (max_length,)
        self.has_token_types = self.is_pair
        if self.first_payloads is not None:
            self.first_payloads.check_lengths("max_length", max_length, too_long, self.num_special_tokens)
        self.labels = (make_label(TARGETS[self.target_field], num_classes),)
        self.mix = mix
        if mix != "none":
            if self.target_field != "label" or first_format is None or first_format.kind != "patches":
                raise UsageError(f'objective.mix_images = "{mix}" is for images with one class each; leave it out')
            self.labels += MIX_LABELS
        self.count_records()

    def required_lengths(self, examples: IntArray | slice) -> IntArray:
        """The length of both texts with special tokens: (n, 1)."""
        one, two = self._text_lengths(examples)
        lengths: IntArray = one + two + self._special_counts(two)
        return lengths[:, None]

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Texts, or pairs with token types, and their classes or scores."""
        one, two = self._text_lengths(examples)
        room, payloads = self.max_lengths[0] - self._special_counts(two), self.first_payloads
        if payloads is None:
            one, two = truncate_pair(one, two, room)
            first = self.gather_first("first", examples, one)
        else:
            two = np.minimum(two, room - one)
            first = payloads.placeholders(examples, self.pad_token_id)
        second = self.gather_first("second", examples, two) if self.is_pair else None
        ids, lengths = self.template.add_special_tokens(first, second)
        target, offsets = self.examples.gather(self.target_field, examples)
        if self.target_field == "labels":
            sets = np.zeros((len(examples), self.num_classes), np.int64)
            sets[np.repeat(np.arange(len(examples)), np.diff(offsets)), target] = 1
            target = sets
        labels = {TARGETS[self.target_field]: target}
        found = [] if payloads is None else [payloads.read(examples, rng, lengths, len(self.template.prefix))]
        if self.mix != "none":
            labels |= self.mix_in(found[0], examples, rng)
        return FlatExamples(
            lengths,
            ids,
            token_type_ids=self.template.token_type_ids(one, two) if self.is_pair else None,
            labels=labels,
            payloads=found,
        )

    def mix_in(self, images: FlatPayloads, examples: IntArray, rng: EpochRng) -> dict[str, np.ndarray]:
        """Mix the images with others, in place. Returns the classes of the others, and the weights of the images."""
        from qkv.images.mixing import mix_images

        assert self.first_payloads is not None
        keys = rng.keys("mix", examples)
        others = to_integers(random_bits(keys, np.full(len(keys), 2**20)), len(self.examples))
        count = np.zeros(len(examples), np.int64)
        values = self.first_payloads.read(others, rng, count, 0).values
        shape = (len(examples), -1, values.shape[-1])
        grid = (int(images.sizes[0, 0]), int(images.sizes[0, 1])) if len(examples) else (1, 1)
        mixed, weights = mix_images(images.values.reshape(shape), values.reshape(shape), grid, self.mix, keys)
        images.values = mixed.reshape(images.values.shape)
        return {"mixed_classes": self.examples.gather(self.target_field, others)[0], "mix_weights": weights}

    def describe_labels(
        self, ids: IntArray, labels: Mapping[str, np.ndarray], decode: Callable[[Any], str], classes: Sequence[str]
    ) -> dict[str, str]:
        """The class, the names of all labels, or the score."""
        if "scores" in labels:
            return {"score": f"{float(labels['scores']):g}"}
        if "label_sets" in labels:
            chosen = zip(classes, labels["label_sets"].tolist(), strict=True)
            return {"labels": ", ".join(name for name, value in chosen if value == 1)}
        return {"class": classes[int(labels["classes"])]}

    def _text_lengths(self, examples: IntArray | slice) -> tuple[IntArray, IntArray]:
        """The lengths of both texts; the second length is 0 if there is only one text."""
        payloads = self.first_payloads
        one = self.field_lengths("first", examples) if payloads is None else payloads.lengths[examples]
        return one, self.field_lengths("second", examples) if self.is_pair else np.zeros_like(one)

    def _special_counts(self, two: IntArray) -> IntArray:
        """The number of special tokens of each example: a second text of length 0 has no separator."""
        return np.where(two > 0, self.num_special_tokens, self.template.num_special_tokens())


def truncate_pair(one: IntArray, two: IntArray, max_total: int | IntArray) -> tuple[IntArray, IntArray]:
    """The lengths of two texts after truncation to `max_total` tokens. The longer text is truncated first.

    >>> [part.tolist() for part in truncate_pair(np.array([9, 2, 4]), np.array([2, 9, 4]), 6)]
    [[4, 2, 3], [2, 4, 3]]
    """
    half = max_total // 2
    kept_one = np.where(two <= half, np.minimum(one, max_total - two), np.minimum(one, max_total - half))
    return kept_one, np.minimum(two, max_total - kept_one)


def make_label(name: str, num_classes: int) -> Label:
    """The declaration of one kind of label: `classes`, `label_sets` or `scores`."""
    return Label(name, "document", "float32" if name == "scores" else "int32", num_classes * (name == "label_sets"))


def labels_for_head(head: "HeadConfig") -> tuple[Label, ...]:
    """A head with one output learns scores; with several outputs it learns classes or, if `multi_label`, label sets."""
    name = "scores" if head.outputs == 1 else "label_sets" if head.multi_label else "classes"
    return (make_label(name, head.outputs),)


def class_loss(run: ForwardPass) -> LossSums:
    """The cross-entropy of classes, the binary cross-entropy of each label, or the squared error of scores."""
    out = run.document_outputs()  # (B, E, V)
    if "scores" in run.labels:
        scores = run.labels["scores"]
        error = out[..., 0].float() - scores.nan_to_num()
        return LossSums(documents=(error.square() * scores.isfinite()).sum())
    if "label_sets" in run.labels:
        from torch.nn.functional import binary_cross_entropy_with_logits

        sets = run.labels["label_sets"]  # (B, E, V)
        targets = sets.clamp(min=0) * (1 - run.label_smoothing) + run.label_smoothing / 2
        losses = binary_cross_entropy_with_logits(out.float(), targets.float(), reduction="none")
        return LossSums(documents=(losses * (sets != IGNORE_INDEX)).sum())
    classes = run.labels["classes"].flatten()
    if "mix_weights" in run.labels:
        from torch.nn.functional import cross_entropy

        weights = run.labels["mix_weights"].flatten().nan_to_num(1.0)
        own, other = (
            cross_entropy(
                out.flatten(0, 1).float(),
                labels,
                ignore_index=IGNORE_INDEX,
                reduction="none",
                label_smoothing=run.label_smoothing,
            )
            for labels in (classes, run.labels["mixed_classes"].flatten())
        )
        return LossSums(documents=(weights * own + (1 - weights) * other).sum())
    return LossSums(documents=run.cross_entropy(out.flatten(0, 1), classes, run.label_smoothing))


def make_encoder(setup: ObjectiveSetup) -> RecordEncoder:
    """The encoder of one or two texts with a class or a score."""
    first = None if setup.payloads else "text"
    second = "second" if "second" in setup.fields else None
    labels: dict[str, Any] = {"score": "score"}
    if "score" not in setup.fields:
        labels = {"label": "label", "classes": setup.classes, "multi_label": setup.multi_label}
        labels["out_of_scope"] = setup.options.out_of_scope
    encode = EncodeClass(setup.tokenizer, first, second, **labels)
    payload = next(iter(setup.payloads.items()), None)
    return encode if payload is None else EncodePayloads(encode, {"first": payload})


IMAGE_COLUMNS = (
    *("img", "picture", "photo", "image_path", "image_file", "file_name", "filename", "path"),
    *("image.bytes", "img.bytes", "picture.bytes", "photo.bytes"),
)
AUDIO_COLUMNS = (
    *("sound", "wav", "clip", "recording", "audio_path", "audio_file", "audio_filepath", "wav_path"),
    *("audio.bytes", "sound.bytes"),
)
SOUND_FIELDS = (
    RecordField("audio", AUDIO_COLUMNS, "audio"),
    RecordField("start", ("start_time", "begin"), "number", optional=True, only_with="audio"),
    RecordField("end", ("end_time", "stop"), "number", optional=True, only_with="audio"),
)
"""A sound, and the part of its file in seconds."""
TEXT_COLUMNS = (
    *("sentence", "sentence1", "sentence_a", "premise", "first"),
    *("content", "review", "question", "text1", "a"),
    *("utterance", "tweet", "comment", "message", "post", "query", "document", "article", "body", "description"),
)

SPEC = ObjectiveSpec(
    name="classification",
    families=("encoder", "decoder"),
    head="classify",
    fields=(
        RecordField("text", TEXT_COLUMNS, optional=True),
        RecordField("image", IMAGE_COLUMNS, "image", optional=True),
        *(replace(one, optional=True) for one in SOUND_FIELDS),
        RecordField("second", ("sentence2", "sentence_b", "hypothesis", "question2", "text2", "b"), optional=True),
        RecordField(
            "label",
            (
                "class",
                "labels",
                "category",
                "sentiment",
                "topic",
                "intent",
                "gold_label",
                "entailment_judgment",
                "emotion",
                "target",
            ),
            "label",
            optional=True,
        ),
        RecordField("score", ("similarity", "relatedness_score", "rating", "value"), "number", optional=True),
    ),
    alternatives=(("text", "image", "audio"), ("label", "score")),
    class_field="label",
    pair_field="second",
    group_by="text",
    required_tokens=bert_tokens,
    too_long_policies=WHOLE,
    options=("label_smoothing", "out_of_scope", "mix_images"),
    make_encoder=make_encoder,
    make_examples=lambda setup, encoded: ClassificationObjective(
        encoded,
        setup.tokenizer,
        **setup.sequence_kwargs,
        num_classes=len(setup.classes),
        first_format=next(iter(setup.payloads.values()), None),
        mix="none" if setup.is_evaluation else setup.options.mix_images,
    ),
    reads_payloads=True,
    loss=class_loss,
    labels=labels_for_head,
)
