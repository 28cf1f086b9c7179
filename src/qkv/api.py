"""What a person holds: `qkv.load(...)` gives a `Model`, a network with its config and its tokenizer."""

import logging
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

from qkv import decode, store
from qkv.blocks import HeadConfig, Tap
from qkv.decode import GenerationResult, TokenLogprob
from qkv.errors import QkvError, UsageError, suggest_name
from qkv.models import Config, Encoder, Network, Seq2Seq, build
from qkv.models.tables import presets
from qkv.tasks import evaluate as tasks
from qkv.tasks import train as training
from qkv.tasks.run.classify import check_text_lengths
from qkv.tasks.run.embed import embed_texts
from qkv.tasks.run.example_batches import batches
from qkv.tasks.run.generate import make_generation_options, prompt_ids
from qkv.text import Tokenizer
from qkv.train.recipe.values import format_value
from qkv.train.run import load as midway
from qkv.train.watch import Watcher

log = logging.getLogger("qkv")

POOLS = ("first", "last", "mean")


def load(
    name: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str | None = None,
    head: HeadConfig | None = None,
) -> "Model":
    """A model from a qkv folder, a Hugging Face folder, or a hub id.

    Of a run that has not come to its end it is what the newest checkpoint holds; any other checkpoint can be given by
    its own folder. Weights keep the type that they are stored in unless `dtype` says otherwise; `head` puts a fresh
    head on the body. What was ignored or left out is in `.notes`, and logged.
    """
    stored = midway.load_model(name, device=_parse_device(device), dtype=_parse_dtype(dtype), head=head)
    for note in stored.notes:
        log.warning("%s: %s", name, note)
    return Model(stored.config, stored.network, stored.tokenizer, stored.notes)


