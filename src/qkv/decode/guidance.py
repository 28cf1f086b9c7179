"""Classifier-free guidance (Ho & Salimans 2022): strengthen what a prompt changes.

    guided logits = logits without the prompt + guidance × (logits with the prompt − logits without it)

The model was trained with and without prompts. Each prompt runs beside one that says nothing, and both get the same
tokens.

N prompts, V vocabulary
"""

from collections.abc import Sequence

import torch

from qkv.decode.filters import make_filters
from qkv.decode.options import GenerationOptions
from qkv.decode.runner import make_runner
from qkv.decode.sampling import draw_uniforms, make_generators
from qkv.decode.selection import TokenSelector, unpack_step_output
from qkv.models import Network
from qkv.models.runtime import eval_mode


def generate_guided(
    network: Network,
    prompts: Sequence[Sequence[int]],
    empty: Sequence[Sequence[int]],
    options: GenerationOptions,
    guidance: float,
) -> list[list[int]]:
    """Exactly `options.max_tokens` tokens after each prompt. `empty` are the prompts that say nothing, one for each."""
    count = len(prompts)
    with eval_mode(network):
        runner = make_runner(network, [*prompts, *empty], options)
        selector = TokenSelector(make_filters(options, (), runner.tokens.shape[1]))
        generators = make_generators(options.seed, count) if options.temperature > 0 else []
        logits, chosen = runner.prefill(), []
        for number in range(options.max_tokens):
            guided = logits[count:] + guidance * (logits[:count] - logits[count:])  # (N, V)
            uniforms = draw_uniforms(generators).to(guided.device) if generators else None
            output = selector(guided, runner.tokens[:count], uniforms)
            for error in (error for _, error in unpack_step_output(output) if error is not None):
                raise error
            chosen.append(output[:, 0].long())
            if number + 1 < options.max_tokens:
                logits = runner.step(chosen[-1].repeat(2))
    return torch.stack(chosen, dim=1).tolist()
