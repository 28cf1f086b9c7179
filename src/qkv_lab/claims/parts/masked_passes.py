"""A causal mask computes all positions in one pass; changing the keys for each position takes a pass for each token."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from qkv import Config, StackConfig, build
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

DIFFERENCE = "largest difference of the outputs"
PASSES = "passes, one after another"
FLOPS = "multiply-adds (millions)"
MASKED, PREFIXES, WITHOUT = "one pass with a mask", "a pass for each prefix", "one pass without a mask"


@dataclass(frozen=True)
class MaskedPassesSettings:
    """The width of random networks of one layer, and the numbers of tokens."""

    width: int = 64
    lengths: tuple[int, ...] = (8, 32, 128)


def run(experiment: Experiment) -> Iterator[Point]:
    """Compute the output at each position in one pass, and from each prefix alone."""
    settings = experiment.settings
    stack = StackConfig(
        vocab_size=64, width=settings.width, layers=1, heads=4, ffn_width=4 * settings.width, init_std=0.1
    )
    decoder, encoder = (
        build(config, dtype=torch.float64).eval() for config in (Config(decoder=stack), Config(encoder=stack))
    )
    encoder.load_state_dict({key.replace("decoder", "encoder"): value for key, value in decoder.state_dict().items()})
    for length in settings.lengths:
        ids = torch.randint(64, (1, length))

        def count(network: torch.nn.Module, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, float]:
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                last = [network.hidden(one)[0][0] for one in inputs]  # type: ignore[operator]
            out = last[0] if len(last) == 1 else torch.stack([one[-1] for one in last])
            return out, counter.get_total_flops() / 2e6

        expected, prefix_flops = count(encoder, [ids[:, : t + 1] for t in range(length)])
        found, flops = count(decoder, [ids])
        without, _ = count(encoder, [ids])
        yield Point(PASSES, MASKED, length, 1)
        yield Point(PASSES, PREFIXES, length, length)
        yield Point(FLOPS, MASKED, length, flops)
        yield Point(FLOPS, PREFIXES, length, prefix_flops)
        yield Point(DIFFERENCE, MASKED, length, max(float((found - expected).abs().max()), 1e-16))
        yield Point(DIFFERENCE, WITHOUT, length, float((without - expected).abs().max()))


def check(table: Table) -> list[Check]:
    """The outputs are the same, and the prefixes take more passes and more work."""
    lengths = [float(x) for x in table.xs(FLOPS)]
    same, other = (table.curve(DIFFERENCE, name).values() for name in (MASKED, WITHOUT))
    ratios = [table.mean(FLOPS, PREFIXES, x) / table.mean(FLOPS, MASKED, x) for x in lengths]
    return [
        Check(
            "one pass with a causal mask gives the outputs of all prefixes (difference below 1e-12); without a mask it "
            "does not (above 0.01)",
            max(same) < 1e-12 and min(other) > 0.01,
            f"difference {max(same):.0e} with the mask, {min(other):.2f} without",
        ),
        Check(
            "the prefixes take at least a quarter of the number of tokens times the work",
            all(ratio >= x / 4 for ratio, x in zip(ratios, lengths, strict=True)),
            ", ".join(f"{ratio:.1f} times with {x:.0f} tokens" for ratio, x in zip(ratios, lengths, strict=True)),
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attention

    x = torch.randn(1, 6, 8)
    one_pass = attention(x, x, x, is_causal=True)
    for t in (1, 3, 6):
        alone = attention(x[:, :t], x[:, :t], x[:, :t])[:, -1]  # only the keys of the past
        print(f"token {t}: the same output:", torch.allclose(one_pass[:, t - 1], alone, atol=1e-6))


CLAIM = Claim(
    name="masked-passes",
    chapter="parts",
    title="A causal mask computes all positions in one pass",
    quotes=(
        Quote(
            "masking makes attention to the past parallel; changing the set of keys at every step is inefficient",
            "lecture",
            "in our words",
        ),
    ),
    question="What does a causal mask save, compared with attention over the keys of each prefix?",
    method="A decoder of one layer with random weights computes the outputs of all tokens in one pass with a causal "
    "mask. An encoder with the same weights reads each prefix alone, and keeps the output of the last token. Torch "
    "counts the multiply-adds. A third run reads all tokens without a mask.",
    lesson="The mask removes the later keys of each query, so one pass equals a pass for each prefix. In training, "
    "all positions are computed at once; with prefixes, the keys of each token would be computed again for each later "
    "token. (While generating, a cache of keys and values avoids this; see kv-cache.)",
    limits="The passes over prefixes do not depend on each other, so they could run side by side; what they cannot "
    "avoid is the repeated work. In a deeper encoder, earlier tokens of a prefix would also see later ones, so its "
    "outputs are those of a decoder only in one layer. Times are not measured.",
    settings={
        "mini": MaskedPassesSettings(16, (4, 16)),
        "small": MaskedPassesSettings(),
        "full": MaskedPassesSettings(256, (8, 32, 128, 512)),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=FLOPS, x="tokens", log_x=True, log_y=True),
        Chart(measure=PASSES, x="tokens", log_x=True, log_y=True),
        Chart(measure=DIFFERENCE, x="tokens", log_x=True, log_y=True),
    ),
    example=example,
    is_deterministic=True,
)
