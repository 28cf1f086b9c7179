"""A document has the same outputs and the same gradients alone, padded on either side, and packed with others.

V vocabulary, n documents, T tokens
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv import Config, HeadConfig, StackConfig, build
from qkv.blocks import Inputs
from qkv.data.stream.pack import group_by_length, pack
from qkv.models import Network
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.corpus import standard_library
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

DIFFERENCE = "difference from documents alone (relative)"
PADDING = "padding (fraction of computed tokens)"
VOCAB = 50
ROUNDING = torch.finfo(torch.float64).eps
MASKED = ("padded right", "padded left", "packed")
UNMASKED = ("padded right, no mask", "padded left, no mask", "packed, no mask")


@dataclass(frozen=True)
class PaddingAndPackingSettings:
    """Random documents for the comparison of layouts; paragraphs of real text for the fraction of padding."""

    num_documents: int = 6
    max_length: int = 24
    num_paragraphs: int = 8192
    max_paragraph: int = 1024  # bytes; longer paragraphs are cut
    batch_size: int = 32


def run(experiment: Experiment) -> Iterator[Point]:
    """Differences of outputs and gradients by layout, and the padding of each layout."""
    settings = experiment.settings
    lengths = torch.randint(2, settings.max_length + 1, (settings.num_documents,)).tolist()
    documents = [torch.randint(1, VOCAB, (length,)) for length in lengths]
    targets = [torch.randint(0, VOCAB, (length,)) for length in lengths]
    for name, network in (("decoder", make_network("decoder")), ("encoder", make_network("encoder"))):
        parts = [
            read_documents(network, [document], [target], "packed")
            for document, target in zip(documents, targets, strict=True)
        ]
        alone = torch.cat([logits for logits, _ in parts]), torch.stack([gradient for _, gradient in parts]).sum(0)
        for layout in (*MASKED, *UNMASKED):
            found = read_documents(network, documents, targets, layout)
            for what, one, reference in zip(("logits", "gradients"), found, alone, strict=True):
                difference = (one - reference).norm() / reference.norm()
                yield Point(DIFFERENCE, f"{name}: {what}", layout, max(difference.item(), ROUNDING))
    for layout, fraction in padding_fractions(paragraph_lengths(settings), settings, experiment.seed).items():
        yield Point(PADDING, "paragraphs of Python's standard library", layout, fraction)


def make_network(family: str) -> Network:
    """A decoder or an encoder with random weights, in float64, that predicts a token at every position."""
    stack = StackConfig(vocab_size=VOCAB, width=32, layers=2, heads=4, ffn_width=64, position="rotary", init_std=0.2)
    head = HeadConfig(kind="lm" if family == "decoder" else "mlm", outputs=VOCAB, tied=True)
    return build(Config(**{family: stack}, head=head), dtype=torch.float64)  # type: ignore[arg-type]


def read_documents(
    network: Network, documents: Sequence[Tensor], targets: Sequence[Tensor], layout: str
) -> tuple[Tensor, Tensor]:
    """The logits of all tokens, one document after another (n, V), and the gradient of their summed loss."""
    ids, document_ids = lay_out(documents, layout)
    has_mask = layout in MASKED
    logits = network(Inputs(ids, document_ids=document_ids if has_mask else None))  # (B, T, V)
    if layout.startswith("packed"):
        logits = logits[0]
    else:
        logits = logits[document_ids > 0]
    network.zero_grad()
    F.cross_entropy(logits, torch.cat(list(targets)), reduction="sum").backward()
    gradients = [p.grad.flatten() for p in network.parameters() if p.grad is not None]
    return logits.detach(), torch.cat(gradients)


def lay_out(documents: Sequence[Tensor], layout: str) -> tuple[Tensor, Tensor]:
    """The token ids and document ids of a layout: one packed sequence, or one padded sequence for each document."""
    if layout.startswith("packed"):
        numbers = [torch.full_like(document, number) for number, document in enumerate(documents, start=1)]
        return torch.cat(list(documents))[None], torch.cat(numbers)[None]
    longest = max(map(len, documents))
    spaces = [longest - len(document) for document in documents]
    sides = [(space, 0) if "left" in layout else (0, space) for space in spaces]
    ids = torch.stack([F.pad(document, side) for document, side in zip(documents, sides, strict=True)])
    return ids, (ids > 0).long()  # documents have no token 0


def paragraph_lengths(settings: PaddingAndPackingSettings) -> np.ndarray:
    """The lengths in bytes of paragraphs of the standard library's sources."""
    files = (example["text"] for example in standard_library().examples("train"))
    paragraphs = (paragraph for text in files for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip())
    lengths = [len(paragraph.encode()) for paragraph in islice(paragraphs, settings.num_paragraphs)]
    return np.minimum(lengths, settings.max_paragraph)


