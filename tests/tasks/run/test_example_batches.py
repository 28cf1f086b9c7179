"""Examples laid out for a network: what is said at labels is what the whole network says there."""

import numpy as np
import pytest
import task_models
import torch

import qkv
from qkv.blocks import HeadConfig, Inputs, StackConfig
from qkv.data.objectives import IGNORE_INDEX, FlatExamples
from qkv.models import Config, build
from qkv.tasks.run.example_batches import ExampleBatches
from qkv.tasks.text_model import TextModel


@pytest.mark.parametrize("family", ["encoder", "decoder"])
@pytest.mark.parametrize("token_types", [0, 2])
def test_logits_at_labels_are_those_of_all_positions(family: str, token_types: int) -> None:
    torch.manual_seed(0)
    stack = StackConfig(
        vocab_size=30, width=16, layers=2, heads=2, ffn_width=32, token_types=token_types if family == "encoder" else 0
    )
    head = HeadConfig(kind="mlm" if family == "encoder" else "lm", outputs=30)
    network = build(Config(**{family: stack}, head=head), dtype=torch.float64).eval()
    random = np.random.default_rng(1)
    lengths = np.array([5, 3, 7])
    ids, kinds = random.integers(1, 30, 15), random.integers(0, 2, 15)
    labels = np.where(random.random(15) < 0.4, ids, IGNORE_INDEX)
    laid = ExampleBatches(
        TextModel(network, None, network.config),
        FlatExamples(lengths, ids, {"tokens": labels}, token_type_ids=kinds),
        pad_token_id=0,
    )
    seen: list[int] = []
    blocks = (network.encoder if family == "encoder" else network.decoder).blocks
    blocks[-1].ffn.register_forward_hook(lambda _, __, out: seen.append(out.numel() // out.shape[-1]))
    with torch.no_grad():
        ((logits, wanted),) = laid.labelled_logits([2, 0, 1])
        assert seen == [len(wanted)], "the last block works for these alone"
        begin = np.cumsum(lengths) - lengths
        rows = []
        for row in (2, 0, 1):
            part = slice(begin[row], begin[row] + lengths[row])
            types = torch.from_numpy(kinds[part])[None] if family == "encoder" and token_types else None
            said = network(Inputs(torch.from_numpy(ids[part])[None], token_type_ids=types))[0]
            rows.append(said[torch.from_numpy(labels[part] != IGNORE_INDEX)])
    torch.testing.assert_close(logits, torch.cat(rows), rtol=1e-10, atol=1e-12)
    expected = [labels[begin[row] : begin[row] + lengths[row]] for row in (2, 0, 1)]
    assert wanted.tolist() == [label for row in expected for label in row if label != IGNORE_INDEX]


def test_examples_are_padded_on_the_right() -> None:
    network = task_models.encoder(qkv.HeadConfig(kind="tag", outputs=3)).network
    examples = FlatExamples(np.array([3, 1, 0]), np.array([5, 6, 7, 8]))
    batched = ExampleBatches(TextModel(network, None, network.config), examples, pad_token_id=9)
    assert batched.inputs([0, 1, 2]).ids.tolist() == [[5, 6, 7], [8, 9, 9], [9, 9, 9]]
    assert batched.hidden([0, 1, 2])[1].document_ids.tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]
