"""Between two steps: what is chosen, what is told of it, and what cannot be."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from decode_models import END, run_backend, tiny

from qkv.blocks import HeadConfig, StackConfig
from qkv.decode import Engine, GenerationOptions, generate
from qkv.decode.backend import GPU_GREEDY
from qkv.decode.sampling import sample_by_inverse_cdf
from qkv.decode.selection import TokenSelector, token_logprobs, unpack_step_output
from qkv.errors import QkvError
from qkv.models import Config, build
from qkv.tasks.run.generate import generate_batched
from qkv.tasks.text_model import TextModel
from qkv.text import Tokenizer

LOGITS = torch.tensor([[0.0, 2.0, 1.0, -1.0], [3.0, 0.0, 0.0, float("-inf")]], dtype=torch.float64)
TOKENS = torch.zeros(2, 1, dtype=torch.long)


def test_what_is_told_is_the_log_probability_before_the_filters() -> None:
    def forbid(logits: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return logits.index_fill(1, torch.tensor([0, 1]), float("-inf"))

    (one, no), (other, none) = unpack_step_output(TokenSelector([forbid], num_logprobs=2)(LOGITS, TOKENS, None))
    assert (no, none) == (None, None)
    assert (one.id, other.id) == (2, 2)
    exact = LOGITS.log_softmax(-1)
    assert one.logprob == pytest.approx(float(exact[0, 2]), abs=1e-12)
    assert one.alternatives == pytest.approx({1: float(exact[0, 1]), 2: float(exact[0, 2])}, abs=1e-12)
    assert list(one.alternatives) == [1, 2], "the likeliest first"


@pytest.mark.parametrize("numbers", [None, torch.tensor([0.5, 0.5], dtype=torch.float64)])
def test_a_row_that_may_say_nothing_is_told_beside_the_others(numbers: torch.Tensor | None) -> None:
    def forbid(logits: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.full_like(logits[0], float("-inf")), logits[1]])

    (_, trouble), (fine, none) = unpack_step_output(TokenSelector([forbid])(LOGITS, TOKENS, numbers))
    assert "every token is forbidden" in str(trouble)
    assert none is None
    assert fine.id == 0


def test_numbers_choose_by_the_cumulative_distribution() -> None:
    """Each token for as many of equally spread numbers as its probability says; 1 is never reached."""
    count = 20_000
    numbers = torch.arange(count, dtype=torch.float64) / count
    drawn = sample_by_inverse_cdf(LOGITS[:1].expand(count, -1), numbers)
    shares = torch.bincount(drawn, minlength=4) / count
    torch.testing.assert_close(shares.double(), LOGITS[0].softmax(-1), atol=2 / count, rtol=0)
    assert drawn.tolist() == sorted(drawn.tolist())


def broken(token: int | slice = slice(None), value: float = float("nan")) -> Any:
    network = deepcopy(tiny("decoder"))
    with torch.no_grad():
        network.head.out.weight[token] = value
    return network


def test_speculation_search_and_static_steps_tell_of_it_too() -> None:
    network, options = broken(), GenerationOptions(max_tokens=4)
    with pytest.raises(QkvError, match=r"not numbers \(NaN\)"):
        generate(network, [[3, 4, 5]], options, draft="lookup")
    with pytest.raises(QkvError, match=r"not numbers \(NaN\)"):
        generate(network, [[3, 4, 5]], GenerationOptions(max_tokens=4, beam=3))
    with pytest.raises(QkvError, match=r"not numbers \(NaN\)"):
        generate(network, [[3, 4, 5]], GenerationOptions(max_tokens=4, beam=3, no_repeat_ngram_size=3))
    with torch.inference_mode(), pytest.raises(QkvError, match=r"not numbers \(NaN\)"):
        run_backend(GPU_GREEDY, network, [[3, 4, 5]], options)


def test_nothing_is_shown_in_a_step_that_fails() -> None:
    shown: list[int] = []

    def forbid(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return logits if tokens.shape[1] == 2 else logits.index_fill(0, torch.tensor([1]), float("-inf"))

    tokenizer = Tokenizer.train("byte", iter([]), vocab_size=260, special_tokens=["pad", "eos"])
    stack = StackConfig(vocab_size=tokenizer.vocab_size, width=16, layers=1, heads=2, ffn_width=16, position="rotary")
    network = build(Config(decoder=stack, head=HeadConfig(kind="lm", outputs=tokenizer.vocab_size))).eval()
    ascii_alone = GenerationOptions(max_tokens=4, logits_processors=(only_letters, forbid))
    with pytest.raises(QkvError, match="forbidden"):
        generate(network, [[70, 71], [72, 73]], ascii_alone, tokenizer, lambda row, _: shown.append(row))
    assert shown == [0, 1], "of the first step"


def only_letters(logits: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Bytes that are characters by themselves."""
    return logits.index_fill(1, torch.tensor([*range(60), *range(100, logits.shape[1])]), float("-inf"))


DRAWN = {"temperature": 1.0, "seed": 1}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("token", [5, slice(None)])
@pytest.mark.parametrize(
    "options", [GenerationOptions(max_tokens=4, **asked) for asked in ({}, DRAWN, DRAWN | {"top_k": 3})]
)
def test_a_model_whose_scores_are_no_numbers_is_told_of(options: GenerationOptions, token: int, value: float) -> None:
    """One token's are enough: probabilities are shares of a sum over all."""
    network = broken(token, value)
    with pytest.raises(QkvError, match=r"not numbers \(NaN\).*damaged"):
        generate(network, [[3, 4, 5]], options)
    engine = Engine(network, max_sequences=2, num_pages=20, page_size=4)
    request = engine.submit([3, 4, 5], options)
    with pytest.raises(QkvError, match=r"not numbers \(NaN\)"):
        engine.result(request)
    assert engine.page_pool.num_available == 20


def test_given_tokens_have_the_log_probabilities_of_a_softmax() -> None:
    found = token_logprobs(LOGITS, torch.tensor([3, END]), 0)
    assert [one.logprob for one in found] == pytest.approx(
        [float(LOGITS[0].log_softmax(-1)[3]), float(LOGITS[1].log_softmax(-1)[END])], abs=1e-12
    )


def test_an_answer_that_is_lost_takes_no_other_along(caplog: pytest.LogCaptureFixture) -> None:
    """In an evaluation one source whose scores are no numbers counts as empty, whatever batch it was in."""
    tokenizer = Tokenizer.train("byte", iter([]), vocab_size=260, special_tokens=["pad", "eos"])
    stack = StackConfig(vocab_size=tokenizer.vocab_size, width=16, layers=1, heads=2, ffn_width=16, position="rotary")
    network = build(Config(decoder=stack, head=HeadConfig(kind="lm", outputs=tokenizer.vocab_size))).eval()
    with torch.no_grad():
        network.embedding.token.weight[90] = float("nan")
    prompts = [[70, 71], [72, 90], [73, 74, 75]]
    options = GenerationOptions(max_tokens=3, logits_processors=(only_letters,), suppress_tokens=(90,))
    alone = [generate(network, [prompt], options, tokenizer)[0].ids for prompt in (prompts[0], prompts[2])]
    with caplog.at_level("WARNING", logger="qkv"):
        found = generate_batched(TextModel(network, tokenizer, network.config, batch_size=3), prompts, options)
    assert [one.ids for one in found] == [alone[0], [], alone[1]]
    assert "1 of 3 results are empty" in caplog.text
