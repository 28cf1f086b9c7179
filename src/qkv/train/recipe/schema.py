"""A recipe: everything that a training run depends on, in five sections of named choices.

    run = "runs/translator"

    [data]        which files, how they are read, how long rows are
    [tokenizer]   one to train, or one to take
    [model]       a preset or a checkpoint, and what is changed of it
    [objective]   what is learnt from a row
    [train]       how long, how fast, how often

`recipe_file.py` reads and writes it as TOML. Adding a field is a decision: `tests/test_frozen.py` holds the list.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from qkv.data.objectives.table import OBJECTIVES

Files = str | tuple[str, ...] | dict[str, str]
"""A built-in dataset's name, a file, glob or folder, several of them, or field → file for files that go in step."""

if TYPE_CHECKING:
    ObjectiveKind = str
else:
    ObjectiveKind = Literal[tuple(OBJECTIVES)]  # the rows of the table of objectives


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """Where the examples come from."""

    train: Files = ""
    valid: Files = ""
    test: Files = ""
    valid_fraction: float = 0.05  # of `train`, held out where there are no files to validate on
    valid_split_by: Literal["content", "tail"] = "content"  # by a hash of each record, or the end of one long text
    format: str = ""  # where the file's ending does not tell it
    columns: dict[str, str] = field(default_factory=dict)  # field = column
    mix: dict[str, dict[str, Any]] = field(default_factory=dict)  # name = {train = files, weight = number}
    epoch_examples: int = 0  # of an endless built-in dataset: how many make an epoch
    max_length: int = 512  # places in a row
    max_source_length: int = 0  # places in a source row; 0: in proportion to what the data needs
    too_long: Literal["error", "skip", "truncate", "split", ""] = (
        ""  # records longer than a row; "": as suits the objective
    )
    layout: Literal["packed", "padded"] = "packed"
    max_invalid_fraction: float = 0.01  # the share of unusable records above which the run is refused
    cache: str = ""  # where tokenised data is kept; "": in the user's cache folder


@dataclass(frozen=True, kw_only=True)
class TokenizerSection:
    """What turns text into numbers: one trained on the data, or (`from`) another model's or file's."""

    from_: str = ""
    kind: Literal["byte-bpe", "bpe", "wordpiece", "unigram", "char", "byte", "word"] = "byte-bpe"
    vocab_size: int = 8000
    lowercase: bool = False
    min_frequency: int = 2


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """What is trained. `preset` or `from` (a checkpoint to go on from), or neither: a modern stack of the given sizes.

    `change` holds fields of a stack or a head that differ: plain ones for every stack (`width`), or under `encoder`,
    `decoder` or `head`. In a recipe they stand in `[model]` itself.
    """

    preset: str = ""
    from_: str = ""
    family: Literal["encoder", "decoder", "seq2seq", ""] = ""  # "": what the objective needs
    overrides: dict[str, Any] = field(default_factory=dict)
    vectors: str = ""  # a file of word vectors (GloVe, word2vec) that a new model's embedding starts from
    share_embeddings: bool = True  # seq2seq with one tokenizer: source and target read one table
    tie_embeddings: bool = True  # lm, mlm: the output matrix is the embedding
    freeze: tuple[str, ...] = ()  # patterns of parameters that stay as they are, as "encoder.*"
    lora_rank: int = 0  # above 0: train low-rank additions to the matrices instead of the matrices
    lora_alpha: float = 16.0
    lora_targets: tuple[str, ...] = ("*.attention.*", "*.cross.*")  # which matrices, by the names of their modules


