"""Next token: every token of every document is predicted once, from those before it."""

import numpy as np
import pytest
from synthetic_data import RAGGED, documents, parts, tokenizer

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.objectives import IGNORE_INDEX
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.stream.random_bits import EpochRng
from qkv.text import Tokenizer

ROLES = tokenizer().special_tokens


def windows_by_document(objective: CausalLMObjective, draw: EpochRng) -> dict[int, list[tuple[int, dict]]]:
    examples = np.arange(objective.num_examples(draw))
    record, first, _ = objective.windows.locate(examples, draw)
    found: dict[int, list[tuple[int, dict]]] = {}
    for one, begin, part in zip(record.tolist(), first.tolist(), parts(objective.build(examples, draw)), strict=True):
        found.setdefault(one, []).append((begin, part))
    return {one: sorted(windows, key=lambda window: window[0]) for one, windows in found.items()}


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("length", [1, 7, 32, 1000])
def test_documents_come_back_from_their_labels(length, shift):
    examples = documents(RAGGED)
    found = windows_by_document(
        CausalLMObjective(examples, tokenizer(), max_length=length, random_offset=shift), EpochRng(5, 3)
    )
    for number, size in enumerate(RAGGED):
        tokens = examples[number]["ids"].tolist()
        windows = found.get(number, [])
        said = [label for _, part in windows for label in part["tokens"]]
        shown = [token for _, part in windows for token in part["ids"]]
        assert said == ([*tokens, ROLES.eos] if size else [])
        assert shown == ([ROLES.bos, *tokens] if size else [])


def test_without_special_tokens_the_first_token_is_only_shown():
    plain = Tokenizer.train("byte", iter([]), vocab_size=256, special_tokens=[])
    examples = InMemoryExamples([{"ids": [10, 11, 12]}, {"ids": [9]}])
    objective = CausalLMObjective(examples, plain, max_length=8)
    built = parts(objective.build(np.arange(objective.num_examples(EpochRng(0))), EpochRng(0)))
    assert built == [{"ids": [10, 11], "tokens": [11, 12]}]
    assert objective.counts.empty == 1  # a single token has nothing to predict, and that is counted


def test_only_marked_tokens_are_learnt():
    examples = InMemoryExamples([{"ids": [10, 11, 12, 13, 14], "answer": [0, 0, 1, 1, 0]}])
    objective = CausalLMObjective(examples, tokenizer(), max_length=3, loss_mask_field="answer", add_bos_eos=False)
    built = parts(objective.build(np.arange(2), EpochRng(0)))
    assert built[0] == {"ids": [10, 11, 12], "tokens": [IGNORE_INDEX, 12, 13]}
    assert built[1] == {"ids": [13], "tokens": [IGNORE_INDEX]}
