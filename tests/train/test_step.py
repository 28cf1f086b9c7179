"""A training step: sums over micro-batches, reproducible random numbers, and skipped steps."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from objective_cases import CASES, a_batch, network
from torch import Tensor

from qkv.data.load.batch import Batch
from qkv.models import Network, build
from qkv.train.loss.training_module import LabelledBatch, TrainingModule
from qkv.train.optim.optimizers import make_optimizer
from qkv.train.out_of_memory import out_of_memory_error
from qkv.train.parallel.world import World
from qkv.train.recipe.schema import ObjectiveSection, TrainSection
from qkv.train.step import Stepper, resolve_precision, seed_step


def stepper_of(name: str = "pairs", parts: int = 1, exact: bool = True, **keys: Any) -> tuple[Network, Stepper]:
    net = network(*CASES[name])
    if not exact:
        net = net.float()
    section = TrainSection(**{"precision": "float32", "optimizer": "sgd", "momentum": 0.0, **keys})
    learner = TrainingModule(net, ObjectiveSection()).train()
    return net, Stepper(
        learner, make_optimizer(net.named_parameters(), section), section, World(), num_micro_batches=parts
    )


def weights(net: Network) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


@pytest.mark.parametrize("name", [name for name in CASES if name != "contrast"])
@pytest.mark.parametrize("parts", [2, 3, 50])
def test_micro_batches_give_the_step_of_the_whole_batch(name: str, parts: int) -> None:
    """Trap 17: rows of unequal numbers of labels, parts of unequal numbers of rows."""
    batch = a_batch(name, 4000)
    whole, one = stepper_of(name)
    split, many = stepper_of(name, parts=parts)
    for step in range(2):
        one(batch, step, 0.1)
        many(batch, step, 0.1)
    for key, value in weights(whole).items():
        torch.testing.assert_close(value, weights(split)[key], rtol=1e-5, atol=1e-7)  # weights of labels are float32
    assert one.pop_loss() == pytest.approx(many.pop_loss(), rel=1e-5)
    assert float(one.grad_norm) == pytest.approx(float(many.grad_norm), rel=1e-5)


def test_a_step_whose_shapes_depend_on_the_documents_is_no_cuda_graph() -> None:
    for fixed_shapes in (True, False):
        net, section = network(*CASES["pairs"]), TrainSection(compile="auto")
        optimizer = make_optimizer(net.named_parameters(), section)
        stepper = Stepper(
            TrainingModule(net, ObjectiveSection()), optimizer, section, World(), fixed_shapes=fixed_shapes
        )
        stepper.updates_on_device = True  # as on a GPU
        assert stepper._uses_cuda_graph(1) == fixed_shapes


@pytest.mark.parametrize("name", ["next token", "masked", "pairs"])
def test_padding_that_has_no_effect_does_not_change_the_kind_of_step(name: str) -> None:
    """A causal mask hides padding on the right, so such batches share the graph of batches without padding."""
    net = network(*CASES[name])
    module = TrainingModule(net, ObjectiveSection())
    batch = a_batch(name)
    for one_each, unpadded in ((True, True), (True, False), (False, False)):
        merged = module.normalize_padding_flags(replace(batch, one_document_each=one_each, unpadded=unpadded))
        causal = net.config.family != "encoder"
        assert merged.unpadded == merged.one_document_each == (unpadded or (one_each and causal))


def test_the_loss_is_summed_over_steps_and_taken_once() -> None:
    _, stepper = stepper_of()
    batch = a_batch("pairs")
    stepper(batch, 0, 1e-9)
    first = stepper.pop_loss()
    for step in (1, 2):
        stepper(batch, step, 1e-9)
    assert stepper.pop_loss() == pytest.approx(2 * first, rel=1e-4)
    assert stepper.pop_loss() == 0.0


def test_gradients_are_clipped_to_a_norm_and_the_norm_before_is_told() -> None:
    batch = a_batch("pairs")
    net, stepper = stepper_of(max_grad_norm=0.01, weight_decay=0.0)
    before = weights(net)
    stepper(batch, 0, 1.0)
    moved = math.sqrt(sum(float((value - before[name]).square().sum()) for name, value in weights(net).items()))
    assert moved == pytest.approx(0.01, rel=1e-3)
    assert float(stepper.grad_norm) > 0.01
    assert all(p.grad is None for p in net.parameters())


def test_random_numbers_of_a_step_depend_on_nothing_before() -> None:
    def drawn(*numbers: int) -> list[float]:
        seed_step(*numbers)
        return torch.rand(4).tolist()

    first = drawn(0, 5, 0, 0)
    torch.rand(17)
    assert drawn(0, 5, 0, 0) == first
    others = [drawn(1, 5, 0, 0), drawn(0, 6, 0, 0), drawn(0, 5, 1, 0), drawn(0, 5, 0, 1)]
    assert len({tuple(one) for one in [first, *others]}) == 5


def test_every_micro_batch_of_every_step_has_random_numbers_of_its_own() -> None:
    """With the same dropout mask in every micro-batch, the noise of a step would not average out."""
    _, stepper = stepper_of(parts=3)
    drawn, forward = [], stepper.module.forward

    def record(*given: Any) -> Tensor:
        drawn.append(tuple(torch.rand(4).tolist()))
        return forward(*given)

    stepper.module.forward = record  # type: ignore[method-assign]
    for step in range(2):
        stepper(a_batch("pairs"), step, 0.1)
    assert len(drawn) == len(set(drawn)) == 6


def test_a_step_with_dropout_is_the_same_again_and_another_step_is_not() -> None:
    config = network(*CASES["pairs"]).config
    stack = replace(config.decoder, dropout=0.5)
    torch.manual_seed(0)
    start = build(replace(config, encoder=stack, decoder=stack))

    def after(step: int, noise: int) -> Tensor:
        net = copy.deepcopy(start)
        section = TrainSection(optimizer="sgd", precision="float32")
        stepper = Stepper(
            TrainingModule(net, ObjectiveSection()).train(),
            make_optimizer(net.named_parameters(), section),
            section,
            World(),
            num_micro_batches=2,
        )
        torch.rand(noise)
        stepper(a_batch("pairs"), step, 0.1)
        return next(net.parameters()).detach()

    assert torch.equal(after(3, 1), after(3, 100))
    assert not torch.equal(after(3, 1), after(4, 1))


# ----------------------------------------------------------------------------------------- skipped steps


def spoil(stepper: Stepper, *calls: int) -> None:
    """Make the loss NaN in these calls (from 0)."""
    forward, turn = stepper.module.forward, iter(range(10**6))

    def spoiled(lesson: LabelledBatch, *given: Tensor) -> Tensor:
        loss = forward(lesson, *given)
        return loss * math.nan if next(turn) in calls else loss

    stepper.module.forward = spoiled  # type: ignore[method-assign]


def run(stepper: Stepper, net: Network, batch: Batch, steps: int) -> list[bool]:
    """Return, for each step, whether it changed the weights."""
    moved = []
    for step in range(steps):
        before = weights(net)
        stepper(batch, step, 0.1)
        moved.append(any(not torch.equal(value, before[name]) for name, value in weights(net).items()))
    return moved


def test_after_a_bad_step_nothing_changes_until_somebody_asks() -> None:
    """On a GPU the host checks only now and then. Until then, the weights must not change after the bad step."""
    net, stepper = stepper_of(on_nonfinite="stop")
    spoil(stepper, 2)
    assert run(stepper, net, a_batch("pairs"), 5) == [True, True, False, False, False]
    assert stepper.pop_bad_steps() == (2, 3)
    assert stepper.pop_bad_steps() is None
    assert math.isfinite(stepper.pop_loss())


def test_a_bad_step_is_left_out_alone_where_that_is_asked_for() -> None:
    net, stepper = stepper_of(on_nonfinite="skip")
    spoil(stepper, 2)
    assert run(stepper, net, a_batch("pairs"), 5) == [True, True, False, True, True]
    assert stepper.pop_bad_steps() == (2, 1)


def test_several_bad_steps_between_two_looks_are_counted() -> None:
    net, stepper = stepper_of(on_nonfinite="skip")
    spoil(stepper, 1, 3)
    assert run(stepper, net, a_batch("pairs"), 5) == [True, False, True, False, True]
    assert stepper.pop_bad_steps() == (1, 2)
    assert stepper.pop_bad_steps() is None


def half(**keys: Any) -> tuple[Network, Stepper]:
    """A stepper with a scaler, as for float16, on float32 products."""
    net, stepper = stepper_of(exact=False, **keys)
    stepper.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    return net, stepper


def test_with_a_scaler_the_step_after_a_bad_loss_is_taken() -> None:
    net, stepper = half(on_nonfinite="skip")
    spoil(stepper, 1)
    assert run(stepper, net, a_batch("pairs"), 3) == [True, False, True]
    assert stepper.pop_bad_steps() == (1, 1)


def test_a_gradient_that_no_scale_makes_finite_is_told() -> None:
    """After an overflow the scaler halves its scale. At a scale of 1, the step is bad."""
    net, stepper = half(on_nonfinite="stop")
    next(net.parameters()).register_hook(lambda gradient: gradient * math.nan)
    assert run(stepper, net, a_batch("pairs"), 6) == [False] * 6
    assert stepper.pop_bad_steps() == (3, 3)  # the scaler handled the overflows at scales 8, 4 and 2


def test_one_bad_part_spoils_its_step() -> None:
    net, stepper = stepper_of(parts=2, on_nonfinite="skip")
    spoil(stepper, 3)  # the second part of the second step
    assert run(stepper, net, a_batch("pairs", 4000), 3) == [True, False, True]
    assert stepper.pop_bad_steps() == (1, 1)


def test_more_parts_after_a_step_that_did_not_fit_begin_without_its_gradient() -> None:
    net, stepper = stepper_of()
    next(net.parameters()).grad = torch.ones_like(next(net.parameters()))
    stepper.double_micro_batches()
    assert stepper.num_micro_batches == 2
    assert all(p.grad is None for p in net.parameters())


def test_what_a_run_computes_in() -> None:
    cpu = torch.device("cpu")
    assert resolve_precision(TrainSection(), cpu) == "float32"
    assert resolve_precision(TrainSection(precision="bfloat16"), cpu) == "bfloat16"
    _, stepper = stepper_of(exact=False, precision="bfloat16")
    stepper(a_batch("pairs"), 0, 0.1)
    assert next(stepper.module.parameters()).dtype == torch.float32
    assert math.isfinite(stepper.pop_loss())


def test_the_message_for_a_step_that_does_not_fit_names_what_to_lower() -> None:
    told = str(out_of_memory_error(TrainSection(batch_tokens=999), RuntimeError("out of memory\nmore")))
    for words in (
        "out of memory)",
        "train.micro_batch_tokens",
        "train.batch_tokens = 999",
        "data.max_length",
        "train.gradient_checkpointing",
    ):
        assert words in told
