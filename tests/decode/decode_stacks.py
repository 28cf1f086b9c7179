"""Decoders of every make in float64, and prompts, for tests that hold a fast path equal to the modules."""

import torch
from decode_models import END, START

from qkv.blocks import HeadConfig, StackConfig
from qkv.models import Config, Decoder, Seq2Seq, build

VOCAB = 20
MODERN = {"position": "rotary", "norm": "rmsnorm", "norm_affine": "gain", "bias": "none", "feedforward": "swiglu"}
T5 = {**MODERN, "position": "t5", "feedforward": "relu", "score_scale": "none", "head_dim": 12}
STACKS: dict[str, dict[str, object]] = {
    "post-norm": {"norm_placement": "post", "feedforward": "relu", "embedding_scale": "sqrt"},
    "pre-norm": {},
    "sandwich": {"norm_placement": "sandwich"},
    "learned": {"position": "learned", "position_offset": 2, "embedding_norm": "extra"},
    "first norm": {"embedding_norm": "replaces_first"},
    "grouped heads": {**MODERN, "kv_heads": 2},
    "normed heads": {**MODERN, "qk_norm": "head"},
    "windows": {**MODERN, "sliding_window": 2, "sliding_window_layers": (1,), "rotary_base_sliding": 100.0},
    "alibi": {"position": "alibi"},
    "t5": T5,
    "no positions": {"position": "none"},
    "narrow embedding": {"embedding_width": 8},
    "shared layers": {"num_layer_groups": 1},
    "token_types": {"token_types": 2},
}
DECODERS = {**STACKS, "parallel": {"residual": "parallel"}}
PROMPTS = {"even": [[5, 6, 7], [8, 9, 10], [3, 4, 5]], "ragged": [[5, 6, 7], [8], [3, 4]]}


def make(family: str, settings: dict[str, object]) -> Decoder | Seq2Seq:
    size = {"vocab_size": VOCAB, "width": 16, "layers": 3, "heads": 4, "ffn_width": 24, "max_positions": 32}
    stack = StackConfig(**{**size, "init_std": 0.3, **settings})  # type: ignore[arg-type]
    sides = {"decoder": stack} if family == "decoder" else {"encoder": stack, "decoder": stack}
    torch.manual_seed(0)
    head = HeadConfig(kind="lm", outputs=VOCAB, bias=True)
    network = build(
        Config(**sides, head=head, decoder_start_token_id=START, eos_token_ids=(END,)), dtype=torch.float64
    ).eval()  # type: ignore[arg-type]
    assert isinstance(network, Decoder | Seq2Seq)
    return network


def apart(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))