def new(
    config: Config | str,
    *,
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> "Model":
    """A model with fresh weights, from a config or the name of a preset.

    >>> new("bert-tiny").config.family
    'encoder'
    """
    if isinstance(config, str):
        config = presets.find_preset(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build(config, dtype=dtype)
    return Model(config, network.to(device).eval(), tokenizer, [])


def train(recipe: str | Path, *, watcher: Watcher | None = None, **changes: Any) -> "Model":
    """Train a recipe: a file, a built-in name, or the folder of a run to go on with. The run's folder keeps the model.

    Changes have the recipe's dotted names, as on the command line; `watch` is told what happens.

    >>> train("dates", **{"train.minutes": 5, "run": "runs/a"})     # doctest: +SKIP
    """
    overrides = [_format_override(name, value) for name, value in changes.items()]
    trained = training.train(training.open_recipe(recipe, overrides), watch=watcher)
    for note in trained.notes:
        log.warning("%s: %s", trained.recipe.run, note)
    return Model(trained.config, trained.network.eval(), trained.tokenizer, trained.notes)


def _format_override(name: str, value: Any) -> str:
    """A change of a recipe, as it is written on the command line."""
    try:
        return f"{name}={format_value(str(value) if isinstance(value, Path) else value)}"
    except UsageError as error:
        raise UsageError(f"{name} = {value!r}: {error}") from None


def _parse_device(device: torch.device | str) -> torch.device:
    """A device that is there."""
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"device = {device!r}: unknown; cpu, cuda or mps, with a number as in cuda:1") from error
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError(f"device = {str(device)!r}: torch sees no such device on this machine")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device = {str(device)!r}: torch sees no GPU on this machine")
    return chosen


def _parse_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A type of floating-point numbers, by itself or by its name."""
    known = ("float32", "bfloat16", "float16", "float64")
    if isinstance(dtype, str):
        if dtype not in known:
            raise UsageError(f"dtype = {dtype!r}; {suggest_name(dtype, known)}")
        return getattr(torch, dtype)  # type: ignore[no-any-return]
    return dtype


class Model:
    """A network with what belongs to it."""

    def __init__(
        self, config: Config, network: Network, tokenizer: Tokenizer | None = None, notes: Iterable[str] = ()
    ) -> None:
        self.config = config
        self.network = network
        self.tokenizer = tokenizer
        self.notes = list(notes)

    def __repr__(self) -> str:
        stack = self.config.stack
        count = sum(p.numel() for p in self.network.parameters())
        size = f"{stack.layers} × {stack.width}, {count:,} parameters"
        return f"<qkv {self.config.family}, {self.config.head.kind} head, {size}>"

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @torch.no_grad()
    def logits(
        self,
        ids: Tensor | Sequence[Sequence[int]],
        source: Tensor | Sequence[Sequence[int]] | None = None,
        mask: Tensor | Sequence[Sequence[int]] | None = None,
        token_type_ids: Tensor | Sequence[Sequence[int]] | None = None,
        *,
        tap: Tap | None = None,
    ) -> Tensor:
        """What the head says: (B, T, vocabulary), or (B, classes) for a head that reads whole texts.

        `mask` is 1 for tokens and 0 for padding, on any side: of `source` when there is one, else of `ids`.
        `types` are the sentence types of an encoder that has them. A multiple-choice head takes ids
        (B, choices, T) and gives (B, choices).
        """
        network, stack = self.network, self.config.stack
        if token_type_ids is not None and not (isinstance(network, Encoder) and stack.token_types):
            raise UsageError("types= is for an encoder with sentence types; this model has none")
        if isinstance(network, Seq2Seq):
            if source is None:
                raise UsageError("this model has an encoder and a decoder: give source= and the target's ids")
            ids, read = (
                self._check_ids(ids, "ids", stack.vocab_size),
                self._check_ids(source, "source", self._source_vocab),
            )
            if len(read) != len(ids):
                raise UsageError(f"source: {len(read)} rows for {len(ids)} rows of ids; each target needs its source")
            out: Tensor = network(read, ids, self._check_mask(mask, read), tap=tap)
            return out
        if source is not None:
            raise UsageError(
                f"source= is for an encoder and a decoder together; this model is {self.config.family}-only"
            )
        several = self.config.head.kind == "choice"
        ids = self._check_ids(ids, "ids", stack.vocab_size, choices=several)
        segment = self._check_mask(mask, ids)
        kinds = None if token_type_ids is None else self._check_token_types(token_type_ids, ids)
        shape = ids.shape[:2]
        several = several and ids.dim() == 3
        if several:
            ids = ids.flatten(0, 1)
            segment, kinds = (None if t is None else t.flatten(0, 1) for t in (segment, kinds))
        if isinstance(network, Encoder):
            out = network(ids, segment, token_type_ids=kinds, tap=tap)
        else:
            out = network(ids, segment, tap=tap)
        return out.view(shape) if several else out

    @torch.no_grad()
    def hidden(
        self, ids: Tensor | Sequence[Sequence[int]], mask: Tensor | Sequence[Sequence[int]] | None = None
    ) -> Tensor:
        """The vectors (B, T, C) that the head reads; of an encoder and decoder, what the encoder makes of a source."""
        if isinstance(self.network, Seq2Seq):
            read = self._check_ids(ids, "ids", self._source_vocab)
            return self.network.encode(read, self._check_mask(mask, read)).vectors
        read = self._check_ids(ids, "ids", self.config.stack.vocab_size)
        return self.network.hidden(read, self._check_mask(mask, read))[0]

    @torch.no_grad()
    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: Literal["first", "last", "mean"] | None = None,
        batch_size: int = 32,
    ) -> Tensor:
        """A vector for each text, (N, C); for one text, (C,).

        A model that was made for it knows how; for any other, `how` says which of its vectors stand for a text.
        """
        if isinstance(self.network, Seq2Seq):
            raise UsageError("embeddings are for encoder-only and decoder-only models")
        if pooling is not None and pooling not in POOLS:
            raise UsageError(f"how = {pooling!r} is not known; choose from {', '.join(POOLS)}")
        if self.config.head.kind != "embed" and pooling is None:
            raise UsageError(
                f"this model has a {self.config.head.kind} head, not one for embeddings; "
                'say which vectors stand for a text: how="mean", "first" or "last"'
            )
        if self.tokenizer is None:
            raise QkvError("this model has no tokenizer, so it cannot read text; use .hidden(ids)")
        listed = [texts] if isinstance(texts, str) else texts
        vectors, lengths = embed_texts(
            self.network, self.tokenizer, self.config, listed, batch_size, pooling=pooling, longest_first=False
        )
        if pooling is None:
            check_text_lengths(listed, lengths, self.config.stack.max_positions)
        return vectors[0] if isinstance(texts, str) else vectors

    def run(self, texts: Any, **options: Any) -> Any:
        """What the model is made for: a text, a label, tags, an answer, a vector, filled gaps, by its head.

        One text gives one result, a list a list. A task that reads two texts together takes them as a tuple: a
        question and a passage, or a pair to classify. Results and options are those of the task's `run` in `qkv.tasks`.
        """
        one = isinstance(texts, str | tuple)
        results = tasks.run(self.network, self.tokenizer, self.config, [texts] if one else texts, **options)
        return results[0] if one else results

    @overload
    def generate(self, prompts: str, **options: Any) -> GenerationResult: ...
    @overload
    def generate(self, prompts: Sequence[str] | Sequence[int] | Sequence[Sequence[int]], **options: Any) -> Any: ...

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        *,
        max_tokens: int = 64,
        beam: int = 1,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        draft: "Model | decode.Draft | str | Path | None" = None,
        on_text: decode.OnText | None = None,
        **more: Any,
    ) -> GenerationResult | list[GenerationResult]:
        """Go on from a prompt, or, with an encoder and a decoder, answer a source.

        `prompts` is a text, a list of token ids, or a list of either; a result for one, a list for a list. `more` is
        any field of `qkv.decode.GenerationOptions`. `on_text(index, text)` is called with each new chunk of text.

        `draft` turns on speculative decoding: a smaller model of the same family and tokenizer (a `Model` or its
        folder), or "lookup" for prompt look-up decoding. The text stays the same, and may be generated faster.
        """
        prompts = as_list(prompts)
        if not isinstance(prompts, Sequence):
            raise UsageError(f"prompts: a text, token ids, or a list of either, not {type(prompts).__name__}")
        one = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], Integral))
        rows: Any = [prompts] if one else prompts
        named = {"max_tokens": max_tokens, "beam": beam, "temperature": temperature, "top_p": top_p, "seed": seed}
        options = make_generation_options({**named, "stop": stop, **more})
        if on_text is not None and not callable(on_text):
            raise UsageError(f"on_text = {on_text!r}: a function of the row and the new piece of its text")
        ids = [self._prompt(row) for row in rows]
        results = decode.generate(self.network, ids, options, self.tokenizer, on_text, draft=self._draft(draft))
        return results[0] if one else results

    def _draft(self, draft: Any) -> Any:
        """A draft as `qkv.decode.generate` takes it."""
        if isinstance(draft, str | Path) and draft != "lookup":
            draft = load(draft, device=self.device)
        return draft.network if isinstance(draft, Model) else draft

    def generate_lines(
        self,
        lines: Sequence[str],
        *,
        batch_size: int = 16,
        progress: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> list[GenerationResult]:
        """A result for each line, in order, run in batches of like lengths; an empty line gives an empty result."""
        if isinstance(lines, str) or not all(isinstance(line, str) for line in lines):
            raise UsageError("lines: a list of texts")
        options["draft"] = self._draft(options.get("draft"))
        out = [GenerationResult("", [], 0.0, "end") for _ in lines]
        filled = [i for i, line in enumerate(lines) if line.strip()]
        for batch in batches([len(lines[i]) for i in filled], batch_size, progress, longest_first=False):
            chosen = [filled[i] for i in batch]
            for i, result in zip(chosen, self.generate([lines[i] for i in chosen], **options), strict=True):
                out[i] = result
        return out

    def score(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        targets: str | Sequence[str] | Sequence[Sequence[int]],
    ) -> Any:
        """The log-probabilities of a target's tokens after its prompt (or source): a list, or a list of lists."""
        if isinstance(prompts, str) and isinstance(targets, str):
            return self.score([prompts], [targets])[0]
        if not all(isinstance(side, Sequence) and not isinstance(side, str) for side in (prompts, targets)):
            raise UsageError("score takes a prompt and a target, or as many targets as prompts in two lists")
        if len(prompts) != len(targets):
            raise UsageError(f"{len(prompts)} prompts for {len(targets)} targets")
        end = list(self.config.eos_token_ids[:1])
        wanted = [self._target_ids(t) + end if isinstance(t, str) else list(t) for t in targets]
        if not all(wanted):
            raise UsageError("a target is empty: there is nothing to score")
        given = [self._prompt(prompt) for prompt in prompts]
        scored: list[list[TokenLogprob]] = decode.score(self.network, given, wanted)
        return scored

    def _prompt(self, prompt: str | Sequence[int]) -> list[int]:
        """A prompt as ids, checked. A decoder goes on from it, so an end that the tokenizer adds is taken off."""
        prompt = as_list(prompt)
        if isinstance(prompt, str):
            ids = prompt_ids(self._require_tokenizer(), self.config, prompt)
        elif isinstance(prompt, Sequence) and all(isinstance(i, Integral) for i in prompt):
            ids = [int(i) for i in prompt]
        else:
            raise UsageError(f"{prompt!r}: a text or token ids, which are whole numbers")
        if ids:
            self._check_ids([ids], "prompt", self._source_vocab)
        return ids

    def _target_ids(self, text: str) -> list[int]:
        return self._require_tokenizer().target.encode(text, add_special_tokens=False)

    def _require_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise QkvError("this model has no tokenizer, so it cannot read text; give token ids")
        return self.tokenizer

    def quantize(self) -> "Model":
        """A twin for decoding, its linear maps in int8 (on a GPU their weights alone); this one stays as it is."""
        network: Any = self.network  # one of the three classes, and the twin is of the same
        return Model(self.config, decode.quantize(network), self.tokenizer, self.notes)

    def save(self, folder: str | Path) -> None:
        """Write a qkv model folder."""
        store.write_model(folder, self.config, self.network, self.tokenizer)

    def export(self, folder: str | Path, format: str = "hf") -> str:
        """Write a folder that other people's code reads; returns the class to load it with.

        `hf` is what transformers, vLLM and other readers of that layout take; `ctranslate2` is for that engine and
        `onnx` are graphs for onnxruntime and others (each with the extra of its name).
        """
        formats = ("hf", "ctranslate2", "onnx")
        if format not in formats:
            raise UsageError(f"unknown export format {format!r}; {suggest_name(format, formats)}")
        return store.write_model(folder, self.config, self.network, self.tokenizer, format)

    @property
    def _source_vocab(self) -> int:
        return (self.config.encoder or self.config.stack).vocab_size

    def _check_ids(
        self, ids: Tensor | Sequence[Sequence[int]], name: str, vocab: int, *, choices: bool = False
    ) -> Tensor:
        """Ids as a tensor on the model's device, checked: an id out of range is an error here, not a crash later."""
        tensor = to_tensor(ids, name)
        if tensor.dim() not in ((2, 3) if choices else (2,)) or not is_integer(tensor):
            shape = "(rows, choices, tokens)" if choices else "(rows, tokens)"
            raise UsageError(
                f"{name}: expected whole numbers of shape {shape}, not {tuple(tensor.shape)} {tensor.dtype}"
            )
        bad = tensor[(tensor < 0) | (tensor >= vocab)]
        if len(bad):
            raise UsageError(
                f"{name}: token id {int(bad[0])} is outside this model's vocabulary of {vocab} (0 … {vocab - 1})"
            )
        return tensor.to(self.device, torch.long)

    def _check_mask(self, mask: Tensor | Sequence[Sequence[int]] | None, ids: Tensor) -> Tensor | None:
        """A mask of ones and zeros as segments."""
        if mask is None:
            return None
        tensor = to_tensor(mask, "mask", ids.shape)
        bad = tensor[(tensor != 0) & (tensor != 1)]
        if len(bad):
            raise UsageError(f"mask: {bad[0].item()} is neither 1, a token, nor 0, padding")
        return tensor.to(self.device, torch.long)

    def _check_token_types(self, types: Tensor | Sequence[Sequence[int]], ids: Tensor) -> Tensor:
        """Sentence types, one for each token."""
        tensor, known = to_tensor(types, "token_type_ids", ids.shape), self.config.stack.token_types
        bad = tensor[(tensor < 0) | (tensor >= known)]
        if len(bad) or not is_integer(tensor):
            wrong = bad[0].item() if len(bad) else tensor.dtype
            raise UsageError(
                f"token_type_ids: {wrong} is not one of this model's {known} sentence types (0 … {known - 1})"
            )
        return tensor.to(self.device, torch.long)


def as_list(values: Any) -> Any:
    """A tensor or an array as lists; anything else as it is."""
    return values.tolist() if hasattr(values, "tolist") else values


def to_tensor(values: Tensor | Sequence[Sequence[int]], name: str, shape: torch.Size | None = None) -> Tensor:
    """Lists of numbers as a tensor; rows of unequal length, or another shape than `shape`, are an error."""
    if isinstance(values, str):
        raise UsageError(f"{name}: token ids, not a text; the model's tokenizer.encode makes them")
    try:
        tensor = torch.as_tensor(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UsageError(f"{name}: rows of unequal length need padding and a mask ({error})") from error
    if shape is not None and tensor.shape != shape:
        raise UsageError(f"{name}: shape {tuple(tensor.shape)} does not match its tokens' {tuple(shape)}")
    return tensor


def is_integer(tensor: Tensor) -> bool:
    """Whether a tensor holds whole numbers (truth values are none)."""
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool)
