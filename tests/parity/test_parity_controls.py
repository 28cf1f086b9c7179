"""Negative controls: each choice that parity rests on, made wrongly on purpose, is seen by the same comparison.

The weights stay, one field of our config is changed to a value that another implementation got wrong (T5's scores
unscaled, BART's positions from row 2, the window, …). If a change made no difference the parity tests would prove
nothing about it.
"""

from dataclasses import replace

import pytest
import torch
from reference_models import FLOAT64, apart, exact, in_float64, pair

from qkv.blocks import Inputs
from qkv.models import build

STACK_MISTAKES = [
    # Positions
    ("roberta:RobertaForMaskedLM", "encoder", {"position_offset": 1, "max_positions": 30}),
    ("bart:BartForConditionalGeneration", "encoder", {"position_offset": 1, "max_positions": 32}),
    ("bart:BartForConditionalGeneration", "decoder", {"position_offset": 0, "max_positions": 33}),
    ("marian:MarianMTModel", "encoder", {"position": "sinusoidal"}),
    ("gpt_neox:GPTNeoXForCausalLM", "decoder", {"rotary_fraction": 0.5}),
    ("llama:LlamaForCausalLM", "decoder", {"rotary_scaling": None}),
    ("mistral-yarn:MistralForCausalLM", "decoder", {"rotary_scaling": None}),
    ("modernbert:ModernBertForMaskedLM", "encoder", {"rotary_base_sliding": 160_000.0}),
    ("t5:T5ForConditionalGeneration", "encoder", {"relative_max_distance": 128}),
    ("t5:T5ForConditionalGeneration", "decoder", {"relative_max_distance": 128}),
    # Who sees whom
    ("mistral:MistralForCausalLM", "decoder", {"sliding_window": 4}),
    ("mistral:MistralForCausalLM", "decoder", {"sliding_window": 0}),
    ("qwen2:Qwen2ForCausalLM", "decoder", {"sliding_window_layers": ()}),
    ("modernbert:ModernBertForMaskedLM", "encoder", {"sliding_window": 4}),
    ("modernbert:ModernBertForMaskedLM", "encoder", {"sliding_window_layers": (0, 1, 2)}),
    # Scales, norms and activations
    ("t5:T5ForConditionalGeneration", "encoder", {"score_scale": "sqrt"}),
    ("gpt2-unscaled-untied:GPT2LMHeadModel", "decoder", {"score_scale": "sqrt"}),
    ("gemma2:Gemma2ForCausalLM", "decoder", {"score_cap": 0.0}),
    ("bart:BartForConditionalGeneration", "decoder", {"embedding_scale": "sqrt"}),
    ("bart-scaled:BartForConditionalGeneration", "decoder", {"embedding_scale": "none"}),
    ("mbart:MBartForConditionalGeneration", "encoder", {"embedding_scale": "none"}),
    ("esm:EsmForMaskedLM", "encoder", {"embedding_scale": "none"}),
    ("esm:EsmForMaskedLM", "encoder", {"rotary_base": 10_000.0}),
    ("gpt_neox:GPTNeoXForCausalLM", "decoder", {"residual": "serial"}),
    ("gpt_neox-serial:GPTNeoXForCausalLM", "decoder", {"residual": "parallel"}),
    ("bert:BertForMaskedLM", "encoder", {"norm_eps": 1e-12}),
    ("bert:BertForMaskedLM", "encoder", {"feedforward": "gelu_tanh"}),
    ("t5-v1.1:T5ForConditionalGeneration", "decoder", {"feedforward": "geglu"}),
]
HEAD_MISTAKES = [
    ("t5:T5ForConditionalGeneration", {"scale": "none"}),
    ("t5-v1.1:T5ForConditionalGeneration", {"scale": "rsqrt"}),
    ("gemma2:Gemma2ForCausalLM", {"logit_cap": 0.0}),
    ("electra:ElectraForSequenceClassification", {"dense": "tanh"}),
    ("gpt2:GPT2ForSequenceClassification", {"pool": "first"}),
    ("modernbert-biased:ModernBertForSequenceClassification", {"pool": "first"}),
]


def answer(two, config):
    """What our network says with the same weights under another config."""
    network = build(config, dtype=torch.float64).eval()
    network.load_state_dict(two.ours().network.state_dict())
    text = two.texts[0]
    with torch.no_grad():
        if text.source is not None:
            return network(Inputs(text.ids[None], source=Inputs(text.source[None])))[0]
        types = None if text.types is None else text.types[None]
        return network(Inputs(text.ids[None], token_type_ids=types))[0]


def changes(case, **fields):
    return f"{case.split(':')[1]}-{'-'.join(f'{name}={value}' for name, value in fields.items())}"


@pytest.mark.parametrize(
    ("case", "side", "fields"), STACK_MISTAKES, ids=[changes(c, **f) for c, _, f in STACK_MISTAKES]
)
def test_a_mistake_in_a_stack_is_seen(case, side, fields):
    two = pair(case)
    wrong = replace(two.config, **{side: replace(getattr(two.config, side), **fields)})
    assert apart(answer(two, two.config), two.truth[0]) < FLOAT64
    assert apart(answer(two, wrong), two.truth[0]) > 100 * FLOAT64


@pytest.mark.parametrize(("case", "fields"), HEAD_MISTAKES, ids=[changes(c, **f) for c, f in HEAD_MISTAKES])
def test_a_mistake_in_a_head_is_seen(case, fields):
    two = pair(case)
    wrong = replace(two.config, head=replace(two.config.head, **fields))
    assert apart(answer(two, two.config), two.truth[0]) < FLOAT64
    assert apart(answer(two, wrong), two.truth[0]) > 100 * FLOAT64


@pytest.mark.parametrize("case", ["llama:LlamaForCausalLM", "modernbert:ModernBertModel", "t5:T5Model"])
def test_without_float64_tables_the_reference_itself_is_off(case):
    """Why the reference's own formulas are evaluated in float64: cast to float64 alone, it is not that exact."""
    two = pair(case)
    text = two.texts[0]
    inputs = {"input_ids": text.ids[None]}
    if text.source is not None:
        inputs = {"input_ids": text.source[None], "decoder_input_ids": text.ids[None]}
    with torch.no_grad():
        plain = in_float64(two.theirs)(**inputs)[0]
        with exact():
            careful = two.theirs64(**inputs)[0]
    assert FLOAT64 < apart(plain, careful) < 1e-4


def test_the_exact_reference_is_the_reference():
    """In float32 and under its exact evaluation, transformers says the same to float32's precision."""
    two = pair("qwen3:Qwen3ForCausalLM")
    text = two.texts[0]
    assert (two.ask_one(text, torch.float32) - two.truth[0]).abs().max() < 1e-4
