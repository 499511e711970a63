import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stampede.kernels import sum_rows


def sum_rows_by_loop(rows: Tensor, grads: Tensor, num_rows: int) -> Tensor:
    out = torch.zeros(num_rows, grads.shape[1], dtype=grads.dtype)
    for row, grad in zip(rows.tolist(), grads, strict=True):
        out[row] += grad
    return out


@settings(deadline=None)
@given(
    rows=st.lists(st.integers(0, 5), max_size=30),
    dim=st.sampled_from([1, 2, 4, 10]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 999),
)
def test_sums_are_those_of_a_loop_bit_for_bit(
    rows: list[int], dim: int, dtype: torch.dtype, seed: int
) -> None:
    index = torch.tensor(rows, dtype=torch.int64)
    grads = torch.randn(len(rows), dim, dtype=dtype, generator=torch.Generator().manual_seed(seed))

    summed = sum_rows(index, grads, num_rows=6)

    assert summed.dtype == dtype
    assert torch.equal(summed, sum_rows_by_loop(index, grads, 6))


def test_gradients_need_not_be_contiguous() -> None:
    rows = torch.tensor([0, 2, 0, 1])
    expanded = torch.ones(1, 1).expand(4, 3)
    transposed = torch.randn(3, 4).T

    assert sum_rows(rows, expanded, num_rows=4).tolist() == [[2] * 3, [1] * 3, [1] * 3, [0] * 3]
    assert torch.equal(sum_rows(rows, transposed, num_rows=4), sum_rows_by_loop(rows, transposed, 4))


def test_the_sum_does_not_depend_on_the_number_of_threads() -> None:
    rows = (torch.rand(20_000) ** 4 * 500).long()
    grads = torch.randn(20_000, 10)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = sum_rows(rows, grads, num_rows=500)
        torch.set_num_threads(2)
        together = sum_rows(rows, grads, num_rows=500)
    finally:
        torch.set_num_threads(threads)

    assert torch.equal(alone, together)


def test_an_empty_batch_sums_to_zero() -> None:
    assert (
        sum_rows(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3), num_rows=2).tolist() == [[0] * 3] * 2
    )


def test_rows_and_gradients_must_be_of_one_length() -> None:
    with pytest.raises(ValueError, match=r"\[2\] and \[3, 4\]"):
        sum_rows(torch.zeros(2, dtype=torch.int64), torch.zeros(3, 4), num_rows=5)
