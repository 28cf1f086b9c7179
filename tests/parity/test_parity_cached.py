"""Decoding with a cache says what transformers says of the whole text at once.

One token at a time and in chunks of three, with prompts of unequal length
padded on either side, and with several targets (beams) for each source. In float64.
"""

import pytest
import torch
from reference_models import FLOAT64, Pair, apart, cases, padded, pair
from torch import Tensor

from qkv.blocks import Inputs

DECODERS = cases(kinds=("lm", "none"), families=("decoder",))
SEQ2SEQ = cases(kinds=("lm", "none"), families=("seq2seq",))
NEW = 3
"""How many tokens of each text are decoded after the prompt."""


def chunks(ids: Tensor, size: int) -> list[Tensor]:
    return list(ids.split(size, dim=1))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("case", DECODERS)
@torch.no_grad()
def test_a_decoder_in_chunks(case, size):
    two = pair(case)
    network = two.ours().network
    text, truth = two.texts[0], two.truth[0]
    # The cache starts too small on purpose, so that it must grow.
    cache = network.new_cache(2, 2)
    said = [network(chunk, cache=cache) for chunk in chunks(text.ids.expand(2, -1), size)]
    assert apart(torch.cat(said, dim=1), truth.expand(2, -1, -1)) < FLOAT64


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("case", SEQ2SEQ)
@torch.no_grad()
def test_an_encoder_and_decoder_in_chunks(case, size):
    two = pair(case)
    network = two.ours().network
    text, truth = two.texts[1], two.truth[1]
    memory = network.build_cross_cache(network.encode(text.source[None]))
    cache = network.new_cache(1, 2)
    said = [network(chunk, memory=memory, cache=cache) for chunk in chunks(text.ids[None], size)]
    assert apart(torch.cat(said, dim=1)[0], truth) < FLOAT64


def ragged(two: Pair, side: str) -> tuple[Tensor, Tensor, Tensor]:
    """Prompts of unequal length in one batch, their mask, and the tokens that follow."""
    prompts, mask = padded([text.ids[:-NEW] for text in two.texts], two.pad, side)
    return prompts, mask, torch.stack([text.ids[-NEW:] for text in two.texts])


def check_ragged(two: Pair, first: Tensor, mask: Tensor, rest: list[Tensor]) -> None:
    for i, truth in enumerate(two.truth):
        ours = torch.cat([first[i, mask[i] == 1], *(step[i] for step in rest)])
        assert apart(ours, truth) < FLOAT64


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", cases(kinds=("lm",), families=("decoder",)))
@torch.no_grad()
def test_prompts_of_unequal_length(case, side):
    two = pair(case)
    network = two.ours().network
    prompts, mask, new = ragged(two, side)
    cache = network.new_cache(len(prompts), 16)
    first = network(Inputs(prompts, document_ids=mask), cache=cache)
    check_ragged(two, first, mask, [network(step, cache=cache) for step in chunks(new, 1)])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", cases(kinds=("lm",), families=("seq2seq",)))
@torch.no_grad()
def test_sources_and_targets_of_unequal_length(case, side):
    two = pair(case)
    network = two.ours().network
    source, source_mask = padded([text.source for text in two.texts], two.pad, side)
    memory = network.build_cross_cache(network.encode(Inputs(source, document_ids=source_mask)))
    prompts, mask, new = ragged(two, side)
    cache = network.new_cache(len(prompts), 16)
    first = network(Inputs(prompts, document_ids=mask), memory=memory, cache=cache)
    check_ragged(two, first, mask, [network(step, memory=memory, cache=cache) for step in chunks(new, 1)])


@pytest.mark.parametrize("case", cases(kinds=("lm",), families=("seq2seq",)))
@torch.no_grad()
def test_beams_share_their_source(case):
    """Two targets for each of two sources: what each says alone in transformers."""
    two = pair(case)
    network = two.ours().network
    length = 4
    targets = [text.ids[:length] for text in (two.texts[0], two.texts[1])]
    source, mask = padded([two.texts[0].source, two.texts[2].source], two.pad, "right")
    memory = network.build_cross_cache(network.encode(Inputs(source, document_ids=mask)))
    cache = network.new_cache(4, length)
    beams = torch.stack(targets * 2)  # source 0: targets 0, 1; source 2: targets 0, 1
    said = torch.cat([network(step, memory=memory, cache=cache) for step in chunks(beams, 1)], dim=1)
    for row, (text, target) in enumerate([(0, 0), (0, 1), (2, 0), (2, 1)]):
        theirs = two.ask(input_ids=two.texts[text].source[None], decoder_input_ids=targets[target][None])
        assert apart(said[row], theirs[0]) < FLOAT64
