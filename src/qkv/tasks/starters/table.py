"""The tasks that `qkv init` can write a recipe for."""

from dataclasses import dataclass
from typing import Any

RecipeLine = tuple[str, Any, str]
"""A key, its value and a comment. A key that starts with # is commented out."""

BERT_CHECKPOINT = "google-bert/bert-base-uncased"
SMOOTHING: RecipeLine = ("label_smoothing", 0.1, "probability spread over all other tokens or classes")


@dataclass(frozen=True)
class Starter:
    """A task that `qkv init` can write a recipe for."""

    description: str
    objective_kind: str
    example_file: str  # the file name in the recipe if the user gives no file
    max_length: int  # tokens of a sequence
    pretrained: str = ""  # a checkpoint that is usually fine-tuned for the task
    preset: str = ""  # a published architecture that is usually trained from scratch
    max_source_length: int = 0  # tokens of a source sequence; 0: derived from the data
    too_long: str = ""
    exportable_preset: str = ""  # a published architecture that other libraries can load; empty: the default can be
    objective_lines: tuple[RecipeLine, ...] = ()  # keys of [objective]
    metric: str = ""  # the metric that selects the best weights; empty: as `train.metric`


STARTERS: dict[str, Starter] = {
    "translate": Starter(
        "From one text to another: translation, spelling, anything with a source and a target.",
        "seq2seq",
        "train.tsv",
        256,
        preset="transformer-base",
        exportable_preset="marian",
        objective_lines=(SMOOTHING,),
    ),
    "summarise": Starter(
        "From a long text to a short one.",
        "seq2seq",
        "train.jsonl",
        256,
        preset="transformer-base",
        exportable_preset="marian",
        max_source_length=1024,
        too_long="truncate",
        objective_lines=(SMOOTHING,),
        metric="rougeL",
    ),
    "language": Starter("A language model: it continues a text.", "causal_lm", "book.txt", 512, preset="gpt2"),
    "classify": Starter(
        "The class of a text, or of two texts.",
        "classification",
        "train.csv",
        256,
        pretrained=BERT_CHECKPOINT,
        exportable_preset="bert-base",
        objective_lines=(SMOOTHING,),
    ),
    "tag": Starter(
        "A tag for each word: names, parts of speech.",
        "tagging",
        "train.conll",
        256,
        pretrained="google-bert/bert-base-cased",
        exportable_preset="bert-base",
    ),
    "answer": Starter(
        "The answer to a question, found in a passage.",
        "question_answering",
        "train.json",
        384,
        pretrained=BERT_CHECKPOINT,
        exportable_preset="bert-base",
        objective_lines=(("overlap", 128, "tokens that consecutive windows of a long passage share"),),
    ),
    "embed": Starter(
        "Embeddings: texts that belong together come close.",
        "contrastive",
        "train.tsv",
        256,
        pretrained="sentence-transformers/all-MiniLM-L6-v2",
        exportable_preset="bert-base",
        objective_lines=(("temperature", 0.05, "lower values separate similar texts more sharply"),),
    ),
    "pretrain": Starter(
        "An encoder that predicts masked words, as BERT; a start for classify, tag and others.",
        "masked_lm",
        "corpus.txt",
        512,
        preset="bert-base",
        exportable_preset="bert-base",
        objective_lines=(
            ("mask_prob", 0.15, "fraction of tokens to mask"),
            ("whole_word_masking", False, "true: mask whole words, not single subwords"),
        ),
    ),
    "spans": Starter(
        "An encoder-decoder that generates spans removed from a text, as T5.",
        "span_corruption",
        "corpus.txt",
        512,
        preset="t5-small",
        exportable_preset="t5-small",
        objective_lines=(
            ("mask_prob", 0.15, "fraction of tokens to remove"),
            ("mean_span_length", 3.0, "tokens of a removed span, on average"),
        ),
    ),
    "denoise": Starter(
        "An encoder-decoder that restores corrupted texts, as BART.",
        "denoising",
        "corpus.txt",
        512,
        preset="bart-base",
        exportable_preset="bart-base",
        objective_lines=(
            ("mask_prob", 0.3, "fraction of tokens to remove"),
            ("permute_sentences", True, "shuffle the sentences, too"),
        ),
    ),
}
