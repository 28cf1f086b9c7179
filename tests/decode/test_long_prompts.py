"""Long prompts: they are read in chunks with the same result, and are refused beyond a stated length."""

import pytest
import torch
from decode_models import tiny

from qkv.decode import GenerationOptions, generate, runner
from qkv.errors import UsageError


@pytest.mark.parametrize("position", ["rotary", "learned", "alibi", "sinusoidal"])
def test_a_prompt_read_in_chunks_gives_the_same_tokens(position: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny("decoder", position=position)
    prompts = [[3 + i % 5 for i in range(length)] for length in (1, 7, 8, 9, 23)]
    options = GenerationOptions(max_tokens=6, logprobs=2)
    whole = generate(network, prompts, options)
    monkeypatch.setattr(runner, "MAX_PREFILL_TOKENS", 4)
    chunks = generate(network, prompts, options)
    assert [one.ids for one in chunks] == [one.ids for one in whole]
    torch.testing.assert_close(torch.tensor([one.score for one in chunks]), torch.tensor([one.score for one in whole]))


def test_a_prompt_far_beyond_the_model_is_refused_before_it_is_read() -> None:
    network = tiny("decoder")
    with pytest.raises(UsageError, match=r"prompt 1 has 1,000,000 tokens; .* reads at most 32,768"):
        generate(network, [[3], [3] * 10**6], GenerationOptions(max_tokens=2))


def test_a_source_far_beyond_the_model_is_refused_before_it_is_read() -> None:
    network = tiny("seq2seq")
    with pytest.raises(UsageError, match=r"source 0 has 70,000 tokens; .* reads at most 32,768"):
        generate(network, [[3] * 70_000], GenerationOptions(max_tokens=2))
