"""The keys of a recipe. A recipe has five sections and determines a training run.

    run = "runs/translator"

    [data]        which files, how they are read, how long sequences are
    [tokenizer]   one to train, or an existing one
    [model]       a preset or a trained model, and changes to its config
    [objective]   the training objective
    [train]       budget, optimizer, hardware, evaluation, checkpoints

`recipe_file.py` reads and writes recipes as TOML. `tests/test_frozen.py` has a list of all keys, so that none is added
or removed by accident.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from qkv.blocks.config import Recurrence
from qkv.data.objectives.table import OBJECTIVES

Files = str | tuple[str, ...] | dict[str, str]
"""A built-in dataset by name; a file, glob or folder; a list of these; or for line-aligned files, field → file."""

RECURRENT_FAMILIES = tuple(kind for kind in get_args(Recurrence) if kind != "none")
"""Values of `model.family` that replace the Transformer blocks of the family that the objective needs."""

if TYPE_CHECKING:
    ObjectiveKind = str
else:
    ObjectiveKind = Literal[tuple(OBJECTIVES)]  # the rows of the table of objectives


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """The source of the examples, and how they become sequences."""

    train: Files = ""
    valid: Files = ""
    test: Files = ""
    valid_fraction: float = 0.05  # if `valid` is not set, this fraction of `train` is the validation data
    # "content" selects records by the hash of their content; "tail" takes the last part of the text
    valid_split_by: Literal["content", "tail"] = "content"
    format: str = ""  # the file format; "" detects it from the extension
    columns: dict[str, str] = field(default_factory=dict)  # which column has which field: field = column
    records_key: str = ""  # json: where in the document the list of records is, such as "data" or "splits.train"
    max_score: float = 1.0  # contrastive: the largest score in the data; scores are divided by it
    mix: dict[str, dict[str, Any]] = field(default_factory=dict)  # name = {train = files, weight = number}
    epoch_examples: int = 0  # the number of examples in an epoch, for an endless built-in dataset
    max_length: int = 512  # the maximum sequence length in tokens
    max_source_length: int = 0  # the same for source sequences; 0 derives it from the lengths in the data
    # what to do with longer records; "" is the objective's default
    too_long: Literal["error", "skip", "truncate", "split", ""] = ""
    layout: Literal["packed", "padded"] = "packed"
    max_invalid_fraction: float = 0.01  # a larger fraction of invalid records is an error
    cache: str = ""  # the folder for tokenised data; "" is the user's cache folder


@dataclass(frozen=True, kw_only=True)
class TokenizerSection:
    """The tokenizer. It is trained on the data, or loaded from another model or file (`from`)."""

    from_: str = ""
    kind: Literal["byte-bpe", "bpe", "wordpiece", "unigram", "char", "byte", "word"] = "byte-bpe"
    vocab_size: int = 8000
    lowercase: bool = False
    min_frequency: int = 2


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """The model: a `preset`, or a trained model (`from`). With neither, it has a modern architecture.

    `overrides` changes fields of the model's config. A field such as `width` applies to every stack; fields under
    `encoder`, `decoder` or `head` apply to that part. In a recipe file the overrides are keys of `[model]` itself.
    """

    preset: str = ""
    from_: str = ""
    # "" selects the family that the objective needs; "rnn", "gru" and "lstm" do, too, with recurrent layers
    family: Literal["encoder", "decoder", "seq2seq", "rnn", "gru", "lstm", ""] = ""
    overrides: dict[str, Any] = field(default_factory=dict)
    vectors: str = ""  # a file of word vectors (GloVe, word2vec) that initialise the embedding
    share_embeddings: bool = True  # seq2seq: one embedding for source and target
    tie_embeddings: bool = True  # causal_lm, masked_lm: the output matrix is the embedding matrix
    freeze: tuple[str, ...] = ()  # patterns of parameters that are not trained, such as "encoder.*"
    lora_rank: int = 0  # if above 0, train LoRA adapters of this rank (and a new head); freeze the rest
    lora_alpha: float = 16.0
    lora_targets: tuple[str, ...] = ("*.attention.*", "*.cross.*")  # patterns of the modules that get adapters

    @property
    def recurrence(self) -> Recurrence:
        """The kind of recurrent layers that `family` asks for, or "none"."""
        return self.family if self.family in ("rnn", "gru", "lstm") else "none"


@dataclass(frozen=True, kw_only=True)
class ObjectiveSection:
    """The training objective."""

    kind: ObjectiveKind = "seq2seq"
    label_smoothing: float = 0.0
    mask_prob: float = 0.0  # masked_lm, next_sentence, span_corruption, denoising; 0 is the objective's default
    mean_span_length: float = 3.0  # span_corruption, denoising; in tokens
    whole_word_masking: bool = False  # masked_lm, next_sentence
    permute_sentences: bool = False  # denoising
    random_offset: bool = False  # in each epoch, split long documents at another random offset
    add_bos_eos: bool = True  # causal_lm: add BOS and EOS tokens around each document
    label_subwords: Literal["first", "all"] = "first"  # tagging: which tokens of a word get its tag
    out_of_scope: str = ""  # classification: the label of texts that belong to no class
    overlap: int = 128  # question_answering: tokens that two windows of a passage share
    temperature: float = 0.05  # contrastive


@dataclass(frozen=True, kw_only=True)
class TrainSection:
    """The training: budget, optimizer, hardware, evaluation, checkpoints."""

    # Budget: the run ends at the first limit that it reaches; 0 is no limit
    steps: int = 0
    minutes: float = 0.0
    epochs: int = 0

    # Batch
    batch_tokens: int = 16384  # tokens in each optimizer step, of all ranks, with padding
    # tokens in each forward pass of a rank; "auto": what fits into free memory; 0: no split
    micro_batch_tokens: int | Literal["auto"] = "auto"

    # Optimizer
    optimizer: Literal["adamw", "adam", "sgd", "lamb", "muon"] = "adamw"
    lr: float = 1e-3
    head_lr: float = 1.0
    betas: tuple[float, ...] = (0.9, 0.98)
    eps: float = 1e-8
    momentum: float = 0.9  # sgd
    weight_decay: float = 0.01
    # the parameters with weight decay; "matrices" excludes embeddings
    decay_parameters: Literal["matrices", "all"] = "matrices"
    max_grad_norm: float = 1.0  # gradient clipping; 0 disables it

    # Learning rate schedule
    schedule: Literal["cosine", "linear", "constant", "inverse_sqrt", "wsd"] = "cosine"
    warmup: float = 0.05  # in steps or, if below 1, as a fraction of the budget
    decay_fraction: float = 0.2  # wsd: the last fraction of the budget, in which the learning rate falls
    final_lr: float = 0.0  # the learning rate at the end, as a fraction of lr

    # Numerics
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # the residual stream's dtype if precision is bfloat16; "auto" is bfloat16 on a GPU
    residual_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: Literal["auto", "yes", "no"] = "auto"
    gradient_checkpointing: bool = False  # recompute activations: less memory, but a third more computation
    seed: int = 0
    device: str = "auto"
    num_threads: int = 0  # CPU threads; 0 is torch's default

    # Parallelism
    num_workers: int = 0  # processes that prepare batches
    parallel: Literal["ddp", "fsdp"] = "ddp"  # with several processes: data parallel or fully sharded
    tensor_parallel: int = 1  # the number of ranks over which each matrix is split

    # Logging and evaluation
    log_every: int = 10
    eval_every: int = 0  # in steps; 0 evaluates ten times in the run
    eval_examples: int = 500  # the number of examples for the task's metrics; the loss uses all validation data
    max_eval_fraction: float = 0.1  # of the time; evaluations use a sample if all data takes longer; 1: no limit
    metric: str = ""  # selects the best weights; "" is the task's main metric, or the loss if its sample is small
    eval_beam: int = 1  # the beam size in evaluations
    patience: int = 0  # the run ends after this number of evaluations without improvement; 0 disables it
    trackers: tuple[str, ...] = ()  # any of tensorboard, wandb, trackio

    # Checkpoints and final weights
    save_every: int = 0  # in steps; 0 saves with each evaluation
    keep_checkpoints: int = 3  # the number of newest checkpoints to keep; the best one is kept, too
    ema_decay: float = 0.0  # the decay of an exponential moving average (EMA) of the weights, such as 0.999; 0: off
    average_checkpoints: int = 0  # average the last N checkpoints at the end; 0 disables it
    final: Literal["last", "best"] = "last"
    on_nonfinite: Literal["stop", "skip"] = "stop"  # what to do if a loss or gradient is not finite


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole recipe. `run` is the run folder."""

    run: str = ""
    data: DataSection = field(default_factory=DataSection)
    tokenizer: TokenizerSection = field(default_factory=TokenizerSection)
    model: ModelSection = field(default_factory=ModelSection)
    objective: ObjectiveSection = field(default_factory=ObjectiveSection)
    train: TrainSection = field(default_factory=TrainSection)
