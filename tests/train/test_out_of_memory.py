"""Out-of-memory errors are recognised, also on a CPU, where torch has no exception type for them."""

import pytest
import torch

from qkv.train.out_of_memory import is_out_of_memory

MOST = 2**52  # bytes: more than any machine has addresses for


def test_what_torch_says_on_this_machine() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(MOST, dtype=torch.uint8)
    assert not isinstance(caught.value, torch.OutOfMemoryError), "or there would be nothing to recognise"
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), False),
        (ValueError("not enough memory of the lesson"), False),
    ],
    ids=str,
)
def test_errors(error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) is is_one
