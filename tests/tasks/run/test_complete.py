"""Suggestions while a text is being typed: exact probabilities, consistent ranks, and kept keys and values."""

import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from task_models import decoder, model, parts_of, stack

import qkv
from qkv.blocks import SelfCache
from qkv.decode.constrained.token_bytes import TokenBytes
from qkv.errors import UsageError
from qkv.tasks.run.complete import Completer, copy_cache
from qkv.tasks.text_model import TextModel
from qkv.tasks.verbs.complete import Suggestion
from qkv.text import Tokenizer


def bpe_decoder() -> qkv.Model:
    texts = ["the quick brown fox jumps over the lazy dog", "the quiet queen quits"] * 20
    tokenizer = Tokenizer.train("byte-bpe", iter(texts), 300, special_tokens=["pad", "bos", "eos"], template="bos")
    roles, tower = tokenizer.special_tokens, stack(tokenizer)
    head = qkv.HeadConfig(kind="lm", outputs=tokenizer.vocab_size, tied=True)
    config = qkv.Config(decoder=tower, head=head, pad_token_id=roles.pad, eos_token_ids=(roles.eos,))
    return model(config, tokenizer)


def enumerate_continuations(made: qkv.Model, text: str, max_tokens: int) -> dict[str, float]:
    """The probabilities of all continuations, from all sequences of tokens that begin with the text."""
    network, tokenizer, config = parts_of(made)
    network.eval()
    prompt = Completer(TextModel(network, tokenizer, config)).split_prompt(text, 20)
    token_bytes = TokenBytes(tokenizer, config.stack.vocab_size).later_bytes
    live, total, ended = [(prompt.ids, b"", 0.0, 0)], 0.0, defaultdict[str, float](float)
    while live:
        with torch.no_grad():
            logprobs = [network(torch.tensor([ids]))[0, -1].double().log_softmax(-1).tolist() for ids, *_ in live]
        grown = []
        for (ids, spelled, logprob, num_new), row in zip(live, logprobs, strict=True):
            for token, more in enumerate(row):
                longer, probability = spelled + token_bytes[token], math.exp(logprob + more)
                is_typed = longer.startswith(prompt.typed)
                if not is_typed and not (token_bytes[token] and prompt.typed.startswith(longer)):
                    continue
                total += probability * (is_typed and not spelled.startswith(prompt.typed))
                added = longer[len(prompt.typed) :]
                count = num_new + bool(added)
                if not token_bytes[token] or b"\n" in added or count == max_tokens:
                    ended[added.decode("utf-8", "ignore").split("\n")[0]] += probability
                else:
                    grown.append(([*ids, token], longer, logprob + more, count))
        live = grown
    return {added: probability / (total or 1.0) for added, probability in ended.items() if added}


@pytest.mark.parametrize("text", ["the qu", "the lazy do", "the fox "])
def test_probabilities_are_those_of_all_sequences_of_tokens(text: str) -> None:
    made = bpe_decoder()
    expected = enumerate_continuations(made, text, max_tokens=2)
    everything = made.complete(text, top=100_000, max_tokens=2).suggestions
    assert {one.text: one.probability for one in everything} == pytest.approx(expected, rel=1e-3)
    found = made.complete(text, top=3, max_tokens=2).suggestions  # a search of 16 hypotheses may miss some spellings
    assert all(0 < one.probability < 1.001 * expected[one.text] for one in found)


@pytest.mark.parametrize("text", ["the qu", "the lazy do", "the fox "])
def test_three_suggestions_are_the_three_most_likely(text: str) -> None:
    made = decoder()  # a token is a character, so a text has one spelling
    expected = enumerate_continuations(made, text, max_tokens=2)
    best = sorted(expected, key=lambda added: -expected[added])[:3]
    found = made.complete(text, top=3, max_tokens=2).suggestions
    assert [one.text for one in found] == best
    assert [one.probability for one in found] == pytest.approx([expected[added] for added in best], rel=1e-3)


