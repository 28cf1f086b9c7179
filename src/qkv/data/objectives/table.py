"""The table of objectives. Each row describes one objective to the rest of the toolkit.

The table is used to check recipes, to recognise columns, and to prepare the data, tokenizer, model and evaluation. To
add an objective, write its class in a file of this folder and add a row here; CONTRIBUTING.md shows how.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from qkv.data.cache.examples import EncodedExamples
from qkv.data.cache.writer import RecordEncoder
from qkv.data.encode.chat import EncodeChat
from qkv.data.encode.encoders import EncodeAnswer, EncodeClass, EncodePair, EncodeTags, EncodeText
from qkv.data.objectives.base import Objective, TooLongPolicy
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.objectives.classification import ClassificationObjective
from qkv.data.objectives.contrastive import ContrastiveObjective
from qkv.data.objectives.denoising import DenoisingObjective
from qkv.data.objectives.masked_lm import MaskedLMObjective
from qkv.data.objectives.next_sentence import NextSentenceObjective
from qkv.data.objectives.question_answering import QuestionAnsweringObjective
from qkv.data.objectives.seq2seq import Seq2SeqObjective
from qkv.data.objectives.span_corruption import SpanCorruptionObjective
from qkv.data.objectives.tagging import TaggingObjective
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.text_lists import ListMeaning
from qkv.text import Tokenizer


@dataclass(frozen=True)
class RecordField:
    """A field that an objective reads, and other column names that are recognised as this field."""

    name: str
    column_names: tuple[str, ...] = ()
    optional: bool = False
    only_with: str = ""  # the field is read only if the records have this other field, too
    is_sparse: bool = False  # some of the records may have it, and others not
    list_meaning: ListMeaning | None = None  # what a list of texts in this field is; None: it is no text


@dataclass(frozen=True)
class RequiredTokens:
    """The special tokens of a tokenizer that is trained for an objective, and its template."""

    special_tokens: tuple[str, ...]
    template: str = "none"
    num_sentinels: int = 0


@dataclass(frozen=True)
class ObjectiveSetup:
    """The settings from which the encoder and the examples of an objective are made."""

    options: Any  # the recipe's [objective] section
    tokenizer: Tokenizer
    fields: frozenset[str]  # the fields of the records
    classes: tuple[str, ...] = ()
    multi_label: bool = False  # classification: a record has a list of labels
    max_length: int = 512  # tokens of a sequence; for encoder-decoder models, of the target
    max_source_length: int | None = None  # None: the objective chooses a length
    too_long: TooLongPolicy = "error"
    decoder_start_token_id: int | None = None  # None: chosen by the tokenizer
    max_score: float = 1.0  # scores are divided by this number

    @property
    def sequence_kwargs(self) -> dict[str, Any]:
        """Keyword arguments for objectives with one sequence per example."""
        return {"max_length": self.max_length, "too_long": self.too_long}

    @property
    def window_kwargs(self) -> dict[str, Any]:
        """Keyword arguments for objectives that cut documents into windows."""
        return {**self.sequence_kwargs, "random_offset": self.options.random_offset}


@dataclass(frozen=True)
class ObjectiveSpec:
    """A row of the table."""

    families: tuple[str, ...]  # the model families that support the objective; the first is the default
    head: str  # the kind of the model's head
    fields: tuple[RecordField, ...]
    required_tokens: Callable[[Any], RequiredTokens]  # [objective] section → special tokens of a new tokenizer
    too_long_policies: tuple[TooLongPolicy, ...]  # the allowed values of data.too_long; the first is the default
    options: tuple[str, ...]  # the keys of [objective] that apply to this objective
    make_encoder: Callable[[ObjectiveSetup], RecordEncoder]  # records → token ids
    make_examples: Callable[[ObjectiveSetup, EncodedExamples], Objective]  # token ids → training examples
    task: str  # what a trained model does: a key of `qkv.tasks.evaluate.TASKS`
    # Case of the task ("label", "score", …) → names of the metrics, the main one first. If empty, only the loss.
    metrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    alternatives: tuple[str, ...] = ()  # fields of which a record needs exactly one; the first is preferred
    reads_documents: bool = False  # whether a text file is read as one document; otherwise each line is a record
    aligned_fields: tuple[str, ...] = ()  # the fields of two line-aligned files, in the order of the files
    group_by: str = ""  # records with equal values of this field stay on the same side of a validation split
    class_field: str = ""  # the field whose values are the classes of the head
    pair_field: str = ""  # if records have this field, a sequence holds two texts and needs token types
    next_sentence_classes: int = 0  # number of classes of the extra next-sentence classifier (BERT)

    @property
    def required_fields(self) -> list[str]:
        """The fields that every record needs, including the preferred alternative."""
        always = [one.name for one in self.fields if not one.optional and not one.only_with]
        return [*always, *self.alternatives[:1]]

    @property
    def sparse_names(self) -> list[str]:
        """The names of columns that only some of the records may have."""
        return [name for one in self.fields if one.is_sparse for name in (one.name, *one.column_names)]

    def describe_missing(self, fields: Collection[str]) -> list[str]:
        """The required fields that are not in `fields`; alternatives are listed together, as in "label or score"."""
        needed = [one.name for one in self.fields if not one.optional and one.only_with in ("", *fields)]
        missing = [name for name in needed if name not in fields]
        if self.alternatives and not set(self.alternatives) & set(fields):
            missing.append(" or ".join(self.alternatives))
        return missing


def bert_tokens(options: Any) -> RequiredTokens:
    """The special tokens and the template of BERT."""
    return RequiredTokens(("pad", "cls", "sep", "mask"), "bert")


def causal_lm_tokens(options: Any) -> RequiredTokens:
    """BOS and EOS. With `add_bos_eos = false` neither, because the model would never learn to generate them."""
    return RequiredTokens(("pad", "bos", "eos"), "bos") if options.add_bos_eos else RequiredTokens(("pad",))


def encode_text(setup: ObjectiveSetup) -> RecordEncoder:
    """The encoder of documents, with word indices for whole-word masking and sentence starts for permutation."""
    options = setup.options
    return EncodeText(setup.tokenizer, words=options.whole_word_masking, sentences=options.permute_sentences)


def encode_causal_lm(setup: ObjectiveSetup) -> RecordEncoder:
    """The encoder of chats if the records have messages, else of documents."""
    return EncodeChat(setup.tokenizer) if "messages" in setup.fields else encode_text(setup)


def encode_classification(setup: ObjectiveSetup) -> RecordEncoder:
    """The encoder of one or two texts with a class or a score."""
    second = "second" if "second" in setup.fields else None
    if "score" in setup.fields:
        return EncodeClass(setup.tokenizer, "text", second, score="score")
    labels: dict[str, Any] = {"classes": setup.classes, "multi_label": setup.multi_label}
    out_of_scope = setup.options.out_of_scope
    return EncodeClass(setup.tokenizer, "text", second, label="label", out_of_scope=out_of_scope, **labels)


def encode_contrastive(setup: ObjectiveSetup) -> RecordEncoder:
    """The encoder of pairs of texts, with a score if the records have one."""
    score = "score" if "score" in setup.fields else None
    return EncodeClass(setup.tokenizer, "first", "second", score=score, max_score=setup.max_score)


def causal_lm_examples(setup: ObjectiveSetup, encoded: EncodedExamples) -> Objective:
    """Documents or chats. In a chat only the answers are predicted, and the template already adds special tokens."""
    if "messages" in setup.fields:
        return CausalLMObjective(
            encoded, setup.tokenizer, **setup.window_kwargs, loss_mask_field="answer", add_bos_eos=False
        )
    return CausalLMObjective(encoded, setup.tokenizer, **setup.window_kwargs, add_bos_eos=setup.options.add_bos_eos)


def masking_options(setup: ObjectiveSetup) -> dict[str, Any]:
    """Keyword arguments for masking. The default `mask_prob` is BERT's 15 %."""
    options = setup.options
    return {"mask_prob": options.mask_prob or 0.15, "whole_word_masking": options.whole_word_masking}


