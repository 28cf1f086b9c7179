"""The public interface: `qkv.load`, `qkv.new` and `qkv.train` return a `Model`."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from qkv import decode, store
from qkv.arguments import (
    Ids,
    as_list,
    check_ids,
    check_list,
    check_mask,
    check_token_types,
    describe_value,
    parse_device,
    parse_dtype,
)
from qkv.blocks import HeadConfig, Inputs, Tap
from qkv.data.modalities import reads_files
from qkv.decode import GenerationOptions, GenerationResult, TokenLogprob
from qkv.errors import QkvError, UsageError, suggest_name
from qkv.models import Config, Network, build
from qkv.progress import OnProgress
from qkv.tasks.calls import TaskCalls, stream_batches
from qkv.tasks.evaluation import Evaluation
from qkv.tasks.metrics.bootstrap import DEFAULT_RESAMPLES
from qkv.tasks.run.example_batches import batches
from qkv.tasks.run.generate import make_generation_options, prompt_ids
from qkv.tasks.run.long_texts import handle_long_texts
from qkv.tasks.table import find_task
from qkv.tasks.text_model import TextModel
from qkv.tasks.verbs.embed import EMBED, EmbedOptions, embed_texts
from qkv.text import Tokenizer
from qkv.train.run.load import load_model
from qkv.values import PYTHON, read

if TYPE_CHECKING:  # imported in the methods that need them, so that `qkv run` answers sooner
    from qkv.inside import Edit, Trace
    from qkv.inside.look.page import Look
    from qkv.tasks.report import RunReport
    from qkv.train.watch import Watcher

log = logging.getLogger("qkv")

POOLINGS = ("first", "last", "mean")
REPORT_COMMAND_OPTIONS = {
    "limit": "--limit of the command is max_records= here",
    "out": 'to write the page, call .save("report.html") of the result',
    "json": "for JSON values, call .to_dict() of the result",
}
"""Option of `qkv report` that `qkv.report` does not have → what to use instead."""
TABLE_KEYS = ("data.train", "data.valid", "data.test")
"""Keys of a recipe whose value can be a table in memory."""
EXPORT_FORMATS = ("hf", "ctranslate2", "onnx", "gguf")


def load(
    name: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str | None = None,
    head: HeadConfig | None = None,
) -> "Model":
    """Load a model from a qkv folder, a Hugging Face folder, a hub id, or a GGUF file (extra `gguf`).

    The name of a model that comes with qkv, such as "en-fr", loads that one (`qkv models` lists them).

    For the folder of an unfinished run, this loads its newest checkpoint. The folder of a checkpoint works, too.
    Weights keep their stored dtype unless `dtype` is given. `head` replaces the model's head by a newly initialised
    one. Notes on tensors that were ignored or newly initialised are logged, and are in `.notes`.
    """
    stored = load_model(name, device=parse_device(device), dtype=parse_dtype(dtype), head=head)
    for note in stored.notes:
        log.warning("%s: %s", name, note)
    return Model(stored.config, stored.network, stored.tokenizer, stored.notes, stored.processor)


def new(
    config: Config | str,
    *,
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> "Model":
    """Make a model with random weights, from a config or the name of a preset.

    >>> new("bert-tiny").config.family
    'encoder'
    """
    if isinstance(config, str):
        from qkv.models.tables.presets import find_preset

        config = find_preset(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build(config, dtype=dtype)
    return Model(config, network.to(device).eval(), tokenizer, [])


def report(run: str | Path, **options: Any) -> "RunReport":
    """Is the model of a run good, and what next? The score beside baselines, errors, data problems, and advice.

    `options` are the fields of `qkv.tasks.report.ReportOptions`, such as `max_records`, which is `--limit` of the
    command. `.save("report.html")` writes a page.

    >>> report("runs/reviews").save("reviews.html")     # doctest: +SKIP
    """
    from qkv.tasks.report import ReportOptions, make_report

    known = [option.name for option in fields(ReportOptions)]
    for name in options:
        if name not in known:
            same = f"{REPORT_COMMAND_OPTIONS[name]}; " if name in REPORT_COMMAND_OPTIONS else ""
            raise UsageError(f"qkv.report has no option {name!r}; {same}known: {', '.join(known)}")
    return make_report(run, ReportOptions(**options))


def train(recipe: str | Path, *, watcher: "Watcher | None" = None, **overrides: Any) -> "Model":
    """Train a model from a recipe file or a built-in recipe, or resume the run in a folder.

    The model is also saved in the folder of the run. `overrides` are named by recipe keys with dots, as on the command
    line. `data.train`, `data.valid` and `data.test` can also be tables in memory: pandas or Polars frames, Arrow
    tables, datasets, or records (`qkv.data.tables`). The methods of `watcher` are called during training.

    >>> train("dates", **{"train.minutes": 5, "run": "runs/a"})     # doctest: +SKIP
    """
    from qkv.tasks import train as training
    from qkv.train.watch import Watcher

    if not isinstance(watcher, Watcher | None):
        raise UsageError(f"watcher must be a qkv.train.watch.Watcher, got {describe_value(watcher)}; subclass it")
    values = {name: _save_if_table(value) if name in TABLE_KEYS else value for name, value in overrides.items()}
    arguments = [_format_override(name, value) for name, value in values.items()]
    trained = training.train(training.open_recipe(recipe, arguments), watch=watcher)
    for note in trained.notes:
        log.warning("%s: %s", trained.recipe.run, note)
    return Model(trained.config, trained.network.eval(), trained.tokenizer, trained.notes)


def _save_if_table(value: Any) -> Any:
    """The path of a file with the rows of a table in memory; any other value as it is."""
    from qkv.data.tables import is_table, save_table
    from qkv.tasks.prepare.sources import cache_root
    from qkv.train.recipe.schema import DataSection

    return save_table(value, cache_root(DataSection()) / "tables") if is_table(value) else value


def _format_override(name: str, value: Any) -> str:
    """Write an override as on the command line: `key=value`."""
    from qkv.train.recipe.toml import format_value

    try:
        return f"{name}={format_value(str(value) if isinstance(value, Path) else value)}"
    except UsageError as error:
        raise UsageError(f"{name} = {value!r}: {error}") from None


class Model(TaskCalls):
    """A network with its config and tokenizer. Its calls on texts are in `TaskCalls`."""

    def __init__(
        self,
        config: Config,
        network: Network,
        tokenizer: Tokenizer | None = None,
        notes: Iterable[str] = (),
        processor: Mapping[str, Any] | None = None,
    ) -> None:
        """`processor` has the settings that turn images or sounds into payloads. `save` writes them."""
        self.config = config
        self.network = network
        self.tokenizer = tokenizer
        self.notes = list(notes)
        self.processor = processor

    def __repr__(self) -> str:
        stack = self.config.stack
        count = sum(p.numel() for p in self.network.parameters())
        size = f"{stack.layers} × {stack.width}, {count:,} parameters"
        return f"<qkv {self.config.family}, {self.config.head.kind} head, {size}>"

    @property
    def device(self) -> torch.device:
        """The device of the network's parameters."""
        return self.network.device

    @torch.no_grad()
    def logits(
        self,
        ids: Ids,
        source: Ids | None = None,
        mask: Ids | None = None,
        token_type_ids: Ids | None = None,
        *,
        tap: Tap | None = None,
    ) -> Tensor:
        """The output of the head: (B, T, V), or (B, classes) for a head that classifies whole sequences.

        `mask` is 1 for tokens and 0 for padding, which may be on the left or right. For an encoder-decoder it is the
        mask of `source`, else the mask of `ids`. `token_type_ids` are for an encoder with token types. `tap` records or
        changes activations inside the network (see `qkv.Tap`). A multiple-choice head takes ids of shape (B, choices,
        T) and returns (B, choices).
        """
        network, stack = self.network, self.config.stack
        if token_type_ids is not None and (network.has_source or not stack.token_types):
            raise UsageError("token_type_ids= is for an encoder with token types; this model has none, so leave it out")
        if network.has_source:
            if source is None:
                raise UsageError("this model is an encoder-decoder: give source= as well as the ids of the target")
            target_ids = check_ids(ids, "ids", stack.vocab_size, self.device)
            source_ids = check_ids(source, "source", self._source_vocab_size, self.device)
            if len(source_ids) != len(target_ids):
                raise UsageError(
                    f"source has {len(source_ids)} sequences and ids has {len(target_ids)}; give one "
                    "source for each target"
                )
            encoder_inputs = Inputs(source_ids, document_ids=check_mask(mask, source_ids))
            out: Tensor = network(Inputs(target_ids, source=encoder_inputs), tap=tap)
            return out
        if source is not None:
            raise UsageError(
                f"source= is for an encoder-decoder; this model is {self.config.family}-only, so leave it out"
            )
        has_choices = self.config.head.kind == "choice"
        checked = check_ids(ids, "ids", stack.vocab_size, self.device, choices=has_choices)
        document_ids = check_mask(mask, checked)
        types = None if token_type_ids is None else check_token_types(token_type_ids, checked, stack.token_types)
        shape = checked.shape[:2]
        has_choices = has_choices and checked.dim() == 3
        if has_choices:
            checked = checked.flatten(0, 1)
            document_ids, types = (None if t is None else t.flatten(0, 1) for t in (document_ids, types))
        out = network(Inputs(checked, document_ids=document_ids, token_type_ids=types), tap=tap)
        return out.view(shape) if has_choices else out

    @torch.no_grad()
    def hidden(self, ids: Ids, mask: Ids | None = None) -> Tensor:
        """The input of the head, (B, T, C); for an encoder-decoder, the output of the encoder."""
        checked = check_ids(ids, "ids", self._source_vocab_size, self.device)
        inputs = Inputs(checked, document_ids=check_mask(mask, checked))
        return self.network.encode(inputs).vectors if self.network.has_source else self.network.hidden(inputs)[0]

    def trace(
        self,
        text: str | tuple[str, str] | Sequence[int] | Inputs,
        target: str | Sequence[int] | None = None,
        *,
        sites: str | Iterable[str] | None = None,
        heads: Iterable[int] | None = None,
        edits: "Edit | Iterable[Edit]" = (),
        max_bytes: int | None = None,
    ) -> "Trace":
        """Run the model on one text, and record activations inside it.

        `m.trace("…")["decoder.0.pattern"]` is the attention pattern of layer 0, (heads, queries, keys). `sites` are
        glob patterns of the names in `qkv.blocks.tap`; "logits" is the output of the head. By default, the residual
        stream, the patterns and the logits are recorded. `heads` limits the heads of scores and patterns. For an
        encoder-decoder, `target` is the text that the decoder reads; by default, it is the model's own greedy output.
        `edits` change activations (see `qkv.inside.edits`). A trace larger than `max_bytes` (default: 2 GiB) is an
        error.
        """
        from qkv.tasks.run.trace import trace_text

        chosen = {"sites": sites, "heads": heads, "edits": edits, "max_bytes": max_bytes}
        options: dict[str, Any] = {key: value for key, value in chosen.items() if value is not None}
        return trace_text(self.network, self.tokenizer, self.config, text, target, **options)

    def look(
        self,
        text: str | tuple[str, str] | Sequence[int] | Inputs,
        target: str | Sequence[int] | None = None,
        *,
        layers: Iterable[int] | None = None,
        heads: Iterable[int] | None = None,
        beam: int = 4,
        max_tokens: int = 32,
        name: str = "model",
    ) -> "Look":
        """Gather what happens inside the model on one text. A notebook shows the result as a page; `.save` writes it.

        The page shows tokens, embeddings, attention, predictions after each layer, neurons, and, for a model that
        generates text, a beam search with `beam` beams and at most `max_tokens` tokens. `layers` and `heads` limit what
        is shown. `name` is the name of the model in the heading.
        """
        from qkv.inside.look.document import LookOptions
        from qkv.tasks.run.look import look_at_text

        shown = (None if layers is None else tuple(layers), None if heads is None else tuple(heads))
        options = LookOptions(model_name=name, layers=shown[0], heads=shown[1])
        search = None
        if self.config.head.kind == "lm" and beam > 1:
            search = GenerationOptions(beam=min(beam, self.config.stack.vocab_size), max_tokens=max_tokens)
        return look_at_text(self.network, self.tokenizer, self.config, text, target, options=options, search=search)

    def look_at_mask(
        self,
        texts: Sequence[str],
        targets: Sequence[str] = (),
        *,
        length: int | None = None,
        layers: Iterable[int] | None = None,
        name: str = "model",
    ) -> "Look":
        """Gather the masks of the model on packed texts, with the reason of each masked cell.

        The texts become the documents of one sequence, padded to `length` tokens. An encoder-decoder takes one target
        for each text, or none; without targets, only the mask of the encoder is shown.
        """
        from qkv.inside.look.document import LookOptions
        from qkv.tasks.run.look import look_at_mask

        options = LookOptions(model_name=name, layers=None if layers is None else tuple(layers))
        sides = (list(texts), list(targets))
        return look_at_mask(self.network, self.tokenizer, self.config, *sides, length=length, options=options)

    @overload
    def embed(
        self, texts: Iterator[str], *, pooling: Any = None, too_long: Any = "error", batch_size: int = 32
    ) -> Iterator[Tensor]: ...
    @overload
    def embed(self, texts: Any, *, pooling: Any = None, too_long: Any = "error", batch_size: int = 32) -> Tensor: ...

    @torch.no_grad()
    def embed(
        self,
        texts: Any,
        *,
        pooling: Literal["first", "last", "mean"] | None = None,
        too_long: Literal["error", "truncate"] = "error",
        batch_size: int = 32,
    ) -> Tensor | Iterator[Tensor]:
        """A vector for each text, (N, C); for one text, (C,); for an iterator of texts, a generator of vectors.

        A model of images, such as CLIP's, takes paths, bytes of files or Pillow images instead of texts.

        A model with an embedding head has its own pooling, which `pooling` overrides. Any other model needs `pooling`:
        the vector is the hidden state of the first or last token, or the mean of all. A text longer than the model can
        read is an error; with `too_long="truncate"`, an embedding head reads its start.
        """
        if self.network.has_source:
            task = find_task(self.config)
            raise UsageError(
                "m.embed needs an encoder-only or decoder-only model, but this model is an encoder-decoder, which "
                f"{task.description}; use {task.list_calls()}, or m.hidden(ids) for the output of its encoder"
            )
        if pooling is not None and pooling not in POOLINGS:
            raise UsageError(f"pooling = {pooling!r} is unknown; choose from {', '.join(POOLINGS)}")
        options = read(EmbedOptions, {"too_long": too_long}, notation=PYTHON)
        if self.config.head.kind != "embed" and pooling is None:
            raise UsageError(
                f"this model has a {self.config.head.kind} head and no embedding head; "
                'choose how to pool its hidden states: pooling="mean", "first" or "last"'
            )
        tokenizer = self._require_tokenizer("use .hidden(ids)")
        model = TextModel(self.network, tokenizer, self.config, batch_size=batch_size)
        if isinstance(texts, Iterator):

            def embed(batch: Sequence[str]) -> Any:
                return self.embed(batch, pooling=pooling, too_long=too_long, batch_size=batch_size)

            return stream_batches(embed, texts, batch_size)
        is_file = reads_files(self.config)
        is_single = isinstance(texts, str) or (is_file and not isinstance(texts, list | tuple))
        if not is_single:
            check_list(texts, "texts must be a text or a list of texts")
        listed: list[Any] = [texts] if is_single else list(texts)
        if is_file:
            EMBED.check_inputs(self.config, listed)
        for number, text in enumerate(listed):
            if not isinstance(text, str) and not is_file:
                raise UsageError(f"texts[{number}] is {describe_value(text)}, not a text; give a list of strings")
        vectors, lengths = embed_texts(model, listed, pooling=pooling, longest_first=False)
        if pooling is None:
            handle_long_texts(listed, lengths, self.config, options)
        return vectors[0] if is_single else vectors

    @overload
    def generate(self, prompts: str, **options: Any) -> GenerationResult: ...
    @overload
    def generate(self, prompts: Sequence[str] | Sequence[int] | Sequence[Sequence[int]], **options: Any) -> Any: ...

    def generate(
        self,
        prompts: str | Inputs | Sequence[str | Inputs] | Sequence[int] | Sequence[Sequence[int]],
        *,
        max_tokens: int = 64,
        beam: int = 1,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        draft: "Model | decode.Draft | str | Path | None" = None,
        on_text: decode.OnText | None = None,
        edits: "Edit | Iterable[Edit]" = (),
        **options: Any,
    ) -> GenerationResult | list[GenerationResult]:
        """Generate text. A decoder continues prompts; an encoder-decoder produces a target for each source.

        `prompts` is a text, a list of token ids, `Inputs` of one sequence, or a list of these. One prompt gives one
        result, and a list gives a list. `options` are further fields of `qkv.decode.GenerationOptions`.
        `on_text(index, text)` is called with each new chunk of text and the index of its prompt.

        `draft` turns on speculative decoding. It is a smaller model with the same family and tokenizer (a `Model` or
        its folder), or "lookup" for prompt look-up decoding. The generated text is the same as without a draft.

        `edits` change activations inside the model while it generates (see `qkv.inside.edits`).
        """
        prompts = as_list(prompts)
        if not isinstance(prompts, Inputs):
            check_list(prompts, "prompts must be a text, token ids, or a list of either")
        is_single = isinstance(prompts, str | Inputs) or (bool(prompts) and isinstance(prompts[0], Integral))
        listed: Any = [prompts] if is_single else prompts
        named = {"max_tokens": max_tokens, "beam": beam, "temperature": temperature, "top_p": top_p, "seed": seed}
        generation = make_generation_options({**named, "stop": stop, **options})
        if on_text is not None and not callable(on_text):
            raise UsageError(f"on_text must be callable as on_text(index, text), got {on_text!r}")
        ids = [self._encode_prompt(prompt) for prompt in listed]
        tap = None
        if edits != ():
            from qkv.inside import EditTap, check_edits

            if checked_edits := check_edits(self.config, edits):
                tap = EditTap(checked_edits)
                generation = replace(generation, tap=tap)
        results = decode.generate(self.network, ids, generation, self.tokenizer, on_text, draft=self._load_draft(draft))
        for problem in tap.unapplied() if tap is not None else ():
            log.warning(problem)
        return results[0] if is_single else results

    def _load_draft(self, draft: Any) -> Any:
        """The draft as `qkv.decode.generate` takes it: a folder is loaded, and a `Model` becomes its network."""
        if isinstance(draft, str | Path) and draft != "lookup":
            draft = load(draft, device=self.device)
        return draft.network if isinstance(draft, Model) else draft

    def generate_lines(
        self,
        lines: Sequence[str],
        *,
        batch_size: int = 16,
        progress: OnProgress | None = None,
        **options: Any,
    ) -> list[GenerationResult]:
        """Generate a result for each line, in batches of similar lengths. Empty lines have empty results."""
        if isinstance(lines, str) or not all(isinstance(line, str) for line in lines):
            raise UsageError(
                f"lines must be a list of texts, got a {type(lines).__name__}; for a single text give [text]"
            )
        if batch_size < 1:
            raise UsageError(f"batch_size must be >= 1, got {batch_size}")
        options["draft"] = self._load_draft(options.get("draft"))
        results = [GenerationResult("", [], 0.0, "end") for _ in lines]
        filled = [i for i, line in enumerate(lines) if line.strip()]
        for chosen in batches([len(lines[i]) for i in filled], batch_size, progress, longest_first=False):
            indices = [filled[i] for i in chosen]
            for i, result in zip(indices, self.generate([lines[i] for i in indices], **options), strict=True):
                results[i] = result
        return results

    def score(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        targets: str | Sequence[str] | Sequence[Sequence[int]],
    ) -> Any:
        """The log-probability of each token of a target, given its prompt or source.

        For one prompt and one target this is a list; for two lists it is a list of lists.
        """
        if isinstance(prompts, str) and isinstance(targets, str):
            return self.score([prompts], [targets])[0]
        if not all(isinstance(side, Sequence) and not isinstance(side, str) for side in (prompts, targets)):
            raise UsageError(
                "score takes one prompt and one target as texts, or two lists of equal length, "
                f"got a {type(prompts).__name__} and a {type(targets).__name__}"
            )
        if len(prompts) != len(targets):
            raise UsageError(f"{len(prompts)} prompts for {len(targets)} targets; give two lists of equal length")
        target_ids = [self._encode_target(target) if isinstance(target, str) else list(target) for target in targets]
        if not all(target_ids):
            raise UsageError(f"targets[{target_ids.index([])}] is empty, so it has no token to score; remove it")
        ids = [self._encode_prompt(prompt) for prompt in prompts]
        scores: list[list[TokenLogprob]] = decode.score(self.network, ids, target_ids)
        return scores

    def _encode_prompt(self, prompt: str | Inputs | Sequence[int]) -> list[int] | Inputs:
        """Encode a prompt, and check that its ids are in the vocabulary."""
        if isinstance(prompt, Inputs):
            check_ids(prompt.ids, "prompt", max(self._source_vocab_size, 1), self.device)
            return prompt
        prompt = as_list(prompt)
        if isinstance(prompt, str):
            ids = prompt_ids(self._require_tokenizer("give token ids"), self.config, prompt)
        elif isinstance(prompt, Sequence) and all(isinstance(i, Integral) for i in prompt):
            ids = [int(i) for i in prompt]
        else:
            raise UsageError(f"a prompt must be a text or a list of token ids (integers), got {prompt!r}")
        if ids:
            check_ids([ids], "prompt", self._source_vocab_size, self.device)
        return ids

    def _encode_target(self, text: str) -> list[int]:
        """Encode a target, and add the end token."""
        tokenizer = self._require_tokenizer("give token ids")
        return tokenizer.target.encode(text, add_special_tokens=False) + list(self.config.eos_token_ids[:1])

    def _require_tokenizer(self, alternative: str) -> Tokenizer:
        if self.tokenizer is None:
            raise QkvError(f"this model has no tokenizer, so it cannot encode text; {alternative}")
        return self.tokenizer

    def evaluate(
        self,
        data: Any,
        *,
        columns: Mapping[str, str] | None = None,
        format: str = "",
        limit: int = 0,
        metrics: Sequence[str] = (),
        resamples: int = DEFAULT_RESAMPLES,
        **options: Any,
    ) -> Evaluation:
        """Evaluate the model on files, a built-in dataset or a table in memory, as `qkv eval` does.

        `columns` maps fields to columns, `limit` is the size of a random sample of the records, and `resamples` is the
        number of bootstrap samples of the confidence intervals (0: none). The columns of a table without a header line
        are guessed; a note on the guess is logged, and is in `.notes` of the result. Other options are the fields of
        the task's `EvalOptions`, such as `beam`. `first.compare(second)` compares the evaluations of two
        models on the same data.
        """
        from qkv.tasks.evaluate import evaluate
        from qkv.tasks.evaluation_records import load_records

        task = find_task(self.config)
        notes: list[str] = []
        data = _save_if_table(data)
        records = load_records(task, data, columns=columns, format=format, max_records=limit, notes=notes)
        for note in notes:
            log.warning("%s: %s", data, note)
        chosen = {"metrics": metrics, "resamples": resamples, **options}
        result = evaluate(self.network, self.tokenizer, self.config, records, **chosen)
        return replace(result, notes=(*notes, *result.notes))

    def quantize(self, precision: "decode.WeightPrecision" = "int8") -> "Model":
        """Return a copy of the model for decoding on a CPU, with its linear layers in int8 or int4.

        This model is not changed. If "int4" leaves matrices in int8 because of their shape, the copy has a note on it.
        """
        from qkv.decode.cpu.quantize import int8_note

        network: Any = self.network  # Any, because the type checker does not know that the copy has the same class
        quantized = decode.quantize(network, precision)
        note = int8_note(network) if precision == "int4" else None
        notes = [*self.notes, *([note] if note else [])]
        return Model(self.config, quantized, self.tokenizer, notes, self.processor)

    def save(self, folder: str | Path, *, int8: bool = False) -> None:
        """Write a qkv model folder. `int8` stores the matrices in int8, in a quarter of the space of float32.

        Each row of a matrix has its own scale. A model that is loaded from such a folder has float32 weights again,
        which differ from the original ones by at most 1/254 of the largest weight of their row.
        """
        store.write_model(folder, self.config, self.network, self.tokenizer, processor=self.processor, int8=int8)

    def export(self, folder: str | Path, format: str = "", *, dtype: str = "f16") -> str:
        """Write a folder or a file for another library. Return the name of the class or architecture that it has.

        "hf", the default, is for transformers, vLLM and other readers of Hugging Face folders, "ctranslate2" for
        CTranslate2, "onnx" for onnxruntime, and "gguf" for llama.cpp: one file, whose name ends in .gguf. `dtype` is
        the type of its matrices: f32, f16, bf16, q8_0 or q4_0. All but the first need the optional package of that
        name, such as `qkv[gguf]`.
        """
        format = format or ("gguf" if Path(folder).suffix.lower() == ".gguf" else "hf")
        if format not in EXPORT_FORMATS:
            raise UsageError(f"unknown export format {format!r}; {suggest_name(format, EXPORT_FORMATS)}")
        return store.write_model(folder, self.config, self.network, self.tokenizer, format, dtype=dtype)

    def push(self, name: str, format: Literal["qkv", "hf"] = "qkv", *, private: bool = False, card: str = "") -> str:
        """Upload the model to a hub as `owner/name`, and return its address. This needs `qkv[hub]` and a token.

        The repository is created if it does not exist. `format` is "qkv", or "hf" for a folder that transformers can
        load. `card` replaces the model card.
        """
        from qkv.store.push import push_folder

        def write(folder: Path) -> None:
            parts = (self.config, self.network, self.tokenizer, format)
            store.write_model(folder, *parts, processor=self.processor if format == "qkv" else None)
            if card:
                (folder / "README.md").write_text(card, encoding="utf-8")

        return push_folder(name, write, private=private)

    @property
    def _source_vocab_size(self) -> int:
        return (self.config.encoder or self.config.stack).vocab_size
