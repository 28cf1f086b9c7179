"""Greedy decoding: each step the likeliest token of a full forward pass; batches, caches and limits change nothing."""

from dataclasses import replace

import pytest
import torch
from decode_models import END, START, slow_greedy, tiny

import qkv
from qkv.blocks import Inputs
from qkv.decode import GenerationOptions, generate, score
from qkv.decode import runner as run
from qkv.errors import QkvError, UsageError
from qkv.models import Network, Seq2Seq


@pytest.mark.parametrize("position", ["rotary", "learned", "sinusoidal", "alibi", "t5", "none"])
@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_greedy_is_the_slow_loop_for_every_position_kind(family: str, position: str) -> None:
    network = tiny(family, position=position, seed=2)
    prompts = [[3, 4, 5, 6], [7], [8, 9]]
    expected = [slow_greedy(network, prompt, 9) for prompt in prompts]
    assert [r.ids for r in generate(network, prompts, GenerationOptions(max_tokens=9))] == expected
    assert len({tuple(ids) for ids in expected}) > 1, "a model that always says the same would pass by accident"


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
@pytest.mark.parametrize("beam", [1, 3])
def test_a_cache_that_grows_changes_nothing(family: str, beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny(family, position="rotary", seed=2)
    prompts, options = [[3, 4, 5, 6], [7], [8, 9]], GenerationOptions(max_tokens=9, beam=beam)
    wanted = [result.ids for result in generate(network, prompts, options)]
    monkeypatch.setattr(run, "MAX_PREALLOCATED_TOKENS", 2)
    assert [result.ids for result in generate(network, prompts, options)] == wanted


def test_many_tokens_cost_nothing_before_they_are_written() -> None:
    network = tiny("decoder", position="rotary", seed=2)

    def end_soon(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return logits.index_fill(-1, torch.tensor([END]), 1e9) if tokens.shape[1] > 6 else logits

    found = generate(network, [[3, 4, 5, 6]], GenerationOptions(max_tokens=10**12, logits_processors=(end_soon,)))[0]
    assert found.finish_reason == "end"


def test_of_a_prompt_the_last_block_thinks_about_the_end_alone() -> None:
    network, seen = tiny("decoder"), []
    network.decoder.blocks[-1].ffn.register_forward_hook(lambda _, __, out: seen.append(out.numel() // out.shape[-1]))
    generate(network, [[3, 4, 5, 6], [7, 8]], GenerationOptions(max_tokens=1))
    assert seen == [2], "one place of each row, not four"


def test_rows_that_end_leave_and_the_others_go_on(network: Network) -> None:
    prompts = [[a, b] for a in range(3, 10) for b in range(3, 6)]
    said = [set(r.ids) for r in generate(network, prompts, GenerationOptions(max_tokens=12))]
    rare = min(range(12), key=lambda token: abs(sum(token in ids for ids in said) - len(said) / 2))
    network.config = replace(network.config, eos_token_ids=(rare,))  # a token that about half of the rows say
    together = generate(network, prompts, GenerationOptions(max_tokens=12))
    assert {r.finish_reason for r in together} == {"end", "length"}, (
        "both kinds are needed for this test to say anything"
    )
    alone = [generate(network, [prompt], GenerationOptions(max_tokens=12))[0] for prompt in prompts]
    assert [(r.ids, r.finish_reason) for r in together] == [(r.ids, r.finish_reason) for r in alone]


def test_the_score_is_what_score_says(network: Network) -> None:
    for result in generate(network, [[3, 4, 5]], GenerationOptions(max_tokens=6)):
        ids = result.ids + ([END] if result.finish_reason == "end" else [])
        rescored = score(network, [[3, 4, 5]], [ids])[0]
        assert result.score == pytest.approx(sum(t.logprob for t in rescored), abs=1e-9)
        assert [t.logprob for t in result.logprobs] == pytest.approx([t.logprob for t in rescored], abs=1e-9)


def test_alternatives_are_the_likeliest(network: Network) -> None:
    result = generate(network, [[3, 4]], GenerationOptions(max_tokens=3, logprobs=4))[0]
    for entry in result.logprobs:
        assert len(entry.alternatives) == 4
        assert next(iter(entry.alternatives)) == entry.id  # greedy takes the first
        values = list(entry.alternatives.values())
        assert values == sorted(values, reverse=True)


def test_a_prefix_is_forced(network: Network) -> None:
    prefix = (7, 8)
    result = generate(network, [[3, 4]], GenerationOptions(max_tokens=4, prefix=prefix))[0]
    if isinstance(network, Seq2Seq):
        logits = network(Inputs(torch.tensor([[START, *prefix]]), source=Inputs(torch.tensor([[3, 4]]))))
    else:
        logits = network(torch.tensor([[3, 4, *prefix]]))
    assert result.ids[:1] == [int(logits[0, -1].argmax())] or result.finish_reason == "end"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"beam": 13}, "vocabulary; it must be at most 12"),
        ({"beam": 2, "num_return_sequences": 3}, "num_return_sequences"),
        ({"beam": 2, "temperature": 0.5}, "temperature"),
        ({"length_penalty": float("inf")}, "length_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"suppress_tokens": (99,)}, "99"),
        ({"stop": ("",)}, "stop"),
        ({"stop": (3,)}, "stop"),
        ({"logprobs": 50}, "logprobs"),
        ({"temperature": "0.5"}, "temperature = '0.5' must be a number"),
        ({"top_p": 1e-46, "temperature": 1.0}, "top_p = 1e-46 must be at least 1e-06"),
        ({"length_penalty": 1e299, "beam": 2}, "length_penalty = 1e\\+299 must be at most 10"),
        ({"length_penalty": -1e299, "beam": 2}, "length_penalty = -1e\\+299 must be at least -10"),
        ({"max_tokens": 10**20}, "max_tokens = 100000000000000000000 must be at most"),
        ({"top_p": None}, "top_p = None"),
        ({"seed": 0.5}, "seed = 0.5"),
        ({"suppress_tokens": ("a",)}, "suppress_tokens"),
        ({"prefix": (1.5,)}, "prefix"),
        ({"length_penalty_kind": "gmnt"}, "did you mean 'gnmt'"),
        ({"logits_processors": (3,)}, "logits_processors"),
        ({"logits_processors": len}, "logits_processors"),
        ({"suppress_tokens": 3}, "suppress_tokens"),
        ({"prefix": None}, "prefix"),
        ({"min_p": "0.1"}, "min_p"),
        ({"repetition_penalty": True}, "repetition_penalty"),
        ({"temperature": 10**400}, "temperature"),
        ({"seed": 2**64}, "seed"),
        ({"beam": True}, "beam"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(options: dict, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        generate(tiny("decoder"), [[3]], GenerationOptions(**options))


def test_lists_and_any_seed_that_torch_takes_will_do() -> None:
    options = GenerationOptions(
        max_tokens=3, suppress_tokens=[5], prefix=[4], logits_processors=[lambda logits, _: logits], stop=[]
    )
    wanted = GenerationOptions(max_tokens=3, suppress_tokens=(5,), prefix=(4,))
    assert generate(tiny("decoder"), [[3]], options)[0].ids == generate(tiny("decoder"), [[3]], wanted)[0].ids
    for seed in (-1, 2**64 - 1):
        generate(tiny("decoder"), [[3]], GenerationOptions(max_tokens=2, temperature=1.0, seed=seed))


def test_texts_beyond_the_positions_are_refused_not_cut() -> None:
    """Trap 26."""
    network = tiny("decoder", position="learned")  # 64 positions
    with pytest.raises(UsageError, match="64 positions"):
        generate(network, [[3], [3] * 60], GenerationOptions(max_tokens=5))
    assert generate(network, [[3] * 60], GenerationOptions(max_tokens=4))
    network = tiny("seq2seq", position="learned")
    with pytest.raises(UsageError, match=r"source 0.*64 positions"):
        generate(network, [[3] * 65], GenerationOptions(max_tokens=4))


def test_an_empty_prompt_is_refused(network: Network) -> None:
    with pytest.raises(UsageError, match=r"(prompt|source) 1 is empty"):
        generate(network, [[3], []], GenerationOptions(max_tokens=4))
    assert generate(network, [], GenerationOptions()) == []


def test_an_encoder_does_not_write() -> None:
    with pytest.raises(UsageError, match="its head 'mlm'"):
        qkv.new("bert-tiny").generate([3, 4])


def test_stop_texts_need_a_tokenizer(network: Network) -> None:
    with pytest.raises(QkvError, match="tokenizer"):
        generate(network, [[3]], GenerationOptions(stop=("x",)))
