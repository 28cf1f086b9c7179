"""A small decoder that learns the facts of a world.

B batch, T tokens, V vocabulary
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks import HeadConfig, Inputs, StackConfig, Tap
from qkv.errors import UsageError
from qkv.inside.facts.world import VALUES, FactPrompt, FactWorld
from qkv.models import Config, Network, build
from qkv.text import Tokenizer


@dataclass(frozen=True)
class FactModel:
    """A decoder that knows the facts of a world, and its tokenizer, whose tokens are words."""

    network: Network
    tokenizer: Tokenizer

    def encode(self, prompts: Sequence[FactPrompt]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Token ids (B, T), padded on the right; the last position; the last token of the name; the answers: (B,)."""
        encoded = self.tokenizer.encode_batch([prompt.text for prompt in prompts])
        last = torch.tensor([len(ids) - 1 for ids in encoded])
        subject = torch.tensor([prompt.subject_end - 1 for prompt in prompts])
        answers = torch.tensor([self.token(prompt.fact.value) for prompt in prompts])
        return Inputs.from_sequences(encoded).ids, last, subject, answers

    def token(self, word: str) -> int:
        """The token id of a word."""
        ids = self.tokenizer.encode(word, add_special_tokens=False)
        if len(ids) != 1 or ids[0] == self.tokenizer.special_tokens.unk:
            raise UsageError(f"{word!r} is not a word of this world; choose a value of the same relation")
        return ids[0]

    def answer_logits(self, ids: Tensor, last: Tensor, tap: Tap | None = None) -> Tensor:
        """The logits after each prompt, (B, V). Right-padding needs no mask, because attention is causal."""
        x, _ = self.network.hidden(ids, tap=tap)
        return self.network.head.project(x[torch.arange(len(ids)), last])

    @torch.no_grad()
    def answers(self, prompts: Sequence[FactPrompt]) -> Tensor:
        """The most probable token after each prompt, (B,)."""
        ids, last, _, _ = self.encode(prompts)
        return self.answer_logits(ids, last).argmax(-1)

    def accuracy(self, prompts: Sequence[FactPrompt]) -> float:
        """The fraction of prompts that are answered correctly."""
        return float((self.answers(prompts) == self.encode(prompts)[3]).float().mean())


def train_fact_model(
    world: FactWorld,
    *,
    width: int = 64,
    layers: int = 3,
    steps: int = 500,
    batch_size: int = 256,
    lr: float = 3e-3,
    seed: int = 0,
) -> FactModel:
    """Train a decoder to answer all prompts of a world. This takes less than a minute on two CPU cores."""
    prompts = world.prompts()
    words = [prompt.text for prompt in prompts] + [word for values in VALUES.values() for word in values]
    tokenizer = Tokenizer.train("word", iter(words), 1000, special_tokens=["pad", "unk"], min_frequency=1)
    model = FactModel(build_fact_network(tokenizer.vocab_size, width, layers, seed), tokenizer)
    ids, last, _, answers = model.encode(prompts)
    trained = [parameter for parameter in model.network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randperm(len(ids), generator=generator)[:batch_size]
        loss = F.cross_entropy(model.answer_logits(ids[chosen], last[chosen]), answers[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.network.eval()
    return model


def build_fact_network(vocab_size: int, width: int, layers: int, seed: int) -> Network:
    """A decoder whose first layers see one token back, and whose last layer sees all tokens but has no MLP."""
    stack = StackConfig(
        vocab_size=vocab_size,
        width=width,
        layers=layers,
        heads=1,
        ffn_width=4 * width,
        position="rotary",
        sliding_window=1,
        sliding_window_layers=tuple(range(layers - 1)),
        init="scaled",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build(Config(decoder=stack, head=HeadConfig(kind="lm", outputs=vocab_size)))
    last_mlp = network.output_stack.blocks[-1].ffn
    last_mlp.requires_grad_(False)
    for parameter in last_mlp.down.parameters():  # type: ignore[union-attr]
        nn.init.zeros_(parameter)
    return network
