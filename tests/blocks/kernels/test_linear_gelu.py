"""GELU with its bias in one kernel is GELU of the linear map. It needs Triton: on a GPU, or interpreted on a CPU."""

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from interpreted import replace_language_once
from torch import Tensor, library, nn
from torch.nn import functional as F

from qkv.blocks.config import StackConfig
from qkv.blocks.feedforward import FeedForward
from qkv.blocks.kernels import linear_gelu as module
from qkv.blocks.kernels.linear_gelu import install_fused_gelu
from qkv.blocks.parts import make_part

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is loaded
kernels: Any = pytest.importorskip(
    "qkv.blocks.kernels.linear_gelu_triton", reason="Triton is not installed", exc_type=ImportError
)
replace_language_once()
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # as it should, far from 0
KINDS = {"gelu": "none", "gelu_tanh": "tanh"}


def run(kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, bias: kernels.bias_gelu(x, bias, list(kernels.GELU_COEFFICIENTS[kind]))


def bent(kind: str, z: Tensor) -> Tensor:
    """x · σ(p(x)), as the page says it."""
    square = z * z
    total = sum(power * square**k for k, power in enumerate(kernels.GELU_COEFFICIENTS[kind]))
    return z * torch.sigmoid(z * total)


@pytest.mark.parametrize("kind", KINDS)
def test_the_polynomial_is_gelu(kind: str) -> None:
    """Within less than bfloat16 rounds away, in value and slope, and it goes to 0 and x at the ends."""
    x = torch.linspace(-12, 12, 100_001, dtype=torch.float64, requires_grad=True)
    exact, found = F.gelu(x, approximate=KINDS[kind]), bent(kind, x)
    slopes = [torch.autograd.grad(y.sum(), x)[0] for y in (exact, found)]
    most = 1.3e-4 if kind == "gelu" else 1e-12
    assert float((found - exact).detach().abs().max()) < most
    assert float((slopes[1] - slopes[0]).abs().max()) < 4 * most
    near = x.detach().abs() < 5
    share = ((found - exact) / exact.abs().clamp(min=1e-300)).detach()[near & (x != 0)].abs()
    assert float(share.max()) < (2**-9 if kind == "gelu" else 1e-9)
    assert float(found[0].detach().abs()) < 1e-12
    assert float((found[-1] - x[-1]).detach().abs()) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(1, 4), (33, 128), (70, 200), (64, 1536)])
