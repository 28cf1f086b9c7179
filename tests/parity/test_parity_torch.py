"""The same blocks as torch.nn.Transformer, pre-norm and post-norm: post-norm ends without a norm of the stack's own.

Weights are copied by hand, module by module, in float64; torch's own masks are used on its side.
"""

import pytest
import torch
from torch import nn

import qkv
from qkv.blocks import EncoderMemory, Mask, Stack, StackConfig, make_layout
from qkv.blocks.kernels.choose import prepare_mask

WIDTH, HEADS, FFN, LAYERS = 24, 3, 37, 2
LIMIT = 1e-10


def config(norm_first: bool, activation: str = "relu") -> StackConfig:
    return StackConfig(
        vocab_size=11,
        width=WIDTH,
        layers=LAYERS,
        heads=HEADS,
        ffn_width=FFN,
        position="none",
        norm_placement="pre" if norm_first else "post",
        feedforward=activation,
    )


@torch.no_grad()
def disturb(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * 0.2)


@torch.no_grad()
def copy(ours: nn.Module, theirs: nn.Module) -> None:
    """A layer of torch's into a block of ours."""

    def put(mine: nn.Module, weight, bias) -> None:
        mine.weight.copy_(weight)
        mine.bias.copy_(bias)

    put(ours.attention.qkv, theirs.self_attn.in_proj_weight, theirs.self_attn.in_proj_bias)
    put(ours.attention.out, theirs.self_attn.out_proj.weight, theirs.self_attn.out_proj.bias)
    put(ours.attention_sub.norm, theirs.norm1.weight, theirs.norm1.bias)
    last = theirs.norm2
    if ours.cross is not None:
        attention = theirs.multihead_attn
        put(ours.cross.q, attention.in_proj_weight[:WIDTH], attention.in_proj_bias[:WIDTH])
        put(ours.cross.kv, attention.in_proj_weight[WIDTH:], attention.in_proj_bias[WIDTH:])
        put(ours.cross.out, attention.out_proj.weight, attention.out_proj.bias)
        put(ours.cross_sub.norm, theirs.norm2.weight, theirs.norm2.bias)
        last = theirs.norm3
    put(ours.ffn.up, theirs.linear1.weight, theirs.linear1.bias)
    put(ours.ffn.down, theirs.linear2.weight, theirs.linear2.bias)
    put(ours.ffn_sub.norm, last.weight, last.bias)


def copy_stack(ours: Stack, theirs: nn.Module) -> None:
    for mine, other in zip(ours.blocks, theirs.layers, strict=True):
        copy(mine, other)
    if ours.norm is not None:
        ours.norm.load_state_dict(theirs.norm.state_dict())


def stack(norm_first: bool, *, causal: bool, cross: bool = False, activation: str = "relu") -> Stack:
    return Stack(config(norm_first, activation), name="s", causal=causal, cross=cross).double().eval()


def layer(kind: type, norm_first: bool, activation: str = "relu") -> nn.Module:
    return kind(WIDTH, HEADS, FFN, 0.0, activation, batch_first=True, norm_first=norm_first, dtype=torch.float64)


@pytest.fixture
def texts():
    """Vectors of two texts (B, T, C), the second padded on the right, and their mask."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, 7, WIDTH, generator=generator, dtype=torch.float64)
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    return x, mask


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
@torch.no_grad()
def test_an_encoder(norm_first, activation, texts):
    """Pre-norm gets the final norm that torch wants to be asked for; post-norm gets none."""
    x, mask = texts
    final = nn.LayerNorm(WIDTH, dtype=torch.float64) if norm_first else None
    theirs = nn.TransformerEncoder(
        layer(nn.TransformerEncoderLayer, norm_first, activation), LAYERS, final, enable_nested_tensor=False
    ).eval()
    disturb(theirs)
    ours = stack(norm_first, causal=False, activation=activation)
    assert (ours.norm is not None) == norm_first
    copy_stack(ours, theirs)
    said, expected = ours(x, make_layout(x[..., 0], mask)), theirs(x, src_key_padding_mask=mask == 0)
    assert (said - expected)[mask == 1].abs().max() < LIMIT


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
@torch.no_grad()
def test_one_encoder_layer(norm_first, texts):
    """Block by block, before any final norm."""
    x, mask = texts
    theirs = layer(nn.TransformerEncoderLayer, norm_first).eval()
    disturb(theirs)
    ours = stack(norm_first, causal=False)
    copy(ours.blocks[0], theirs)
    place = make_layout(x[..., 0], mask)
    said = ours.blocks[0](x, prepare_mask(Mask(place, place), x))
    expected = theirs(x, src_key_padding_mask=mask == 0)
    assert (said - expected)[mask == 1].abs().max() < LIMIT


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
@torch.no_grad()
def test_a_decoder_on_a_source(norm_first, texts):
    x, mask = texts
    source = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    source_mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    final = nn.LayerNorm(WIDTH, dtype=torch.float64) if norm_first else None
    theirs = nn.TransformerDecoder(layer(nn.TransformerDecoderLayer, norm_first), LAYERS, final).eval()
    disturb(theirs)
    ours = stack(norm_first, causal=True, cross=True)
    copy_stack(ours, theirs)
    memory = EncoderMemory(source, make_layout(source[..., 0], source_mask))
    said = ours(x, make_layout(x[..., 0], mask), memory=memory)
    expected = theirs(
        x,
        source,
        tgt_mask=torch.ones(7, 7).tril() == 0,
        tgt_is_causal=True,
        tgt_key_padding_mask=mask == 0,
        memory_key_padding_mask=source_mask == 0,
    )
    assert (said - expected)[mask == 1].abs().max() < LIMIT


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
@torch.no_grad()
def test_the_whole_transformer(norm_first):
    """torch.nn.Transformer ends both stacks with a norm whatever the kind; ours has it with pre-norm alone."""
    theirs = nn.Transformer(
        WIDTH, HEADS, LAYERS, LAYERS, FFN, 0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64
    ).eval()
    if not norm_first:
        theirs.encoder.norm = theirs.decoder.norm = None
    disturb(theirs)
    tower = config(norm_first)
    model = qkv.new(qkv.Config(encoder=tower, decoder=tower), dtype=torch.float64)
    copy_stack(model.network.encoder, theirs.encoder)
    copy_stack(model.network.decoder, theirs.decoder)
    source, target = torch.randint(0, 11, (2, 6)), torch.randint(0, 11, (2, 5))
    network = model.network
    expected = theirs(
        network.source_embedding.token(source),
        network.target_embedding.token(target),
        tgt_mask=torch.ones(5, 5).tril() == 0,
        tgt_is_causal=True,
    )
    assert (model.logits(target, source=source) - expected).abs().max() < LIMIT


@torch.no_grad()
def test_a_final_norm_after_post_norm_would_be_seen(texts):
    """The control: a norm of a normed vector is another vector, because gain and bias are learned."""
    x, mask = texts
    final = nn.LayerNorm(WIDTH, dtype=torch.float64)
    theirs = nn.TransformerEncoder(
        layer(nn.TransformerEncoderLayer, False), LAYERS, final, enable_nested_tensor=False
    ).eval()
    disturb(theirs)
    ours = stack(False, causal=False)
    copy_stack(ours, theirs)
    said, expected = ours(x, make_layout(x[..., 0], mask)), theirs(x, src_key_padding_mask=mask == 0)
    assert (said - expected)[mask == 1].abs().max() > 0.01
