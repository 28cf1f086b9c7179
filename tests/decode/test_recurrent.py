"""Recurrent models decode on the reference path: greedily and by beam search as a full forward pass for every token."""

import pytest
import torch
from decode_models import END, START, slow_greedy
from decode_models import tiny as transformer

from qkv.blocks import HeadConfig, StackConfig
from qkv.decode import Engine, GenerationOptions, generate, quantize, score
from qkv.decode import runner as run
from qkv.decode.backend import BACKENDS, REFERENCE, choose_backend
from qkv.decode.options import length_divisor
from qkv.errors import QkvError, UsageError
from qkv.models import Config, Network, build

KINDS = ["rnn", "gru", "lstm"]
PROMPTS = [[3, 4, 5, 6], [7], [8, 9]]


def tiny(family: str, kind: str = "lstm", vocab: int = 12, **choices: str) -> Network:
    """A random model in float64, whose next token depends on what came before."""
    stack = StackConfig(vocab_size=vocab, width=16, layers=2, block=kind, init_std=1.0, **choices)  # type: ignore[arg-type]
    sides = {side: stack for side in ("encoder", "decoder") if family in (side, "seq2seq")}
    torch.manual_seed(1)
    head = HeadConfig(kind="lm", outputs=vocab)
    config = Config(**sides, head=head, decoder_start_token_id=START, eos_token_ids=(END,))  # type: ignore[arg-type]
    network = build(config, dtype=torch.float64).eval()
    with torch.no_grad():
        network.head.out.weight.mul_(3.0)  # type: ignore[union-attr]
        for name, parameter in network.named_parameters():
            if name.startswith(("encoder", "decoder")):
                parameter.mul_(3.0)
    return network


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_no_fast_path_supports_recurrence(family: str) -> None:
    """The fast paths of a GPU are asked here as well, without a GPU."""
    network = tiny(family)
    assert [one for one in BACKENDS if one.supports_network(network)] == [REFERENCE]  # type: ignore[arg-type]


@pytest.mark.parametrize("attention", ["additive", "none"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_greedy_is_the_slow_loop(family: str, kind: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny(family, kind, recurrent_attention=attention)
    assert choose_backend(network, GenerationOptions()) is REFERENCE  # type: ignore[arg-type]
    expected = [slow_greedy(network, prompt, 9) for prompt in PROMPTS]
    assert [r.ids for r in generate(network, PROMPTS, GenerationOptions(max_tokens=9))] == expected
    assert len({tuple(ids) for ids in expected}) > 1, "a model that always says the same would pass by accident"
    monkeypatch.setattr(run, "MAX_PREFILL_TOKENS", {"cpu": 2})
    assert [r.ids for r in generate(network, PROMPTS, GenerationOptions(max_tokens=9))] == expected


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
@pytest.mark.parametrize("alpha", [-1.0, 0.6])
def test_a_beam_with_room_for_every_path_finds_the_best_of_all(family: str, alpha: float) -> None:
    vocab, prompt = 5, [3, 4, 2]
    network = tiny(family, vocab=vocab)
    options = GenerationOptions(max_tokens=2, beam=vocab, length_penalty=alpha, num_return_sequences=vocab)
    found = generate(network, [prompt], options)[0]
    others = [token for token in range(vocab) if token != END]
    sequences = [[END]] + [[t, END] for t in others] + [[t, u] for t in others for u in others]
    scored = score(network, [prompt] * len(sequences), sequences)
    values = [sum(t.logprob for t in tokens) / length_divisor(options, len(tokens)) for tokens in scored]
    best = sorted(zip(values, sequences, strict=True), reverse=True)
    assert [found.score, *(r.score for r in found.alternatives)] == pytest.approx([v for v, _ in best[:vocab]])
    assert found.ids + ([END] if found.finish_reason == "end" else []) == best[0][1]


@pytest.mark.parametrize("options", [{"beam": 3}, {"temperature": 1.0, "seed": 3, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_a_batch_of_unequal_prompts_is_each_alone(family: str, options: dict[str, float]) -> None:
    network, call = tiny(family), GenerationOptions(max_tokens=7, **options)  # type: ignore[arg-type]
    together = generate(network, PROMPTS, call)
    alone = [generate(network, [prompt], call)[0] for prompt in PROMPTS]
    count = 1 if "seed" in options else 3  # each sequence of a batch has its own random numbers
    assert [(r.ids, r.finish_reason) for r in together[:count]] == [(r.ids, r.finish_reason) for r in alone[:count]]
    for prompt, result in zip(PROMPTS, together, strict=True):
        ids = result.ids + ([END] if result.finish_reason == "end" else [])
        total = sum(t.logprob for t in score(network, [prompt], [ids])[0])
        divisor = length_divisor(call, len(ids)) if call.beam > 1 else 1.0
        assert result.score == pytest.approx(total / divisor)


def test_what_needs_a_transformer_is_refused() -> None:
    network = tiny("decoder")
    with pytest.raises(UsageError, match="a draft needs a Transformer"):
        generate(network, PROMPTS, GenerationOptions(), draft="lookup")
    with pytest.raises(UsageError, match="the draft keeps a state"):
        generate(transformer("decoder"), PROMPTS, GenerationOptions(), draft=network)
    with pytest.raises(UsageError, match="the engine needs a model that only keeps keys and values"):
        Engine(network)
    with pytest.raises(QkvError, match="int8 is for Transformers"):
        quantize(network)  # type: ignore[type-var]
