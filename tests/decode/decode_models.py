"""Tiny models in float64, so that ties do not decide."""

from collections.abc import Sequence
from typing import Any

import torch

from qkv.blocks import HeadConfig, Inputs, StackConfig
from qkv.decode import GenerationOptions, GenerationResult
from qkv.decode.backend import Backend
from qkv.decode.loop import GenerationCall
from qkv.models import Config, Network, Seq2Seq, build

END, START = 1, 2


def tiny(family: str, vocab: int = 12, seed: int = 0, position: str = "rotary", spread: float = 1.0) -> Network:
    """A random model whose next token really depends on what came before."""
    stack = StackConfig(
        vocab_size=vocab, width=16, layers=2, heads=2, ffn_width=32, position=position, max_positions=64, init_std=0.3
    )
    head = HeadConfig(kind="lm", outputs=vocab)
    sides = {"decoder": {"decoder": stack}, "seq2seq": {"encoder": stack, "decoder": stack}}[family]
    torch.manual_seed(seed)
    network = build(
        Config(**sides, head=head, pad_token_id=0, decoder_start_token_id=START, eos_token_ids=(END,)),
        dtype=torch.float64,
    ).eval()
    with torch.no_grad():
        network.head.out.weight.mul_(4.0 * spread)
    return network


def drawn(seed: int, *shape: int) -> torch.Tensor:
    """The same random numbers for the same seed and shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def linear(inputs: int, outputs: int, seed: int = 0, *, bias: bool = True) -> torch.nn.Linear:
    """A linear map with random weights."""
    made = torch.nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters()):
            parameter.copy_(drawn(seed + number, *parameter.shape))
    return made


def run_backend(
    backend: Backend, network: Any, prompts: Sequence[Sequence[int]], options: GenerationOptions, **more: Any
) -> list[GenerationResult]:
    """What one backend generates, whether or not it would be chosen."""
    with torch.inference_mode():
        return list(backend.generate(GenerationCall(network, prompts, options, **more)))


def slow_greedy(network: Network, prompt: list[int], new: int) -> list[int]:
    """No cache, no batch: the whole text again for every token."""
    out: list[int] = []
    for _ in range(new):
        if isinstance(network, Seq2Seq):
            logits = network(Inputs(torch.tensor([[START, *out]]), source=Inputs(torch.tensor([prompt]))))
        else:
            logits = network(torch.tensor([[*prompt, *out]]))
        token = int(logits[0, -1].argmax())
        if token == END:
            break
        out.append(token)
    return out
