"""A starter: what `qkv init` needs to know about a task to write its recipe; and the words for tasks."""

from collections.abc import Iterable
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
    example_file: str  # the file name in the recipe if the user gives no file
    max_length: int  # tokens of a sequence
    objective: str = ""  # empty: the objective of the task
    length_comment: str = "tokens of a sequence"
    pretrained: str = ""  # a checkpoint that is usually fine-tuned for the task
    preset: str = ""  # a published architecture that is usually trained from scratch
    max_source_length: int = 0  # tokens of a source sequence; 0: derived from the data
    too_long: str = ""
    exportable_preset: str = ""  # a published architecture that other libraries can load; empty: the default is one
    objective_lines: tuple[RecipeLine, ...] = ()  # keys of [objective]
    is_small: bool = False  # labelled data is scarce: a shallow model with whole words as tokens suits it
    hashes_words: bool = False  # a new model reads words by their hashed features, unless it must be exportable
    may_have_characters: bool = False  # if there are few short texts, tokens are characters
    shortens: bool = False  # the target is shorter than the source
    is_image_to_text: bool = False  # an encoder reads images, and a decoder writes a text
    draws: bool = False  # an encoder reads a text, and a decoder writes the codes of a picture
    reads_sounds: bool = False  # an encoder reads sounds
    speaks: bool = False  # an encoder reads a text, and computes the spectrogram of its sound
    reads_question: bool = False  # the encoder reads a text, too
    min_epochs: float = 0.0  # the epochs that fine-tuning needs at least, for a useful result
    metric: str = ""  # the metric that selects the best weights; empty: the default of `train.metric`


PRETRAINING_STARTERS: dict[str, Starter] = {
    "spans": Starter(
        "An encoder-decoder that generates spans removed from a text, as T5.",
        "corpus.txt",
        512,
        "span_corruption",
        preset="t5-small",
        exportable_preset="t5-small",
        objective_lines=(
            ("mask_prob", 0.15, "fraction of tokens to remove"),
            ("mean_span_length", 3.0, "tokens of a removed span, on average"),
        ),
    ),
    "denoise": Starter(
        "An encoder-decoder that restores corrupted texts, as BART.",
        "corpus.txt",
        512,
        "denoising",
        preset="bart-base",
        exportable_preset="bart-base",
        objective_lines=(
            ("mask_prob", 0.3, "fraction of tokens to remove"),
            ("permute_sentences", True, "shuffle the sentences, too"),
        ),
    ),
}
"""Objectives that only prepare a model for a task."""

COMMON_WORDS = {
    "translate": "mt translation seq2seq pairs",
    "summarise": "summarize summary summarization summarisation title",
    "language": "lm gpt chat assistant instruct generate causal stories",
    "classify": "classification sentiment intent topic spam label category regression",
    "tag": "ner pos entities entity chunking tagging tokens",
    "answer": "qa squad question extractive",
    "embed": "embedding embeddings similarity retrieval search sts",
    "pretrain": "mlm bert mask masked",
    "spans": "t5",
    "denoise": "bart",
    "describe": "caption captions captioning",
    "ask": "vqa",
    "draw": "text-to-image",
    "transcribe": "asr speech dictation transcription stt",
    "speak": "tts",
}
"""Task of `qkv init` → the words that people use for it."""


def find_task_name(word: str, starters: Iterable[str]) -> str:
    """The name of the task that a word means: the word itself, unless it is another word for one of `starters`.

    >>> find_task_name("ner", ["tag", "classify"]), find_task_name("poem", ["tag"]), find_task_name("asr", ["tag"])
    ('tag', 'poem', 'asr')
    """
    meant = (task for task, words in COMMON_WORDS.items() if task in starters and word.lower() in words.split())
    return word if word in starters else next(meant, word)
