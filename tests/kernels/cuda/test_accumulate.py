"""The gradient sums' CUDA C, run on the CPU, against plain torch: tiles, parts of them, runs over both."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.cuda.cuda_on_cpu import CpuKernels
from torch import Tensor

from stampede.kernels.cuda import CudaRowAccumulator
from stampede.kernels.rows import RowGradients

pytestmark = pytest.mark.usefixtures("on_cpu")


@dataclass(frozen=True)
class Gradients:
    """What a backward pass gives of a batch."""

    sizes: list[int]
    ids: Tensor  # int32 [B, F]
    grads: Tensor  # [B, F, d]
    linear_grads: Tensor  # [B]

    def accumulator(self, *, linear: bool = True) -> CudaRowAccumulator:
        dim = self.grads.shape[2]
        return CudaRowAccumulator(
            self.sizes, dim, batch_rows=max(len(self.ids), 1), linear=linear, device="cpu"
        )

    def reference(self) -> tuple[RowGradients, RowGradients]:
        offsets = torch.tensor([0, *accumulate(self.sizes)][:-1])
        rows = (self.ids + offsets).reshape(-1)
        linear = self.linear_grads.repeat_interleave(len(self.sizes)).unsqueeze(1)
        num_rows = sum(self.sizes)
        return (
            RowGradients.of_batch(rows, self.grads.flatten(0, 1), num_rows=num_rows),
            RowGradients.of_batch(rows, linear, num_rows=num_rows),
        )


@st.composite
def gradients(draw: st.DrawFn, *, whole_numbers: bool = True) -> Gradients:
    """Draw a batch: ids at random, few, one for all, or all different; one or several tiles."""
    fields = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["random", "few", "hot", "distinct"]))
    batch = draw(st.one_of(st.integers(0, 50), st.integers(600, 5000)))
    most = {"random": 500, "few": 3, "hot": 1000, "distinct": max(batch, 1)}[kind]
    sizes = [draw(st.integers(1, most)) if kind != "distinct" else most for _ in range(fields)]
    dim = draw(st.integers(1, 128) if batch <= 50 else st.sampled_from([1, 3, 10, 16, 33]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    ids = (torch.rand(batch, fields, generator=generator) * torch.tensor(sizes)).to(torch.int32)
    if kind == "hot":
        ids[torch.rand(batch, fields, generator=generator) < 0.9] = 0
    if kind == "distinct":
        ids = torch.stack([torch.randperm(most, generator=generator)[:batch] for _ in range(fields)], 1)
        ids = ids.to(torch.int32)
    values = torch.randn(batch, fields * dim + 1, generator=generator)
    if whole_numbers:  # their sums are exact in any order
        values = (values * 8).round()
    return Gradients(sizes, ids, values[:, 1:].reshape(batch, fields, dim), values[:, 0].contiguous())


def check_index(sums: RowGradients) -> None:
    index = sums.index
    used = index.counts > 0
    entries = used.nonzero().squeeze(1)
    assert torch.equal(index.slots[index.rows[used]], entries.to(torch.int32))
    assert int((index.slots >= 0).sum()) == len(entries)


@settings(max_examples=80, deadline=None)
@given(batch=gradients())
def test_sums_and_counts_are_those_of_plain_torch(batch: Gradients) -> None:
    accumulator = batch.accumulator()
    accumulator.add(batch.ids, batch.grads, batch.linear_grads)
    sums, linear_sums = accumulator.finish()
    expected, expected_linear = batch.reference()
    assert linear_sums is not None
    check_index(sums)
    assert torch.equal(sums.index.dense_counts(), expected.index.dense_counts())
    assert torch.equal(sums.to_dense(), expected.to_dense())
    assert torch.equal(linear_sums.to_dense(), expected_linear.to_dense())


@settings(max_examples=25, deadline=None)
@given(batch=gradients(whole_numbers=False), cut=st.floats(0, 1))
def test_pieces_and_the_order_of_threads_change_no_bit(
    batch: Gradients, cut: float, on_cpu: CpuKernels
) -> None:
    whole = batch.accumulator()
    whole.add(batch.ids, batch.grads, batch.linear_grads)
    sums, linear_sums = whole.finish()
    place = int(cut * len(batch.ids))
    pieces = batch.accumulator()
    on_cpu.reverse = True
    try:
        for part in (slice(0, place), slice(place, None)):
            pieces.add(batch.ids[part], batch.grads[part], batch.linear_grads[part])
        again, linear_again = pieces.finish()
    finally:
        on_cpu.reverse = False
    assert linear_sums is not None
    assert linear_again is not None
    assert torch.equal(sums.to_dense(), again.to_dense())
    assert torch.equal(linear_sums.to_dense(), linear_again.to_dense())
    expected, _ = batch.reference()
    torch.testing.assert_close(sums.to_dense(), expected.to_dense(), rtol=1e-4, atol=1e-3)


def test_a_cleared_accumulator_takes_the_next_batch() -> None:
    accumulator = CudaRowAccumulator([5], 2, batch_rows=4, linear=False, device="cpu")
    ids = torch.tensor([[1], [4], [1], [0]], dtype=torch.int32)
    accumulator.add(ids, torch.ones(4, 1, 2))
    first, none = accumulator.finish()
    assert none is None
    assert first.to_dense()[:, 0].tolist() == [1.0, 2.0, 0.0, 0.0, 1.0]
    slots = first.index.slots
    accumulator.clear()
    assert slots.tolist() == [-1] * 5
    accumulator.add(ids[:2], torch.ones(2, 1, 2))  # a smaller batch, the last of an epoch
    second, _ = accumulator.finish()
    assert second.to_dense()[:, 0].tolist() == [0.0, 1.0, 0.0, 0.0, 1.0]
    assert len(second.index.rows) == 2
    accumulator.clear()
    accumulator.add(torch.full((4, 1), 3), torch.ones(4, 1, 2))  # one entry, where the first batch had three
    third, _ = accumulator.finish()
    assert third.index.counts.tolist() == [4, 0, 0, 0]
    assert third.to_dense()[:, 0].tolist() == [0.0, 0.0, 0.0, 4.0, 0.0]


def test_an_empty_batch_has_no_entries() -> None:
    accumulator = CudaRowAccumulator([3], 2, batch_rows=4, linear=True, device="cpu")
    accumulator.add(torch.zeros(0, 1, dtype=torch.int32), torch.zeros(0, 1, 2), torch.zeros(0))
    sums, linear_sums = accumulator.finish()
    assert linear_sums is not None
    assert sums.to_dense().tolist() == [[0.0, 0.0]] * 3
    assert linear_sums.to_dense().tolist() == [[0.0]] * 3
    accumulator.clear()


def test_one_row_that_fills_many_tiles_is_summed_in_a_fixed_order(on_cpu: CpuKernels) -> None:
    """The longest run there can be, of exactly seven tiles and of a little more."""
    for batch in (7 * 2048, 7 * 2048 + 5):
        accumulator = CudaRowAccumulator([9], 10, batch_rows=batch, linear=True, device="cpu")
        ids = torch.full((batch, 1), 4, dtype=torch.int64)
        grads = torch.ones(batch, 1, 10)
        accumulator.add(ids, grads, torch.full((batch,), 2.0))
        sums, linear_sums = accumulator.finish()
        assert linear_sums is not None
        assert sums.to_dense()[4].tolist() == [float(batch)] * 10
        assert linear_sums.to_dense()[4].tolist() == [2.0 * batch]
        assert sums.index.dense_counts().tolist() == [0, 0, 0, 0, batch, 0, 0, 0, 0]


def test_misuse_is_told() -> None:
    accumulator = CudaRowAccumulator([5], 2, batch_rows=2, linear=False, device="cpu")
    ids, grads = torch.zeros(2, 1, dtype=torch.int32), torch.ones(2, 1, 2)
    with pytest.raises(ValueError, match="a batch of 3 rows, where 2 were announced"):
        accumulator.add(torch.zeros(3, 1, dtype=torch.int32), torch.ones(3, 1, 2))
    with pytest.raises(ValueError, match=r"ids \[b, 1\] and grads \[b, 1, 2\] are wanted"):
        accumulator.add(ids, torch.ones(2, 1, 3))
    with pytest.raises(ValueError, match="linear_grads are wanted where"):
        accumulator.add(ids, grads, torch.ones(2))
    accumulator.add(ids, grads)
    accumulator.finish()
    with pytest.raises(RuntimeError, match="the last batch was not cleared"):
        accumulator.add(ids, grads)
    with pytest.raises(ValueError, match="must stay below 2"):
        CudaRowAccumulator([2**31], 1, batch_rows=1, linear=False, device="cpu")