def span_corruption_examples(setup: ObjectiveSetup, encoded: EncodedExamples) -> Objective:
    """Windows for span corruption.

    Without `max_source_length`, `max_length` is used as the source length, and the target length follows from it (T5).
    """
    source = setup.max_source_length
    lengths = {"max_length": setup.max_length if source else None, "max_source_length": source or setup.max_length}
    return SpanCorruptionObjective(
        encoded,
        setup.tokenizer,
        **{**setup.window_kwargs, **lengths},
        mask_prob=setup.options.mask_prob or 0.15,
        mean_span_length=setup.options.mean_span_length,
        decoder_start_token_id=setup.decoder_start_token_id,
    )


def denoising_examples(setup: ObjectiveSetup, encoded: EncodedExamples) -> Objective:
    """Windows for denoising. The default `mask_prob` is BART's 30 %."""
    options = setup.options
    return DenoisingObjective(
        encoded,
        setup.tokenizer,
        **setup.window_kwargs,
        max_source_length=setup.max_source_length,
        mask_prob=options.mask_prob or 0.3,
        mean_span_length=options.mean_span_length,
        permute_sentences=options.permute_sentences,
        source_template=SpecialTokenTemplate.for_source(setup.tokenizer),
        decoder_start_token_id=setup.decoder_start_token_id,
    )