def test_values_and_gradients(kind: str, rows: int, width: int) -> None:
    """Rows and columns that fill programs, and those that do not."""
    draw = torch.Generator().manual_seed(rows)
    x, bias, back = (
        torch.randn(shape, generator=draw).to(DEVICE) for shape in ((rows, width), (width,), (rows, width))
    )
    x, bias = (2 * x).requires_grad_(), bias.requires_grad_()
    found = run(kind)(x, bias)
    wanted = bent(kind, x + bias)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    gradients = [torch.autograd.grad(y, (x, bias), back) for y in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_strange_layouts_and_values() -> None:
    """Columns apart, a bias with gaps; and where σ has long been 0 or 1, no power is infinite."""
    draw = torch.Generator().manual_seed(7)
    wide = torch.randn(24, 70, generator=draw).to(DEVICE)
    gaps = torch.randn(48, generator=draw).to(DEVICE)
    x, bias = wide.T.detach().requires_grad_(), gaps[::2].detach().requires_grad_()
    back = torch.randn(24, 70, generator=draw).to(DEVICE).T
    found, wanted = (f(x, bias) for f in (run("gelu"), lambda x, bias: bent("gelu", x + bias)))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    gradients = [torch.autograd.grad(y, (x, bias), back) for y in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    large = torch.tensor([[-3e38, -1e20, -3e7, -200.0, 200.0, 3e7, 1e20, 3e38]], device=DEVICE, requires_grad=True)
    for kind in KINDS:
        out = run(kind)(large, torch.zeros(8, device=DEVICE))
        assert torch.equal(out, large.clamp(min=0))
        assert torch.equal(torch.autograd.grad(out.sum(), large)[0], (large > 0).float())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_the_operators_are_what_torch_expects(kind: torch.dtype) -> None:
    """Types, layouts and gradients under the compiler; the bias may be wider than what it is added to."""
    x = torch.randn(5, 24, device=DEVICE).to(kind).requires_grad_()
    bias = torch.randn(24, device=DEVICE, requires_grad=True)
    for one in (bias, bias.detach()):
        library.opcheck(kernels.bias_gelu, (x, one, list(kernels.GELU_COEFFICIENTS["gelu"])))
    back = (x.detach(), x.detach(), bias.detach(), list(kernels.GELU_COEFFICIENTS["gelu"]))
    library.opcheck(kernels.bias_gelu_backward, back)
    to_x, to_bias = kernels.bias_gelu_backward(*back)
    assert (to_x.dtype, to_bias.dtype) == (kind, torch.float32)


def test_no_rows() -> None:
    x, bias = torch.zeros(0, 8, device=DEVICE, requires_grad=True), torch.zeros(8, device=DEVICE, requires_grad=True)
    found = run("gelu")(x, bias)
    found.sum().backward()
    assert found.shape == (0, 8)
    assert bias.grad is not None
    assert not bool(bias.grad.any())


def network(kind: str, bias: str = "all") -> FeedForward:
    torch.manual_seed(3)
    shape = StackConfig(vocab_size=8, width=16, layers=1, heads=2, ffn_width=48, feedforward=kind, bias=bias)  # type: ignore[arg-type]
    return make_part("feedforward", replace(shape, ffn_dropout=0.0)).to(DEVICE)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The kernels as in a run on a GPU; grows by the names of those that are started."""
    started: list[str] = []

    class Counted:
        def __init__(self, name: str) -> None:
            self.name, self.kernel = name, getattr(kernels, name)

        def __getitem__(self, grid: tuple[int]) -> Any:
            started.append(self.name)
            return self.kernel[grid]

    for name in ("gelu_forward", "gelu_backward"):
        monkeypatch.setattr(kernels, name, Counted(name))
    monkeypatch.setattr(module, "has_triton", lambda: True)
    monkeypatch.setattr(kernels, "is_supported", lambda kind, up, x: True)  # as on a GPU
    yield started
    torch.compiler.reset()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_feed_forward_takes_it(kind: str, compiled: bool, loaded: list[str]) -> None:
    """In bfloat16 by autocast: outputs and all gradients are those of the polynomial, and not of another kind."""
    ffn = network(kind)
    assert install_fused_gelu(ffn) == 1
    x = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(4)).to(DEVICE)

    def found(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        with torch.autocast(DEVICE, torch.bfloat16):
            out = run(x)
        return [out, *torch.autograd.grad(out.float().square().sum(), list(ffn.parameters()))]

    def said(x: Tensor) -> Tensor:
        wide = F.linear(x, ffn.up.weight).float() + ffn.up.bias
        return F.linear(bent(kind, wide).to(torch.bfloat16), ffn.down.weight, ffn.down.bias)

    mine = found(torch.compile(ffn, backend="aot_eager") if compiled else ffn)
    assert loaded == ["gelu_forward", "gelu_backward"]
    for one, other in zip(mine, found(said), strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one.float(), other.float(), rtol=2e-2, atol=5e-3 * float(other.detach().abs().max()))


def test_training_alone_takes_it(loaded: list[str]) -> None:
    """What is shipped is judged with the function that others have, and whoever looks inside sees each step."""
    ffn, x = network("gelu"), torch.randn(2, 16).to(DEVICE)
    ffn(x)
    assert loaded == []  # before it is installed
    install_fused_gelu(ffn)
    sites: list[str] = []

    class Looking:
        def __call__(self, site: str, value: Tensor) -> Tensor:
            sites.append(site)
            return value

    ffn(x, Looking())
    assert sites == ["mlp_pre", "mlp_post"]
    ffn.eval()(x)
    assert loaded == []
    ffn.train()(x)
    assert loaded == ["gelu_forward"]


def test_it_is_installed_where_triton_runs_and_there_is_a_gelu(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = nn.ModuleList([network("gelu"), network("gelu_tanh"), network("relu"), network("geglu")])
    monkeypatch.setattr(module, "has_triton", lambda: False)
    assert install_fused_gelu(layers) == 0
    monkeypatch.setattr(module, "has_triton", lambda: True)
    assert install_fused_gelu(layers) == 2
    assert [layer.fused is not None for layer in layers] == [True, True, False, False]
    assert len(copy.deepcopy(layers).state_dict()) == len(layers.state_dict())


def test_who_it_is_for() -> None:
    """Plain maps with a bias in half precision, and nothing else."""

    class OnGpu(Tensor):
        is_cuda = True

    def asked(ffn: FeedForward, kind: torch.dtype = torch.bfloat16) -> bool:
        return kernels.is_supported(ffn.kind, ffn.up, torch.zeros(1, 16, dtype=kind).as_subclass(OnGpu))

    assert asked(network("gelu"))
    assert asked(network("gelu_tanh"), torch.float16)
    assert not asked(network("gelu"), torch.float16)  # which would notice the difference
    assert not asked(network("gelu"), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert asked(network("gelu"), torch.float32)
        assert not asked(network("gelu"), torch.float64)  # which autocast leaves alone
    assert not asked(network("relu"))
    assert not asked(network("geglu"))
    assert not asked(network("gelu", bias="none"))
    assert not kernels.is_supported("gelu", network("gelu").up, torch.zeros(1, 16, dtype=torch.bfloat16))
    for kind in (type("Other", (nn.Linear,), {}), nn.Identity):
        other = network("gelu")
        other.up.__class__ = kind
        assert not asked(other)
    spread = network("gelu")
    spread.up.weight.placements = ()
    assert not asked(spread)
    for register in ("register_forward_hook", "register_forward_pre_hook"):
        hooked = network("gelu")
        getattr(hooked.up, register)(lambda *_: None)
        assert not asked(hooked)
