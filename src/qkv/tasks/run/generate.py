"""Generation for tasks and for `Model`: encode prompts, check options, and generate in batches of similar lengths."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from qkv.decode import GenerationOptions, GenerationResult, NonFiniteLogits, generate
from qkv.errors import UsageError, suggest_name
from qkv.models import Config, Network
from qkv.models.runtime.eval_mode import eval_mode
from qkv.progress import OnProgress
from qkv.tasks.run.example_batches import batches
from qkv.text import Tokenizer

log = logging.getLogger("qkv")


def prompt_ids(tokenizer: Tokenizer, config: Config, text: str) -> list[int]:
    """The ids of a prompt. A decoder continues the prompt, so an EOS that the tokenizer adds is removed."""
    ids = tokenizer.encode(text)
    if config.encoder is None:
        while len(ids) > 1 and ids[-1] in config.eos_token_ids:
            ids.pop()
    return ids


def make_generation_options(options: Mapping[str, Any], also_known: Sequence[str] = ()) -> GenerationOptions:
    """Build `GenerationOptions` from options by name.

    A list becomes a tuple, and so does a single stop string or logits processor.
    """
    known = [option.name for option in fields(GenerationOptions)]
    for name in options:
        if name not in known:
            raise UsageError(f"unknown option {name!r}; {suggest_name(name, [*known, *also_known])}")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    if isinstance(values.get("stop"), str):
        values["stop"] = (values["stop"],)
    elif values.get("stop", ()) is None:
        values["stop"] = ()
    if callable(values.get("logits_processors")):
        values["logits_processors"] = (values["logits_processors"],)
    return GenerationOptions(**values)


def generate_batched(
    network: Network,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    options: GenerationOptions,
    batch_size: int,
    progress: OnProgress | None = None,
) -> list[GenerationResult]:
    """Generate a result for each prompt, in order, in batches of similar lengths.

    An empty prompt gives an empty result. A prompt whose logits are not finite also gives an empty result, with a
    warning, so that evaluating a diverged model does not abort training.
    """
    results = [GenerationResult("", [], 0.0, "end") for _ in prompts]
    filled = [i for i, prompt in enumerate(prompts) if prompt]
    num_failed = 0

    def generate_some(chosen: Sequence[int]) -> None:
        nonlocal num_failed
        try:
            found = generate(network, [prompts[i] for i in chosen], options, tokenizer)
        except NonFiniteLogits:
            if len(chosen) == 1:
                num_failed += 1
                return
            for i in chosen:  # one by one, to find the prompts that fail
                generate_some([i])
            return
        for i, result in zip(chosen, found, strict=True):
            results[i] = result

    with eval_mode(network):
        for chosen in batches([len(prompts[i]) for i in filled], batch_size, progress):
            generate_some([filled[i] for i in chosen])
    if num_failed:
        log.warning("%d of %d results are empty: the model's logits were not finite (NaN)", num_failed, len(prompts))
    return results


def limit_new_tokens(config: Config, max_tokens: int, prompt_tokens: int = 1) -> int:
    """`max_tokens`, or fewer if the decoder does not have that many positions after the prompt."""
    stack = config.stack
    return max(1, min(max_tokens, stack.max_positions - prompt_tokens)) if stack.has_max_positions else max_tokens
