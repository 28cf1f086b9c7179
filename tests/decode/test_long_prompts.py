"""Long prompts: they are read in chunks with the same result, and are refused beyond a stated length."""

import sys

import pytest
import task_models
import torch
from decode_models import tiny

from qkv.decode import GenerationOptions, generate, runner
from qkv.errors import UsageError

generate_module = sys.modules["qkv.decode.generate"]


@pytest.mark.parametrize("position", ["rotary", "learned", "alibi", "sinusoidal"])
def test_a_prompt_read_in_chunks_gives_the_same_tokens(position: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny("decoder", position=position)
    prompts = [[3 + i % 5 for i in range(length)] for length in (1, 7, 8, 9, 23)]
    options = GenerationOptions(max_tokens=6, logprobs=2)
    whole = generate(network, prompts, options)
    monkeypatch.setattr(runner, "MAX_PREFILL_TOKENS", {"cpu": 4})
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


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_many_prompts_are_generated_in_batches_with_the_same_results(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = tiny(family)
    prompts = [[3 + (i * j) % 7 for j in range(1 + i % 4)] for i in range(12)]
    options = GenerationOptions(max_tokens=5, temperature=0.8, seed=3)
    whole = generate(network, prompts, options)
    sizes = []
    chosen = generate_module.choose_backend
    monkeypatch.setattr(generate_module, "MAX_CACHE_BYTES", 20_000)
    monkeypatch.setattr(
        generate_module, "choose_backend", lambda *a, **named: sizes.append(named["batch_size"]) or chosen(*a, **named)
    )
    batches = generate(network, prompts, options)
    assert len(sizes) > 1
    assert sum(sizes) == len(prompts)
    assert [one.ids for one in batches] == [one.ids for one in whole]


def test_streamed_text_has_the_index_of_its_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_module, "MAX_CACHE_BYTES", 1)
    model = task_models.seq2seq()
    texts: dict[int, str] = {}

    def collect(index: int, text: str) -> None:
        texts[index] = texts.get(index, "") + text

    results = model.generate(["the fox", "a dog", "Paris"], max_tokens=6, on_text=collect)
    assert [texts.get(index, "") for index in range(3)] == [result.text for result in results]