@pytest.mark.parametrize("make", [decoder, bpe_decoder])
def test_fewer_suggestions_are_the_first_of_more(make: Any) -> None:
    made = make()
    text = "the quick brown fox jumps over the lazy dog"
    for end in range(1, len(text), 3):
        eight = made.complete(text[:end], top=8, max_tokens=4).suggestions
        assert len(eight) == 8
        assert sum(one.probability for one in eight) <= 1
        for top in (1, 3):
            fewer = made.complete(text[:end], top=top, max_tokens=4).suggestions
            assert [one.text for one in fewer] == [one.text for one in eight[:top]]


@pytest.mark.parametrize("make", [decoder, bpe_decoder])
def test_suggestions_with_kept_keys_and_values_are_those_of_a_fresh_call(make: Any) -> None:
    made = make()
    made.network.eval()
    text = "the quick brown fox "
    for end in [*range(1, len(text)), 7, 3, 12]:  # typing, and deleting
        typed = text[:end]
        kept = made.complete(typed, top=2, max_tokens=3)
        fresh = qkv.Model(made.config, made.network, made.tokenizer).complete(typed, top=2, max_tokens=3)
        assert [one.text for one in kept.suggestions] == [one.text for one in fresh.suggestions]
        found, expected = ([one.probability for one in side.suggestions] for side in (kept, fresh))
        assert found == pytest.approx(expected, rel=1e-3)


def test_an_interrupted_call_and_other_weights_leave_no_old_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    made = decoder()
    made.complete("the lazy dog and runs")

    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("qkv.tasks.run.complete.next_logits", interrupt)
        with pytest.raises(KeyboardInterrupt):
            made.complete("the quick brown fox")
    fresh = qkv.Model(made.config, made.network, made.tokenizer).complete("the quick brown fox")
    assert made.complete("the quick brown fox") == fresh
    made.network.double()
    assert made.complete("the quick brown fox").suggestions


def test_a_word_may_be_finished_by_other_tokens() -> None:
    """The tokens of "qu" are not the first tokens of "quick": what was typed is spelled again."""
    made = bpe_decoder()
    word = made.tokenizer.encode(" quick", add_special_tokens=False)
    assert len(word) == 1
    completer = Completer(TextModel(*parts_of(made)))
    logits = torch.full((1, made.tokenizer.vocab_size), -5.0)
    logits[0, word[0]] = 5.0
    prompt = completer.split_prompt("the qu", 10)
    assert prompt.typed == b" qu"
    assert made.complete("the quick\n", max_tokens=2).suggestions
    with pytest.raises(UsageError, match="max_tokens = '4' must be an integer"):
        made.complete("the", max_tokens="4")
    with pytest.raises(UsageError, match="max_tokens is too large"):
        made.complete("the", max_tokens=1000)
    with torch.inference_mode():
        completer.read(prompt.ids)
        assert completer.search(logits, prompt.typed, 1, 1) == pytest.approx({"ick": 0.0}, abs=0.01)


def test_long_and_unknown_texts_are_completed() -> None:
    made = decoder()
    long = made.complete("the fox " * 50, max_tokens=2)
    assert len(long.suggestions) == 3
    assert len(long.summary()) < 60
    assert made.complete("the 猫", max_tokens=2).suggestions
    assert isinstance(made.complete("").suggestions[0], Suggestion)
    before = made.complete("the quick", max_tokens=2)
    with torch.no_grad():
        for parameter in made.network.parameters():
            parameter.mul_(-1.5)
    assert made.complete("the quick", max_tokens=2) != before  # keys and values of old weights are not used


def test_a_copy_of_a_cache_has_a_state_of_its_own() -> None:
    """The cache of a part that keeps a state, as the search copies it for each call."""
    network: Any = SimpleNamespace(
        new_cache=lambda *size: SelfCache(1, size[0], 1, size[1], 2, state_shapes={"h": (3,)})
    )
    source = network.new_cache(1, 8)
    source.states[0]["h"] = torch.ones(1, 3)
    copied = copy_cache(network, source, 4)
    assert torch.equal(copied.states[0]["h"], torch.ones(1, 3))
    copied.states[0]["h"] += 1
    assert torch.equal(source.states[0]["h"], torch.ones(1, 3))