def padding_fractions(lengths: np.ndarray, settings: PaddingAndPackingSettings, seed: int) -> dict[str, float]:
    """The fraction of padding in four layouts. The last two are values of `data.layout`."""
    shuffled = np.random.default_rng(seed).permutation(lengths)
    batches = [shuffled[i : i + settings.batch_size] for i in range(0, len(lengths), settings.batch_size)]
    budget = settings.batch_size * settings.max_paragraph
    _, starts, widths = group_by_length(shuffled[:, None], budget)
    packed = pack(shuffled[:, None], (settings.max_paragraph,), max_documents=settings.max_paragraph)
    computed = {
        "padded to the maximum": len(lengths) * settings.max_paragraph,
        "padded to the longest of a random batch": sum(len(batch) * batch.max() for batch in batches),
        "padded, batches of similar lengths": (np.diff(starts) * widths[:, 0]).sum(),
        "packed": packed.num_sequences * settings.max_paragraph,
    }
    return {layout: float(1 - lengths.sum() / positions) for layout, positions in computed.items()}


def check(table: Table) -> list[Check]:
    """With the mask all layouts agree up to rounding; without it they do not; packing has the least padding."""
    masked = [table.mean(DIFFERENCE, series, layout) for series in table.series(DIFFERENCE) for layout in MASKED]
    leaks = [table.mean(DIFFERENCE, series, layout) for series in table.series(DIFFERENCE) for layout in UNMASKED[1:]]
    right = [table.mean(DIFFERENCE, f"{family}: logits", UNMASKED[0]) for family in ("decoder", "encoder")]
    padding = table.curve(PADDING, table.series(PADDING)[0])
    return [
        Check(
            "with the mask, logits and gradients of all layouts agree with documents alone (relative difference "
            "below 1e-12, in float64)",
            max(masked) < 1e-12,
            f"largest difference {max(masked):.0e}",
        ),
        Check(
            "without the mask, left padding and packing change the result (relative difference above 1 %)",
            min(leaks) > 0.01,
            f"smallest difference {min(leaks):.0%}",
        ),
        Check(
            "without the mask, right padding is harmless in a decoder (below 1e-12) and not in an encoder (above 1 %)",
            right[0] < 1e-12 and right[1] > 0.01,
            f"logits differ by {right[0]:.0e} in the decoder and by {right[1]:.0%} in the encoder",
        ),
        Check(
            "packing leaves less than 2 % padding, and padding to the maximum more than half",
            padding["packed"] < 0.02 and padding["padded to the maximum"] > 0.5,
            "; ".join(f"{layout} {fraction:.2%}" for layout, fraction in padding.items()),
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    from qkv import Config, HeadConfig, StackConfig, build
    from qkv.blocks import Inputs

    stack = StackConfig(vocab_size=50, width=32, layers=2, heads=4, ffn_width=64, position="rotary", init_std=0.2)
    network = build(Config(decoder=stack, head=HeadConfig(kind="lm", outputs=50)), dtype=torch.float64)
    first, second = torch.randint(1, 50, (1, 5)), torch.randint(1, 50, (1, 7))
    packed = torch.cat([first, second], dim=1)
    document_ids = torch.tensor([[1] * 5 + [2] * 7])
    alone = network(second)
    print("with document ids:", (network(Inputs(packed, document_ids=document_ids))[:, 5:] - alone).abs().max().item())
    print("without:", (network(packed)[:, 5:] - alone).abs().max().item())


CLAIM = Claim(
    name="padding-and-packing",
    chapter="training",
    title="Padding and packing do not change the result",
    quotes=(
        Quote(
            "regardless of if you choose padding, or just feed actual sentence, it makes no difference to the output "
            "generated",
            "video",
            "with a padding mask",
        ),
        Quote("Padding Mask: Ignores [PAD] tokens during attention.", "mechanism"),
    ),
    question="Are the outputs and the gradients of a document the same alone, padded and packed, and what do the "
    "layouts cost?",
    method="A decoder and an encoder with random weights read the same documents one at a time, padded to the right, "
    "padded to the left, and packed into one sequence. All runs are in float64. The same layouts without a mask are "
    "the negative control. The second picture counts padding for paragraphs of Python's standard library, with one "
    "token for each byte.",
    lesson="Three things make the layouts equal: attention gives no weight to padding and to other documents, "
    "positions count from the start of each document, and the loss leaves out padding. In qkv, one rule covers the "
    "first two: every token has a document id and a position (`blocks/mask.py`). The note is right with these masks "
    "only. Without them, a decoder tolerates padding on the right, because the causal mask hides it. Everything else "
    "changes the result. The layouts differ in cost: padding is computed and thrown away. Packing avoids it, and so "
    "do batches of similar lengths.",
    limits="In float32 and bfloat16, layouts differ by rounding, because sums are taken in another order. Some "
    "models are pretrained on packed text without a document mask. They learn to ignore the other documents, and "
    "their outputs still depend on them.",
    settings={
        "mini": PaddingAndPackingSettings(num_paragraphs=1000),
        "small": PaddingAndPackingSettings(num_documents=32, max_length=64, num_paragraphs=8192),
        "full": PaddingAndPackingSettings(num_documents=64, max_length=128, num_paragraphs=32_768),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=DIFFERENCE, x="layout", log_y=True),
        Chart(measure=PADDING, x="layout"),
    ),
    example=example,
    is_deterministic=True,
)
