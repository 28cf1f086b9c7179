"""Averages: EMA equals its formula, the network gets its own weights back, checkpoint averaging is a mean."""

import pytest
import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.train.optim.averages import CheckpointAverage, Ema


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def move(net: nn.Module, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn(p.shape, generator=random))


def test_the_sum_written_out():
    net = network()
    ema = Ema(net.named_parameters(), 0.5)
    slow = net[0].weight.detach().double()
    for n in range(1, 30):
        move(net, n)
        ema.update()
        decay = min(0.5, (1 + n) / (10 + n))
        slow = decay * slow + (1 - decay) * net[0].weight.detach().double()
        # After each update: an average of decay 0.5 soon forgets what its first, lower decays were.
        torch.testing.assert_close(ema.state_tensors()["0.weight"].double(), slow, rtol=1e-5, atol=1e-5)


def test_a_young_average_soon_forgets_the_start():
    """With decay 0.9999 alone, 99 % of the average would still be the random start after 100 steps."""
    net = network()
    with torch.no_grad():
        net[0].weight.fill_(1000.0)
    ema = Ema(net.named_parameters(), 0.9999)
    with torch.no_grad():
        net[0].weight.fill_(1.0)
    for _ in range(100):
        ema.update()
    assert ema.state_tensors()["0.weight"].max() < 1.01


def test_swapped_and_back():
    net = network()
    ema = Ema(net.named_parameters(), 0.9)
    move(net, 1)
    ema.update()
    own = {name: p.detach().clone() for name, p in net.named_parameters()}
    addresses = [p.data_ptr() for p in net.parameters()]
    with ema.use_averages():
        for name, p in net.named_parameters():
            assert torch.equal(p, ema.state_tensors()[name])
            assert not torch.equal(p, own[name])
        assert torch.is_grad_enabled()
    assert all(torch.equal(p, own[name]) for name, p in net.named_parameters())
    assert [p.data_ptr() for p in net.parameters()] == addresses
    assert all(p.requires_grad for p in net.parameters())


def test_an_error_inside_gives_the_weights_back():
    net = network()
    ema = Ema(net.named_parameters(), 0.9)
    move(net, 1)
    own = net[0].weight.detach().clone()
    with pytest.raises(RuntimeError, match="evaluation"), ema.use_averages():
        raise RuntimeError("evaluation")
    assert torch.equal(net[0].weight, own)


def test_going_on_from_a_copy_is_exact():
    first, second = network(), network()
    one, other = Ema(first.named_parameters(), 0.99), Ema(second.named_parameters(), 0.99)
    for seed in range(3):
        move(first, seed)
        move(second, seed)
        one.update()
    for name, tensor in other.state_tensors().items():
        tensor.copy_(one.state_tensors()[name])
    move(first, 9)
    move(second, 9)
    one.update()
    other.update()
    assert all(torch.equal(tensor, other.state_tensors()[name]) for name, tensor in one.state_tensors().items())
    assert int(one.state_tensors()["updates"]) == 4


def test_small_moves_are_not_lost_in_half_precision():
    net = network().to(torch.bfloat16)
    ema = Ema(net.named_parameters(), 0.999)
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        ema.state_tensors()["0.weight"].fill_(0.99)
        ema.state_tensors()["updates"].fill_(100_000)
    ema.update()
    average = ema.state_tensors()["0.weight"]
    assert average.dtype == torch.float32
    assert (average > 0.99).all()


def test_frozen_parameters_have_no_average():
    net = network()
    net[0].requires_grad_(False)
    assert set(Ema(net.named_parameters(), 0.9).state_tensors()) == {"1.weight", "1.bias", "updates"}


class Kept(dict[str, Tensor]):
    """A checkpoint, as far as a mean reads it."""

    def read_tensor(self, name):
        return self[name]

    def read_slice(self, name, offset, shape):
        return self[name][tuple(slice(a, a + n) for a, n in zip(offset, shape, strict=True))]


def test_keeping_the_average_is_for_good():
    net = network()
    ema = Ema(net.named_parameters(), 0.9)
    move(net, 1)
    ema.update()
    ema.copy_to_network()
    assert all(torch.equal(p, ema.state_tensors()[name]) for name, p in net.named_parameters())


def test_the_mean_of_checkpoints():
    many = [Kept(w=torch.randn(4, 3), n=torch.tensor(i)) for i in range(10)]
    got = {name: CheckpointAverage(many).read_tensor(name) for name in ("w", "n")}
    expected = torch.stack([one["w"].double() for one in many]).mean(0).float()
    torch.testing.assert_close(got["w"], expected, rtol=0, atol=1e-7)
    assert got["w"].dtype == torch.float32
    assert got["n"] == 9


def test_a_box_of_the_mean_is_the_box_of_it():
    many = [Kept(w=torch.randn(4, 3)) for _ in range(3)]
    mean = CheckpointAverage(many)
    assert torch.equal(mean.read_slice("w", (1, 0), (2, 3)), mean.read_tensor("w")[1:3])


def test_the_mean_of_one_is_itself():
    one = Kept(w=torch.randn(4, 3))
    assert torch.equal(CheckpointAverage([one]).read_tensor("w"), one["w"])


def test_sums_are_taken_in_double():
    """In float32 the three would be lost beside the large numbers that cancel each other."""
    many = [Kept(w=torch.tensor([value])) for value in (1e8, 3.0, -1e8)]
    assert CheckpointAverage(many).read_tensor("w").item() == 1.0


def test_checkpoints_of_different_shapes_are_refused():
    with pytest.raises(QkvError, match=r"w has the shape \[2\] in one checkpoint and \[3\]"):
        CheckpointAverage([Kept(w=torch.zeros(2)), Kept(w=torch.zeros(3))]).read_tensor("w")


def test_no_checkpoints_are_refused():
    with pytest.raises(QkvError, match="no readable checkpoint to average"):
        CheckpointAverage([])