def seq2seq_examples(setup: ObjectiveSetup, encoded: EncodedExamples) -> Objective:
    """Pairs of source and target. Sources get the special tokens that the tokenizer adds at inference."""
    return Seq2SeqObjective(
        encoded,
        setup.tokenizer.target,
        **setup.sequence_kwargs,
        max_source_length=setup.max_source_length,
        source_template=SpecialTokenTemplate.for_source(setup.tokenizer),
        decoder_start_token_id=setup.decoder_start_token_id,
    )


TEXT_FIELD = RecordField("text", ("content", "document", "body", "article", "story"))
ANY_LENGTH: tuple[TooLongPolicy, ...] = ("split", "skip", "truncate", "error")
WHOLE: tuple[TooLongPolicy, ...] = ("truncate", "skip", "error")
MASKED_LM_METRICS = {"": ("masked_accuracy", "loss", "perplexity")}

OBJECTIVES: dict[str, ObjectiveSpec] = {
    # A target for a source: translation, summaries, anything from text to text.
    "seq2seq": ObjectiveSpec(
        families=("seq2seq",),
        head="lm",
        fields=(
            RecordField(
                "source",
                ("src", "input", "document", "article", "written", "words", "question", "prompt", "text"),
                list_meaning="sentences",
            ),
            RecordField(
                "target",
                ("tgt", "trg", "output", "summary", "iso", "digits", "answer", "completion", "translation"),
                list_meaning="alternatives",
            ),
        ),
        aligned_fields=("source", "target"),
        group_by="source",
        required_tokens=lambda options: RequiredTokens(("pad", "bos", "eos"), "eos"),
        too_long_policies=("skip", "truncate", "error"),
        options=("label_smoothing",),
        make_encoder=lambda setup: EncodePair(setup.tokenizer.target, source_tokenizer=setup.tokenizer),
        make_examples=seq2seq_examples,
        task="text_to_text",
        metrics={
            "each": (
                *("exact_match", "bleu", "bleu_lowercase", "tokenised_bleu", "sacrebleu", "chrf", "ter"),
                *("rouge1", "rouge2", "rougeL"),
            ),
            "best": ("exact_match_any", "word_error_rate"),
        },
    ),
    # The next token of documents; of chats, the answers.
    "causal_lm": ObjectiveSpec(
        families=("decoder",),
        head="lm",
        fields=(
            RecordField("text", TEXT_FIELD.column_names, optional=True),
            RecordField("messages", ("conversation", "conversations", "turns", "chat"), optional=True),
            # A chat of one question and its answer; the records that are encoded have `messages`.
            RecordField("instruction", ("prompt", "question"), optional=True),
            RecordField("input", ("context",), optional=True, only_with="instruction", is_sparse=True),
            RecordField("response", ("output", "completion", "answer"), only_with="instruction"),
        ),
        alternatives=("text", "messages", "instruction"),
        reads_documents=True,
        required_tokens=causal_lm_tokens,
        too_long_policies=ANY_LENGTH,
        options=("random_offset", "add_bos_eos", "label_smoothing"),
        make_encoder=encode_causal_lm,
        make_examples=causal_lm_examples,
        task="language",
        metrics={"": ("loss", "perplexity", "bits_per_character", "bits_per_byte")},
    ),
    # BERT's masked tokens.
    "masked_lm": ObjectiveSpec(
        families=("encoder",),
        head="mlm",
        fields=(TEXT_FIELD,),
        reads_documents=True,
        required_tokens=bert_tokens,
        too_long_policies=ANY_LENGTH,
        options=("mask_prob", "whole_word_masking", "random_offset", "label_smoothing"),
        make_encoder=encode_text,
        make_examples=lambda setup, encoded: MaskedLMObjective(
            encoded, setup.tokenizer, **setup.window_kwargs, **masking_options(setup)
        ),
        task="fill",
        metrics=MASKED_LM_METRICS,
    ),
    # BERT's masked tokens, and whether two segments follow each other.
    "next_sentence": ObjectiveSpec(
        families=("encoder",),
        head="mlm",
        next_sentence_classes=2,
        fields=(TEXT_FIELD,),
        pair_field="text",
        reads_documents=True,
        required_tokens=bert_tokens,
        too_long_policies=("split",),
        options=("mask_prob", "whole_word_masking", "label_smoothing"),
        make_encoder=lambda setup: EncodeText(setup.tokenizer, words=setup.options.whole_word_masking, sentences=True),
        make_examples=lambda setup, encoded: NextSentenceObjective(
            encoded, setup.tokenizer, max_length=setup.max_length, **masking_options(setup)
        ),
        task="fill",
        metrics=MASKED_LM_METRICS,
    ),
    # T5's span corruption.
    "span_corruption": ObjectiveSpec(
        families=("seq2seq",),
        head="lm",
        fields=(TEXT_FIELD,),
        reads_documents=True,
        required_tokens=lambda options: RequiredTokens(("pad", "eos"), "eos", num_sentinels=100),
        too_long_policies=ANY_LENGTH,
        options=("mask_prob", "mean_span_length", "random_offset", "label_smoothing"),
        make_encoder=encode_text,
        make_examples=span_corruption_examples,
        task="text_to_text",
    ),
    # BART's text infilling and sentence permutation.
    "denoising": ObjectiveSpec(
        families=("seq2seq",),
        head="lm",
        fields=(TEXT_FIELD,),
        reads_documents=True,
        required_tokens=lambda options: RequiredTokens(("pad", "bos", "eos", "mask"), "eos"),
        too_long_policies=ANY_LENGTH,
        options=("mask_prob", "mean_span_length", "permute_sentences", "random_offset", "label_smoothing"),
        make_encoder=encode_text,
        make_examples=denoising_examples,
        task="text_to_text",
    ),
    # The class, or a score, of a text or of a pair of texts.
    "classification": ObjectiveSpec(
        families=("encoder", "decoder"),
        head="classify",
        fields=(
            RecordField(
                "text",
                (
                    "sentence",
                    "sentence1",
                    "sentence_a",
                    "premise",
                    "first",
                    "content",
                    "review",
                    "question",
                    "text1",
                    "a",
                ),
            ),
            RecordField("second", ("sentence2", "sentence_b", "hypothesis", "question2", "text2", "b"), optional=True),
            RecordField(
                "label",
                ("class", "labels", "category", "sentiment", "topic", "intent", "gold_label", "entailment_judgment"),
                optional=True,
            ),
            RecordField("score", ("similarity", "relatedness_score", "rating", "value"), optional=True),
        ),
        alternatives=("label", "score"),
        class_field="label",
        pair_field="second",
        group_by="text",
        required_tokens=bert_tokens,
        too_long_policies=WHOLE,
        options=("label_smoothing", "out_of_scope"),
        make_encoder=encode_classification,
        make_examples=lambda setup, encoded: ClassificationObjective(
            encoded, setup.tokenizer, **setup.sequence_kwargs, num_classes=len(setup.classes)
        ),
        task="classify",
        metrics={
            "label": ("accuracy", "macro_f1", "matthews"),
            "scope": ("in_scope_accuracy", "out_of_scope_recall"),
            "labels": ("micro_f1", "macro_f1", "accuracy"),
            "score": ("spearman", "pearson"),
        },
    ),
    # The tag of each word.
    "tagging": ObjectiveSpec(
        families=("encoder", "decoder"),
        head="tag",
        fields=(
            RecordField("tokens", ("words", "form", "forms")),
            RecordField("tags", ("ner_tags", "pos_tags", "labels", "upos", "ner", "pos")),
        ),
        class_field="tags",
        required_tokens=bert_tokens,
        too_long_policies=ANY_LENGTH,
        options=("label_subwords", "label_smoothing"),
        make_encoder=lambda setup: EncodeTags(
            setup.tokenizer, classes=setup.classes, label_subwords=setup.options.label_subwords
        ),
        make_examples=lambda setup, encoded: TaggingObjective(encoded, setup.tokenizer, **setup.sequence_kwargs),
        task="tag",
        metrics={"entities": ("f1", "precision", "recall", "strict_f1", "accuracy"), "words": ("accuracy", "macro_f1")},
    ),
    # The span of a passage that answers a question.
    "question_answering": ObjectiveSpec(
        families=("encoder",),
        head="span",
        fields=(
            RecordField("question", ("query",)),
            RecordField("context", ("passage", "document")),
            RecordField("answers", ("answers.text",)),
            RecordField("starts", ("answers.answer_start", "answer_start", "answer_starts")),
        ),
        pair_field="context",
        group_by="context",
        required_tokens=bert_tokens,
        too_long_policies=WHOLE,
        options=("overlap",),
        make_encoder=lambda setup: EncodeAnswer(setup.tokenizer),
        make_examples=lambda setup, encoded: QuestionAnsweringObjective(
            encoded, setup.tokenizer, **setup.sequence_kwargs, overlap=setup.options.overlap
        ),
        task="answer",
        metrics={
            "all": ("f1", "exact_match"),
            "no_answer": ("has_answer_f1", "has_answer_exact_match", "no_answer_accuracy"),
        },
    ),
    # Embeddings: texts that belong together come close.
    "contrastive": ObjectiveSpec(
        families=("encoder",),
        head="embed",
        fields=(
            RecordField("first", ("anchor", "query", "question", "sentence1", "sentence_a", "text1", "a")),
            RecordField(
                "second", ("positive", "document", "passage", "answer", "sentence2", "sentence_b", "text2", "b")
            ),
            RecordField("score", ("similarity", "relatedness_score", "label"), optional=True),
        ),
        aligned_fields=("first", "second"),
        group_by="first",
        required_tokens=bert_tokens,
        too_long_policies=WHOLE,
        options=("temperature",),
        make_encoder=encode_contrastive,
        make_examples=lambda setup, encoded: ContrastiveObjective(
            encoded, setup.tokenizer, **setup.sequence_kwargs, max_source_length=setup.max_source_length
        ),
        task="embed",
        metrics={"pair": ("retrieval_accuracy", "mean_reciprocal_rank"), "score": ("spearman", "pearson")},
    ),
}


def applicable_objectives(option: str) -> list[str]:
    """The objectives that read a key of the recipe's [objective] section.

    >>> applicable_objectives("mean_span_length")
    ['span_corruption', 'denoising']
    """
    return [name for name, spec in OBJECTIVES.items() if option in spec.options]