@dataclass(frozen=True, kw_only=True)
class ObjectiveSection:
    """What is learnt."""

    kind: ObjectiveKind = "seq2seq"
    label_smoothing: float = 0.0
    mask_prob: float = 0.0  # masked, spans, denoise: how much is hidden; 0: the paper's
    mean_span_length: float = 3.0  # spans, denoise
    whole_word_masking: bool = False  # masked
    permute_sentences: bool = False  # denoise: sentences, too
    random_offset: bool = False  # windows over long texts begin elsewhere each epoch
    add_bos_eos: bool = True  # next_token: start and end tokens around each record
    label_subwords: Literal["first", "all"] = "first"  # tags: which tokens of a word carry its tag
    overlap: int = 128  # answers: tokens that two windows of a passage share
    temperature: float = 0.05  # contrast


@dataclass(frozen=True, kw_only=True)
class TrainSection:
    """How it is learnt."""

    # How long: whatever comes first; 0 is no limit
    steps: int = 0
    minutes: float = 0.0
    epochs: int = 0

    # How much at a time
    batch_tokens: int = 16384  # places in a step, all processes together
    micro_batch_tokens: int | Literal["auto"] = (
        0  # places at a time in one process; 0: all of its share; "auto": what fits
    )

    # The optimizer
    optimizer: Literal["adamw", "adam", "sgd", "lamb", "muon"] = "adamw"
    lr: float = 1e-3
    betas: tuple[float, ...] = (0.9, 0.98)
    eps: float = 1e-8
    momentum: float = 0.9  # sgd
    weight_decay: float = 0.01
    decay_parameters: Literal["matrices", "all"] = (
        "matrices"  # what shrinks: not norms, biases and embeddings, or everything
    )
    max_grad_norm: float = 1.0  # the largest norm of the gradient; 0: any

    # The schedule
    schedule: Literal["cosine", "linear", "constant", "inverse_sqrt", "wsd"] = "cosine"
    warmup: float = 0.05  # steps from 1 on; below 1 a share of the budget
    decay_fraction: float = 0.2  # wsd: the share of the budget at the end in which the rate falls
    final_lr: float = 0.0  # what the rate falls to, as a share of lr

    # Numbers
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    residual_dtype: Literal["auto", "float32", "bfloat16"] = (
        "auto"  # between blocks, under bfloat16; auto: narrow on a GPU
    )
    compile: Literal["auto", "yes", "no"] = "auto"
    gradient_checkpointing: bool = False  # activation checkpointing: less memory, a third more arithmetic
    seed: int = 0
    device: str = "auto"
    num_threads: int = 0  # on a CPU; 0: torch's choice

    # Machines
    num_workers: int = 0  # processes that build batches
    parallel: Literal["ddp", "fsdp"] = "ddp"  # with several processes: whole copies, or sharded parameters
    tensor_parallel: int = 1  # processes that share each matrix

    # Watching
    log_every: int = 10
    eval_every: int = 0  # steps; 0: ten times in the budget
    eval_examples: int = 500  # for the task's metric; the loss is over all of the validation data
    metric: str = ""  # what "best" means; "": the task's own
    eval_beam: int = 1  # how evaluation decodes
    patience: int = 0  # evaluations without a better metric before the run ends; 0: never
    trackers: tuple[str, ...] = ()  # tensorboard, wandb, trackio

    # Keeping
    save_every: int = 0  # steps; 0: with each evaluation
    keep_checkpoints: int = 3  # newest checkpoints; the best one is kept besides
    ema_decay: float = 0.0  # an exponential moving average of the weights, as 0.999
    average_checkpoints: int = 0  # the final weights are the mean of the last so many checkpoints
    final: Literal["last", "best"] = "last"
    on_nonfinite: Literal["stop", "skip"] = "stop"  # a loss or gradient that is not a number


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All of it. `run` is the folder that the run is kept in."""

    run: str = ""
    data: DataSection = field(default_factory=DataSection)
    tokenizer: TokenizerSection = field(default_factory=TokenizerSection)
    model: ModelSection = field(default_factory=ModelSection)
    objective: ObjectiveSection = field(default_factory=ObjectiveSection)
    train: TrainSection = field(default_factory=TrainSection)
