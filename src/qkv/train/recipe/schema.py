"""The keys of a recipe. A recipe has five sections and determines a training run.

    run = "runs/translator"
    plugins = []        modules outside qkv that register what the recipe names, such as a feed-forward

    [data]        which files, how they are read, how long sequences are
    [tokenizer]   one to train, or an existing one
    [model]       a preset or a trained model, and changes to its config
    [objective]   the training objective
    [train]       budget, optimizer, hardware, evaluation, checkpoints

`recipe_file.py` reads and writes recipes as TOML. `tests/test_frozen.py` has a list of all keys, so that none is added
or removed by accident.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from qkv.blocks.parts import STACK_PARTS
from qkv.data.modalities import TextModality
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.readers.formats import FORMATS
from qkv.text.kinds import TOKENIZER_KINDS
from qkv.train.tables import OPTIMIZERS, SCHEDULES, TRACKERS
from qkv.values import Limits, OneOf, Partial

Files = str | tuple[str, ...] | dict[str, str]
"""A built-in dataset by name; a file, glob or folder; a list of these; or for line-aligned files, field → file."""

BUDGETS = ("steps", "minutes", "epochs", "cpu_minutes")
"""The keys of [train] that limit a run, which ends at the first limit that it reaches; 0 is no limit."""

MAX_COUNT, MAX_LENGTH = 2**40, 2**27  # a batch must fit into memory
Count = Annotated[int, Limits(0, MAX_COUNT)]
PositiveCount = Annotated[int, Limits(1, MAX_COUNT)]
Length = Annotated[int, Limits(1, MAX_LENGTH)]
LengthOrZero = Annotated[int, Limits(0, MAX_LENGTH)]
Fraction = Annotated[float, Limits(0, 1)]
BelowOne = Annotated[float, Limits(0, below=1)]
Positive = Annotated[float, Limits(1e-6, 1e6)]


@dataclass(frozen=True, kw_only=True)
class MixSource:
    """One of the sources of a mixture, in [data.mix.NAME]. It is kept as a table."""

    train: Files = ""
    weight: Positive = 1.0
    format: Annotated[str, OneOf(FORMATS, optional=True)] = ""
    columns: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """The source of the examples, and how they become sequences."""

    train: Files = ""
    valid: Files = ""
    test: Files = ""
    valid_fraction: BelowOne = 0.05  # if `valid` is not set, this fraction of `train` is the validation data
    # "content" selects records by the hash of their content; "tail" takes the last part of the text
    valid_split_by: Literal["content", "tail"] = "content"
    format: Annotated[str, OneOf(FORMATS, optional=True)] = ""  # the file format; "" detects it from the extension
    columns: dict[str, str] = field(default_factory=dict)  # field = column; or several columns: text = "title + body"
    encoding: str = ""  # the encoding of text files, such as "latin-1"; "" recognises it
    modality: TextModality = ""  # what the texts are; "" is text
    records_key: str = ""  # json: where in the document the list of records is, such as "data" or "splits.train"
    max_score: Positive = 1.0  # contrastive: the largest score in the data; scores are divided by it
    mix: dict[str, Annotated[dict[str, Any], Partial(MixSource)]] = field(
        default_factory=dict
    )  # name = {train = files, weight = number}
    epoch_examples: Count = 0  # the number of examples in an epoch, for an endless built-in dataset
    max_length: Length = 512  # the maximum sequence length in tokens
    max_source_length: LengthOrZero = 0  # the same for source sequences; 0 derives it from the lengths in the data
    # what to do with longer records; "" is the objective's default
    too_long: Literal["error", "skip", "truncate", "split", ""] = ""
    # random changes of training images (flip, shift, rand, erase) or sounds (speed, noise, mask)
    augment: tuple[str, ...] = ()
    layout: Literal["packed", "padded"] = "packed"
    max_invalid_fraction: Fraction = 0.01  # a larger fraction of invalid records is an error
    cache_dir: str = ""  # the folder for tokenised data; "" is the user's cache folder


@dataclass(frozen=True, kw_only=True)
class TokenizerSection:
    """The tokenizer. It is trained on the data, or loaded from another model or file (`from`)."""

    from_: str = ""
    kind: Annotated[str, OneOf(TOKENIZER_KINDS)] = "byte-bpe"
    vocab_size: Annotated[int, Limits(1, 2**24)] = 8000
    lowercase: bool = False
    min_frequency: Count = 2
    image_codes: PositiveCount = 512  # drawing: the number of different patches that pictures are drawn from


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """The model: a `preset`, or a trained model (`from`). With neither, it has a modern architecture.

    `overrides` change fields of the model's config. A field such as `width` applies to every stack; fields under
    `encoder`, `decoder`, `head` or `words` apply to that part. In a recipe file the overrides are keys of `[model]`
    itself.
    """

    preset: str = ""
    from_: str = ""
    # "" or the name of a part that is a whole stack, such as "lstm", selects the family that the objective needs
    family: Literal["encoder", "decoder", "seq2seq", ""] | Annotated[str, OneOf(STACK_PARTS)] = ""
    overrides: dict[str, Any] = field(default_factory=dict)
    vectors: str = ""  # a file of word vectors (GloVe, word2vec) that initialise the embedding
    share_embeddings: bool = True  # seq2seq: one embedding for source and target
    tie_embeddings: bool = True  # causal_lm, masked_lm: the output matrix is the embedding matrix
    freeze: tuple[str, ...] = ()  # patterns of parameters that are not trained, such as "encoder.*"
    # if above 0, train LoRA adapters of this rank (and a new head); freeze the rest
    lora_rank: Annotated[int, Limits(0, 2**16)] = 0
    lora_alpha: Positive = 16.0
    lora_targets: tuple[str, ...] = ("*.attention.*", "*.cross.*")  # patterns of the modules that get adapters

    @property
    def stack_part(self) -> str:
        """The part that replaces all blocks, such as "lstm", or "" for Transformer blocks."""
        return self.family if self.family in STACK_PARTS else ""


@dataclass(frozen=True, kw_only=True)
class ObjectiveSection:
    """The training objective."""

    kind: Annotated[str, OneOf(OBJECTIVES)] = "seq2seq"
    label_smoothing: BelowOne = 0.0
    mask_prob: BelowOne = 0.0  # masked_lm, next_sentence, span_corruption, denoising; 0 is the objective's default
    mean_span_length: Annotated[float, Limits(1, 10_000)] = 3.0  # span_corruption, denoising; in tokens
    whole_word_masking: bool = False  # masked_lm, next_sentence
    permute_sentences: bool = False  # denoising
    random_offset: bool = False  # in each epoch, split long documents at another random offset
    add_bos_eos: bool = True  # causal_lm: add BOS and EOS tokens around each document
    label_subwords: Literal["first", "all"] = "first"  # tagging: which tokens of a word get its tag
    out_of_scope: str = ""  # classification: the label of texts that belong to no class
    overlap: LengthOrZero = 128  # question_answering: tokens that two windows of a passage share
    temperature: Positive = 0.05  # contrastive
    caption_dropout: BelowOne = 0.0  # drawing: the fraction of pictures that are learned without their caption
    mix_images: Literal["none", "mixup", "cutmix", "both"] = "none"  # classification: mix pairs of training images


@dataclass(frozen=True, kw_only=True)
class TrainSection:
    """The training: budget, optimizer, hardware, evaluation, checkpoints."""

    # Budget: the run ends at the first limit that it reaches; 0 is no limit
    steps: Count = 0
    minutes: Annotated[float, Limits(0, 1e8)] = 0.0
    epochs: Count = 0
    cpu_minutes: Annotated[float, Limits(0, 1e8)] = 0.0  # time that threads compute, however busy the machine is

    # Batch
    batch_tokens: Length = 16384  # tokens in each optimizer step, of all ranks, with padding
    # tokens in each forward pass of a rank; "auto": what fits into free memory; 0: no split
    micro_batch_tokens: LengthOrZero | Literal["auto"] = "auto"

    # Optimizer
    optimizer: Annotated[str, OneOf(OPTIMIZERS)] = "adamw"
    lr: Annotated[float, Limits(1e-30, 1e6)] = 1e-3
    head_lr_factor: Positive = 1.0
    fit_head: bool = True  # fit a new head to the features of `model.from` before the first step
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.98)
    eps: Annotated[float, Limits(1e-30, 1e6)] = 1e-8
    momentum: BelowOne = 0.9  # sgd
    weight_decay: Annotated[float, Limits(0, 1e6)] = 0.01
    # the parameters with weight decay; "matrices" excludes embeddings
    weight_decay_on: Literal["matrices", "all"] = "matrices"
    max_grad_norm: Annotated[float, Limits(0, 1e30)] = 1.0  # gradient clipping; 0 disables it

    # Learning rate schedule
    schedule: Annotated[str, OneOf(SCHEDULES)] = "cosine"
    warmup: Annotated[float, Limits(0, MAX_COUNT)] = 0.05  # in steps or, if below 1, as a fraction of the budget
    decay_fraction: Fraction = 0.2  # wsd: the last fraction of the budget, in which the learning rate falls
    final_lr_ratio: Fraction = 0.0  # the final learning rate as a fraction of lr

    # Numerics
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # "auto" on a CPU: measured, then kept
    # the residual stream's dtype if precision is bfloat16; "auto" is bfloat16
    residual_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: Literal["auto", "yes", "no"] = "auto"
    gradient_checkpointing: bool = False  # recompute activations: less memory, but a third more computation
    seed: Annotated[int, Limits(0, 2**63 - 1)] = 0
    device: str = "auto"
    num_threads: Annotated[int, Limits(0, 1024)] = 0  # CPU threads; 0 is torch's default

    # Parallelism
    num_workers: Annotated[int, Limits(0, 64)] = 0  # processes that prepare batches
    parallel: Literal["ddp", "fsdp"] = "ddp"  # with several processes: data parallel or fully sharded
    tensor_parallel: Annotated[int, Limits(1, 1024)] = 1  # the number of ranks over which each matrix is split

    # Logging and evaluation
    log_every: PositiveCount = 10
    eval_every: Count = 0  # in steps; 0 evaluates ten times in the run
    eval_examples: Count = 500  # the number of examples for the task's metrics; the loss uses all validation data
    max_eval_fraction: Fraction = 0.1  # of the time; evaluations use a sample if all data takes longer; 1: no limit
    metric: str = ""  # selects the best weights; "" is the task's main metric, or the loss if its sample is small
    eval_beam: Annotated[int, Limits(1, 1024)] = 1  # the beam size in evaluations
    patience: Count = 0  # the run ends after this number of evaluations without improvement; 0 disables it
    trackers: tuple[Annotated[str, OneOf(TRACKERS)], ...] = ()  # any of tensorboard, wandb, trackio

    # Checkpoints and final weights
    save_every: Count = 0  # in steps; 0 saves with each evaluation
    keep_checkpoints: PositiveCount = 3  # the number of newest checkpoints to keep; the best one is kept, too
    ema_decay: BelowOne = 0.0  # the decay of an exponential moving average (EMA) of the weights, such as 0.999; 0: off
    average_checkpoints: Count = 0  # average the last N checkpoints at the end; 0 disables it
    final: Literal["last", "best"] = "last"
    on_nonfinite: Literal["stop", "skip"] = "stop"  # what to do if a loss or gradient is not finite


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole recipe. `run` is the run folder, and `plugins` are modules that register parts, objectives and others."""

    run: str = ""
    plugins: tuple[str, ...] = ()
    data: DataSection = field(default_factory=DataSection)
    tokenizer: TokenizerSection = field(default_factory=TokenizerSection)
    model: ModelSection = field(default_factory=ModelSection)
    objective: ObjectiveSection = field(default_factory=ObjectiveSection)
    train: TrainSection = field(default_factory=TrainSection)


def format_files(files: Files) -> str:
    """The files of a recipe as text."""
    if isinstance(files, str):
        return files
    return ", ".join(files.values() if isinstance(files, dict) else files)
