"""The lookup's CUDA C, run on the CPU, against plain torch."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.cuda.cuda_on_cpu import CpuKernels

from stampede.kernels.cuda import gather

pytestmark = pytest.mark.usefixtures("on_cpu")


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    dim=st.integers(1, 128),
    batch=st.integers(0, 40),
    wide_ids=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_a_batch_is_looked_up_as_by_plain_torch(
    sizes: list[int], dim: int, batch: int, wide_ids: bool, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    table = torch.randn(sum(sizes), dim, generator=draw)
    linear = torch.randn(sum(sizes), 1, generator=draw)
    offsets = torch.tensor([0, *accumulate(sizes)])
    ids = (torch.rand(batch, len(sizes), generator=draw) * torch.tensor(sizes)).to(torch.int64)
    out, out_linear = torch.full((batch, len(sizes), dim), torch.nan), torch.full((batch,), torch.nan)

    gather(
        table,
        linear,
        ids if wide_ids else ids.to(torch.int32),
        offsets=offsets,
        out=out,
        out_linear=out_linear,
    )

    rows = ids + offsets[:-1]
    assert torch.equal(out, table[rows])
    torch.testing.assert_close(out_linear, linear[rows].sum((1, 2)), rtol=1e-5, atol=1e-5)


def test_a_table_may_come_without_first_order_weights() -> None:
    out = torch.empty(1, 1, 3)
    gather(
        torch.arange(6.0).view(2, 3),
        None,
        torch.tensor([[1]], dtype=torch.int32),
        offsets=torch.tensor([0, 2]),
        out=out,
        out_linear=None,
    )
    assert out.tolist() == [[[3.0, 4.0, 5.0]]]


def test_rows_that_are_not_aligned_to_a_vector_are_read_value_by_value() -> None:
    """A misaligned vector load would stop the process here, and be an error on a GPU."""
    table = torch.arange(9.0)[1:].view(2, 4)
    out = torch.empty(1, 1, 4)
    ids = torch.tensor([[1]], dtype=torch.int32)
    gather(table, None, ids, offsets=torch.tensor([0, 2]), out=out, out_linear=None)
    assert out.tolist() == [[[5.0, 6.0, 7.0, 8.0]]]


def test_rows_of_more_than_128_values_and_other_dtypes_are_refused(on_cpu: CpuKernels) -> None:
    ids, offsets = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="rows of 1 to 128 values are wanted, not 129"):
        gather(torch.zeros(1, 129), None, ids, offsets=offsets, out=torch.zeros(1, 1, 129), out_linear=None)
    double = torch.zeros(1, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="contiguous float32 is wanted, not torch"):
        gather(double, None, ids, offsets=offsets, out=double.view(1, 1, 2), out_linear=None)
