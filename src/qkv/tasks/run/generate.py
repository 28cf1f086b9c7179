"""Generation for tasks and for `Model`: encode prompts, check options, and generate in batches of similar lengths."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.decode import GenerationOptions, GenerationResult, NonFiniteLogits, generate
from qkv.decode.result import FinishReason
from qkv.errors import UsageError, suggest_name
from qkv.models import Config
from qkv.models.runtime import eval_mode
from qkv.tasks.results import Result, Row
from qkv.tasks.run.example_batches import batches
from qkv.tasks.text_model import TextModel
from qkv.text import Tokenizer
from qkv.values import HIDDEN, OMIT_EMPTY


@dataclass(frozen=True)
class WordLink:
    """A word of the generated text, the source word that it is aligned with, and their characters."""

    source: Annotated[str, "The word of the source."]
    target: Annotated[str, "The word of the generated text."]
    source_start: Annotated[int, "The first character of the source word."]
    source_end: Annotated[int, "One past its last character."]
    target_start: Annotated[int, "The first character of the generated word."]
    target_end: Annotated[int, "One past its last character."]
    weight: Annotated[float, "The fraction of the generated word's dependence on the source that is due to this word."]


@dataclass(frozen=True, repr=False)
class GeneratedText(Result):
    """A text that the model generated: a translation, a summary, a continuation.

    A long source is read in parts, such as sentences; then `parts` has a result for each.
    """

    source: str = field(metadata=HIDDEN)
    text: str
    score: Annotated[float, "The log-probability; beam search divides it by a length divisor. The sum over all parts."]
    finish_reason: Annotated[FinishReason, "Why the generation ended: at EOS, at `max_tokens`, or at a `stop` text."]
    ids: Annotated[list[int], "The generated tokens."]
    alternatives: Annotated[list["GeneratedText"], "Other hypotheses, the best first."] = field(
        default_factory=list, metadata=OMIT_EMPTY
    )
    parts: Annotated[list["GeneratedText"], "The results of sentences or parts."] = field(
        default_factory=list, metadata=OMIT_EMPTY
    )
    alignment: Annotated[list[WordLink], "The source word of each word, if it was requested."] = field(
        default_factory=list, metadata=OMIT_EMPTY
    )

    def summary(self) -> str:
        """The text in one line."""
        return " ".join(self.text.splitlines())

    def body(self) -> str:
        """The text."""
        return self.text

    def rows(self) -> list[Row]:
        """The other hypotheses with their scores; then the other hypotheses of each part, with its number."""
        rows = [(f"{other.score:.3f}", other.summary()) for other in self.alternatives]
        of_parts = [(f"part {number}", *row) for number, part in enumerate(self.parts, 1) for row in part.rows()]
        return [*rows, *of_parts]

    def tables(self) -> list[list[Row]]:
        """The other hypotheses, and the alignment."""
        return [self.rows(), [(link.target, link.source, f"{link.weight:.2f}") for link in self.alignment]]

    @staticmethod
    def from_generation(source: str, result: GenerationResult) -> "GeneratedText":
        """Convert the result of `generate`."""
        others = [GeneratedText.from_generation(source, other) for other in result.alternatives]
        return GeneratedText(source, result.text, result.score, result.finish_reason, result.ids, others)


log = logging.getLogger("qkv")


def prompt_ids(tokenizer: Tokenizer, config: Config, text: str) -> list[int]:
    """The ids of a prompt. A decoder continues the prompt, so an EOS that the tokenizer adds is removed."""
    ids = tokenizer.encode(text)
    if config.encoder is None:
        while len(ids) > 1 and ids[-1] in config.eos_token_ids:
            ids.pop()
    return ids


def truncate_prompts(
    tokenizer: Tokenizer, config: Config, prompts: Sequence[list[int]], max_tokens: int
) -> tuple[list[list[int]], int]:
    """Prompts, truncated to leave room for `max_tokens` new tokens, and the maximum length of a prompt.

    As in training, the end of a source is truncated, and the special tokens after it stay.
    """
    stack = config.encoder if config.encoder is not None else config.stack
    if not stack.has_max_positions:
        return list(prompts), max(map(len, prompts), default=0)
    fit = max(1, stack.max_positions - (0 if config.encoder is not None else max_tokens))
    suffix = list(SpecialTokenTemplate.for_source(tokenizer).suffix) if config.encoder is not None else []
    kept = max(1, fit - len(suffix))
    return [prompt if len(prompt) <= fit else (prompt[:kept] + suffix)[:fit] for prompt in prompts], fit


def make_generation_options(options: Mapping[str, Any], also_known: Sequence[str] = ()) -> GenerationOptions:
    """Build `GenerationOptions` from options by name.

    A list becomes a tuple, and so does a single stop string or logits processor.
    """
    known = [option.name for option in fields(GenerationOptions)]
    for name in options:
        if name not in known:
            raise UsageError(f"unknown option {name!r}; {suggest_name(name, {*known, *also_known})}")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    if isinstance(values.get("stop"), str):
        values["stop"] = (values["stop"],)
    elif values.get("stop", ()) is None:
        values["stop"] = ()
    if callable(values.get("logits_processors")):
        values["logits_processors"] = (values["logits_processors"],)
    made = GenerationOptions(**values)
    made.check_values()
    return made


def generate_batched(
    model: TextModel, prompts: Sequence[Sequence[int]], options: GenerationOptions, limits: Sequence[int] = ()
) -> list[GenerationResult]:
    """Generate a result for each prompt, in order, in batches of similar lengths.

    `limits` are the `max_tokens` of each prompt, if they differ. Each result depends only on its own prompt. An empty
    prompt gives an empty result. A prompt whose logits are not finite also gives an empty result, with a warning, so
    that evaluating a diverged model does not abort training.
    """
    results = [GenerationResult("", [], 0.0, "end") for _ in prompts]
    filled = [i for i, prompt in enumerate(prompts) if prompt]
    num_failed = 0

    def generate_some(chosen: Sequence[int]) -> None:
        nonlocal num_failed
        try:
            limited = replace(options, max_tokens=limits[chosen[0]]) if limits else options
            found = generate(model.network, [prompts[i] for i in chosen], limited, model.tokenizer)
        except NonFiniteLogits:
            if len(chosen) == 1:
                num_failed += 1
                return
            for i in chosen:  # one by one, to find the prompts that fail
                generate_some([i])
            return
        for i, result in zip(chosen, found, strict=True):
            results[i] = result

    with eval_mode(model.network):
        for chosen in batches([len(prompts[i]) for i in filled], model.batch_size, model.progress):
            batch = [filled[i] for i in chosen]
            for limit in {limits[i] for i in batch} if limits else {0}:
                generate_some([i for i in batch if not limits or limits[i] == limit])
    if num_failed:
        log.warning("%d of %d results are empty: the model's logits were not finite (NaN)", num_failed, len(prompts))
    return results


def continue_texts(model: TextModel, texts: Sequence[str], values: Mapping[str, Any]) -> list[GeneratedText]:
    """Generate a result for each text, in order; `values` are the fields of `qkv.decode.GenerationOptions`.

    An empty text gives an empty result. A text longer than the model can read is an error. By default at most 64
    tokens are generated, or fewer if the model does not have that many positions.
    """
    tokenizer, config = model.tokenizer, model.config
    chosen = replace(make_generation_options(values, ("batch_size", "progress")), tap=model.tap)
    prompts = [prompt_ids(tokenizer, config, text) if text.strip() else [] for text in texts]
    limits: list[int] = []
    if "max_tokens" not in values:
        lengths = [1 if config.encoder is not None else len(prompt) for prompt in prompts]
        limits = [limit_new_tokens(config, chosen.max_tokens, length) for length in lengths]
    results = generate_batched(model, prompts, chosen, limits)
    return [GeneratedText.from_generation(text, result) for text, result in zip(texts, results, strict=True)]


def limit_new_tokens(config: Config, max_tokens: int, prompt_tokens: int = 1) -> int:
    """`max_tokens`, or fewer if the decoder does not have that many positions after the prompt."""
    stack = config.stack
    return max(1, min(max_tokens, stack.max_positions - prompt_tokens)) if stack.has_max_positions else max_tokens
