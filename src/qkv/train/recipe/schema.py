"""A recipe: everything that a training run depends on, in five sections of keys.

    run = "runs/translator"

    [data]        which files, how they are read, how long sequences are
    [tokenizer]   one to train, or an existing one
    [model]       a preset or a trained model, and changes to its config
    [objective]   what is learnt
    [train]       budget, optimizer, hardware, evaluation, checkpoints

`recipe_file.py` reads and writes it as TOML. Adding a field is a decision: `tests/test_frozen.py` holds the list.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from qkv.data.objectives.table import OBJECTIVES

Files = str | tuple[str, ...] | dict[str, str]
"""The name of a built-in dataset; a file, glob or folder, or several; or field → file for line-aligned files."""

if TYPE_CHECKING:
    ObjectiveKind = str
else:
    ObjectiveKind = Literal[tuple(OBJECTIVES)]  # the rows of the table of objectives


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """Where the examples come from, and how they become sequences."""

    train: Files = ""
    valid: Files = ""
    test: Files = ""
    valid_fraction: float = 0.05  # of `train`, for validation if `valid` is not set
    valid_split_by: Literal["content", "tail"] = "content"  # by a hash of each record, or the end of the text
    format: str = ""  # if the file's extension does not say it
    columns: dict[str, str] = field(default_factory=dict)  # field = column
    mix: dict[str, dict[str, Any]] = field(default_factory=dict)  # name = {train = files, weight = number}
    epoch_examples: int = 0  # examples in an epoch of an endless built-in dataset
    max_length: int = 512  # sequence length in tokens
    max_source_length: int = 0  # of source sequences; 0: in proportion to the data
    too_long: Literal["error", "skip", "truncate", "split", ""] = ""  # longer records; "": the objective's default
    layout: Literal["packed", "padded"] = "packed"
    max_invalid_fraction: float = 0.01  # of records; with more invalid ones, the run is refused
    cache: str = ""  # folder for tokenised data; "": in the user's cache


@dataclass(frozen=True, kw_only=True)
class TokenizerSection:
    """The tokenizer: trained on the data, or (`from`) that of another model or file."""

    from_: str = ""
    kind: Literal["byte-bpe", "bpe", "wordpiece", "unigram", "char", "byte", "word"] = "byte-bpe"
    vocab_size: int = 8000
    lowercase: bool = False
    min_frequency: int = 2


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """The model: a `preset`, a trained model (`from`), or neither: a current architecture of the given sizes.

    `overrides` has fields of stacks and head that differ: plain ones for every stack (`width`), or under `encoder`,
    `decoder` or `head`. In a recipe file they are keys of `[model]` itself.
    """

    preset: str = ""
    from_: str = ""
    family: Literal["encoder", "decoder", "seq2seq", ""] = ""  # "": what the objective needs
    overrides: dict[str, Any] = field(default_factory=dict)
    vectors: str = ""  # a file of word vectors (GloVe, word2vec) to initialise the embedding with
    share_embeddings: bool = True  # seq2seq with one tokenizer: one embedding for source and target
    tie_embeddings: bool = True  # lm, mlm: the output matrix is the embedding matrix
    freeze: tuple[str, ...] = ()  # patterns of parameters that are not trained, such as "encoder.*"
    lora_rank: int = 0  # above 0: train LoRA adapters of this rank instead of the matrices
    lora_alpha: float = 16.0
    lora_targets: tuple[str, ...] = ("*.attention.*", "*.cross.*")  # patterns of the modules that get adapters


@dataclass(frozen=True, kw_only=True)
class ObjectiveSection:
    """What is learnt from the data."""

    kind: ObjectiveKind = "seq2seq"
    label_smoothing: float = 0.0
    mask_prob: float = 0.0  # masked_lm, next_sentence, span_corruption, denoising; 0: the paper's
    mean_span_length: float = 3.0  # span_corruption, denoising: in tokens
    whole_word_masking: bool = False  # masked_lm, next_sentence
    permute_sentences: bool = False  # denoising
    random_offset: bool = False  # windows over long documents start at a random offset in each epoch
    add_bos_eos: bool = True  # causal_lm: begin and end tokens around each document
    label_subwords: Literal["first", "all"] = "first"  # tagging: which tokens of a word get its tag
    overlap: int = 128  # question_answering: tokens that two windows of a passage have in common
    temperature: float = 0.05  # contrastive


@dataclass(frozen=True, kw_only=True)
class TrainSection:
    """How it is learnt: budget, optimizer, hardware, evaluation, checkpoints."""

    # Budget: the run ends at whichever limit is reached first; 0 is no limit
    steps: int = 0
    minutes: float = 0.0
    epochs: int = 0

    # Batch
    batch_tokens: int = 16384  # tokens per optimizer step over all ranks, padding included
    micro_batch_tokens: int | Literal["auto"] = 0  # tokens per forward pass and rank; 0: all; "auto": what fits

    # Optimizer
    optimizer: Literal["adamw", "adam", "sgd", "lamb", "muon"] = "adamw"
    lr: float = 1e-3
    betas: tuple[float, ...] = (0.9, 0.98)
    eps: float = 1e-8
    momentum: float = 0.9  # sgd
    weight_decay: float = 0.01
    decay_parameters: Literal["matrices", "all"] = (
        "matrices"  # what gets weight decay: matrices (not embeddings), or everything
    )
    max_grad_norm: float = 1.0  # gradient clipping; 0: off

    # Learning rate schedule
    schedule: Literal["cosine", "linear", "constant", "inverse_sqrt", "wsd"] = "cosine"
    warmup: float = 0.05  # in steps; below 1, a fraction of the budget
    decay_fraction: float = 0.2  # wsd: the last part of the budget, in which the rate falls
    final_lr: float = 0.0  # the final rate, as a fraction of lr

    # Numerics
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    residual_dtype: Literal["auto", "float32", "bfloat16"] = (
        "auto"  # of the residual stream under bfloat16; auto: bfloat16 on a GPU
    )
    compile: Literal["auto", "yes", "no"] = "auto"
    gradient_checkpointing: bool = False  # recompute activations: less memory, a third more compute
    seed: int = 0
    device: str = "auto"
    num_threads: int = 0  # on a CPU; 0: torch's default

    # Parallelism
    num_workers: int = 0  # processes that prepare batches
    parallel: Literal["ddp", "fsdp"] = "ddp"  # with several processes: data parallel, or fully sharded
    tensor_parallel: int = 1  # ranks that each matrix is split over

    # Logging and evaluation
    log_every: int = 10
    eval_every: int = 0  # in steps; 0: ten times in the budget
    eval_examples: int = 500  # for the task's metrics; the loss is over all validation data
    metric: str = ""  # decides which weights are best; "": the task's main metric
    eval_beam: int = 1  # the number of beams in evaluation
    patience: int = 0  # evaluations without improvement before the run ends; 0: never
    trackers: tuple[str, ...] = ()  # tensorboard, wandb, trackio

    # Checkpoints and final weights
    save_every: int = 0  # in steps; 0: with each evaluation
    keep_checkpoints: int = 3  # the newest N; the best one is kept, too
    ema_decay: float = 0.0  # of an exponential moving average of the weights, such as 0.999; 0: off
    average_checkpoints: int = 0  # the final weights are the average of the last N checkpoints
    final: Literal["last", "best"] = "last"
    on_nonfinite: Literal["stop", "skip"] = "stop"  # if a loss or gradient is not finite


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole recipe. `run` is the folder of the run."""

    run: str = ""
    data: DataSection = field(default_factory=DataSection)
    tokenizer: TokenizerSection = field(default_factory=TokenizerSection)
    model: ModelSection = field(default_factory=ModelSection)
    objective: ObjectiveSection = field(default_factory=ObjectiveSection)
    train: TrainSection = field(default_factory=TrainSection)
