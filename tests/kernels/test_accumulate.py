"""Counts and sums per row are those of plain torch, bit for bit, whatever the pieces of a batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stampede.kernels import RowAccumulator, RowGradients, make_accumulator
from stampede.kernels.accumulate import CpuRowAccumulator, PlainRowAccumulator

VALUES = [torch.float32, torch.float64]
INTEGERS = [torch.int32, torch.int64]
EXACTLY: dict[str, Any] = {"rtol": 0.0, "atol": 0.0, "equal_nan": True}


@dataclass(frozen=True)
class Gradients:
    """What a backward pass gives of a batch."""

    sizes: list[int]
    ids: Tensor  # [B, F]
    grads: Tensor  # [B, F, d]
    linear_grads: Tensor  # [B]

    def accumulator(self, *, linear: bool = True) -> RowAccumulator:
        return make_accumulator(
            self.sizes,
            self.grads.shape[2],
            batch_rows=max(len(self.ids), 1),
            linear=linear,
            dtype=self.grads.dtype,
        )

    def expected(self) -> tuple[RowGradients, RowGradients]:
        plain = PlainRowAccumulator(self.sizes, linear=True)
        plain.add(self.ids, self.grads, self.linear_grads)
        sums, linear_sums = plain.finish()
        assert linear_sums is not None
        return sums, linear_sums


@st.composite
def gradients(draw: st.DrawFn) -> Gradients:
    """Draw a batch: ids at random, few of many, one for all, or all different."""
    fields = draw(st.integers(1, 5))
    batch = draw(st.one_of(st.integers(0, 40), st.integers(100, 600)))
    kind = draw(st.sampled_from(["random", "absent", "hot", "distinct"]))
    most = {"random": 50, "absent": 2000, "hot": 100, "distinct": max(batch, 1)}[kind]
    sizes = [draw(st.integers(1, most)) if kind != "distinct" else most for _ in range(fields)]
    dim = draw(st.integers(1, 128) if batch <= 40 else st.sampled_from([1, 3, 10]))
    dtype, integer = draw(st.sampled_from(VALUES)), draw(st.sampled_from(INTEGERS))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    ids = (torch.rand(batch, fields, generator=generator) * torch.tensor(sizes)).to(integer)
    if kind == "hot":
        ids[torch.rand(batch, fields, generator=generator) < 0.9] = 0
    if kind == "distinct":
        columns = [torch.randperm(most, generator=generator)[:batch] for _ in range(fields)]
        ids = torch.stack(columns, 1).to(integer)
    scales = torch.tensor([0.0, 1e-25, 1.0, 1e6, 1e20], dtype=dtype)
    chosen = torch.randint(len(scales), (batch, fields, 1), generator=generator)
    grads = torch.randn(batch, fields, dim, generator=generator, dtype=dtype) * scales[chosen]
    if draw(st.booleans()) and batch:
        grads[0, 0, 0], grads[-1, -1, -1] = math.nan, math.inf
    return Gradients(sizes, ids, grads, torch.randn(batch, generator=generator, dtype=dtype))


def small(*, batch: int = 6, dim: int = 3) -> Gradients:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 4, (batch, 2), generator=generator)
    grads = torch.randn(batch, 2, dim, generator=generator)
    return Gradients([5, 4], ids, grads, torch.randn(batch, generator=generator))


def check_index(sums: RowGradients) -> None:
    index = sums.index
    entries = (index.counts > 0).nonzero().squeeze(1)
    assert index.rows.dtype == torch.int64
    assert index.counts.dtype == index.slots.dtype == torch.int32
    assert torch.equal(index.slots[index.rows[entries]], entries.to(torch.int32))
    assert int((index.slots >= 0).sum()) == len(entries)


def check_sums(found: tuple[RowGradients, RowGradients | None], expected: Gradients) -> None:
    sums, linear_sums = found
    assert linear_sums is not None
    assert linear_sums.index is sums.index
    check_index(sums)
    wanted, linear_wanted = expected.expected()
    assert torch.equal(sums.index.dense_counts(), wanted.index.dense_counts())
    torch.testing.assert_close(sums.to_dense(), wanted.to_dense(), **EXACTLY)
    torch.testing.assert_close(linear_sums.to_dense(), linear_wanted.to_dense(), **EXACTLY)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(batch=gradients())
def test_sums_and_counts_are_those_of_plain_torch_bit_for_bit(batch: Gradients) -> None:
    accumulator = batch.accumulator()

    accumulator.add(batch.ids, batch.grads, batch.linear_grads)

    assert isinstance(accumulator, CpuRowAccumulator)
    check_sums(accumulator.finish(), batch)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(batch=gradients(), cuts=st.lists(st.floats(0, 1), max_size=4))
def test_pieces_of_a_batch_also_empty_ones_give_the_bits_of_the_whole(
    batch: Gradients, cuts: list[float]
) -> None:
    places = sorted(int(cut * len(batch.ids)) for cut in [0.0, *cuts, 1.0])
    accumulator = batch.accumulator()

    for start, end in itertools.pairwise(places):
        piece = slice(start, end)
        accumulator.add(batch.ids[piece], batch.grads[piece], batch.linear_grads[piece])

    check_sums(accumulator.finish(), batch)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(first=gradients(), seed=st.integers(0, 99))
def test_a_cleared_accumulator_knows_nothing_of_the_batch_before(first: Gradients, seed: int) -> None:
    accumulator = first.accumulator()
    accumulator.add(first.ids, first.grads, first.linear_grads)
    accumulator.finish()
    order = torch.randperm(len(first.ids), generator=torch.Generator().manual_seed(seed))
    order = order[: len(order) // 2 + 1]
    second = Gradients(first.sizes, first.ids[order], first.grads[order] * 3, first.linear_grads[order])

    accumulator.clear()
    accumulator.add(second.ids, second.grads, second.linear_grads)

    check_sums(accumulator.finish(), second)


def test_without_first_order_weights_there_are_no_sums_of_theirs() -> None:
    batch = small()
    accumulator = batch.accumulator(linear=False)

    accumulator.add(batch.ids, batch.grads)
    sums, linear_sums = accumulator.finish()

    assert linear_sums is None
    assert torch.equal(sums.to_dense(), batch.expected()[0].to_dense())


def layouts(tensor: Tensor) -> dict[str, Tensor]:
    """The same values in other strides."""
    return {
        "transposed": tensor.transpose(0, -1).contiguous().transpose(0, -1),
        "every second": tensor.repeat_interleave(2, 0)[::2],
        "a part of the last dimension": torch.cat([tensor, tensor], -1)[..., : tensor.shape[-1]],
        "a part of the first dimension": torch.cat([tensor, tensor])[: len(tensor)],
    }


def test_gradients_and_ids_need_not_be_contiguous() -> None:
    batch = small()
    for name, grads in layouts(batch.grads).items():
        for ids in (batch.ids, *layouts(batch.ids).values()):
            accumulator = batch.accumulator()
            linear_grads = batch.linear_grads.repeat_interleave(3)[::3]

            accumulator.add(ids, grads, linear_grads)

            assert torch.equal(grads, batch.grads), name
            check_sums(accumulator.finish(), batch)


def test_one_gradient_may_be_expanded_to_all() -> None:
    """As those of a sum or a mean are."""
    ids = small().ids
    value = torch.tensor(0.25)
    batch = Gradients([5, 4], ids, value.expand(6, 2, 3), value.expand(6))
    accumulator = batch.accumulator()

    accumulator.add(batch.ids, batch.grads, batch.linear_grads)

    check_sums(accumulator.finish(), batch)


@pytest.mark.parametrize("dim", [1, 3])
def test_one_value_a_row_and_one_row_a_batch_may_have_any_strides(dim: int) -> None:
    """Torch calls a dimension of one contiguous whatever its stride."""
    grads = torch.randn(6, 7, 5)[:, :2, :1].expand(6, 2, dim)
    strange = torch.as_strided(torch.randn(100), (1, 2, dim), (77, 13, 5))
    for values in (grads, strange):
        batch = Gradients([5, 4], small().ids[: len(values)], values, torch.randn(len(values)))
        accumulator = batch.accumulator()

        accumulator.add(batch.ids, batch.grads, batch.linear_grads)

        check_sums(accumulator.finish(), batch)


def test_an_empty_batch_has_no_rows() -> None:
    batch = small(batch=0)
    accumulator = batch.accumulator()

    accumulator.add(batch.ids, batch.grads, batch.linear_grads)
    sums, linear_sums = accumulator.finish()

    assert linear_sums is not None
    assert sums.to_dense().tolist() == [[0.0] * 3] * 9
    assert linear_sums.to_dense().tolist() == [[0.0]] * 9
    assert sums.index.dense_counts().tolist() == [0] * 9


def test_nothing_added_is_an_empty_batch_too() -> None:
    sums, _ = small().accumulator().finish()

    assert sums.index.dense_counts().tolist() == [0] * 9


def test_the_gradients_are_only_read() -> None:
    batch = small()
    before = batch.grads.clone(), batch.linear_grads.clone(), batch.ids.clone()
    accumulator = batch.accumulator()

    accumulator.add(batch.ids, batch.grads, batch.linear_grads)
    accumulator.add(batch.ids[:0], batch.grads[:0], batch.linear_grads[:0])
    accumulator.clear()

    assert torch.equal(batch.grads, before[0])
    assert torch.equal(batch.linear_grads, before[1])
    assert torch.equal(batch.ids, before[2])


def test_other_dtypes_are_summed_by_plain_torch() -> None:
    accumulator = make_accumulator([5, 4], 3, batch_rows=6, linear=True, dtype=torch.bfloat16)

    assert isinstance(accumulator, PlainRowAccumulator)


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("integer", INTEGERS)
@pytest.mark.parametrize(("field", "number", "size"), [(0, -1, 5), (0, 5, 5), (1, 4, 4), (1, -1, 4)])
def test_an_id_that_its_field_does_not_have_is_named(
    field: int, number: int, size: int, integer: torch.dtype
) -> None:
    batch = small()
    ids = batch.ids.to(integer)
    ids[3, field] = number

    message = rf"id {number} of field {field}, row 3 of the batch, is outside \[0, {size}\)"
    with pytest.raises(IndexError, match=message):
        batch.accumulator().add(ids, batch.grads, batch.linear_grads)


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_the_largest_and_least_numbers_are_ids_out_of_range_too(number: int) -> None:
    batch = small()
    batch.ids[5, 1] = number

    with pytest.raises(IndexError, match=rf"id {number} of field 1, row 5"):
        batch.accumulator().add(batch.ids, batch.grads, batch.linear_grads)


def test_a_batch_after_one_with_a_bad_id_is_summed_as_any() -> None:
    batch = small()
    accumulator = batch.accumulator()
    bad = batch.ids.clone()
    bad[4, 1] = 99
    with pytest.raises(IndexError):
        accumulator.add(bad, batch.grads, batch.linear_grads)

    accumulator.clear()
    accumulator.add(batch.ids, batch.grads, batch.linear_grads)

    check_sums(accumulator.finish(), batch)


@pytest.mark.parametrize("pieces", [(7,), (3, 4), (6, 1)])
def test_more_rows_than_announced_are_a_value_error(pieces: Sequence[int]) -> None:
    batch = small(batch=7)
    accumulator = make_accumulator(batch.sizes, 3, batch_rows=6, linear=False)

    def add_all() -> None:
        for rows in pieces:
            accumulator.add(batch.ids[:rows], batch.grads[:rows])

    with pytest.raises(ValueError, match="a batch of 7 rows, where 6 were announced"):
        add_all()


# --- large batches ------------------------------------------------------------------------------


def test_entries_past_2_to_the_31_values_are_their_own() -> None:
    """The second field's entries begin at 2^21, of 1024 values each; only what is used takes up memory."""
    dim, first = 1024, 2**21
    try:
        accumulator = make_accumulator([first, 5], dim, batch_rows=first, linear=True)
    except RuntimeError as error:
        pytest.skip(f"no room for {4 * first * dim} bytes that are not used: {error}")
    ids = torch.tensor([[first - 1, 4], [7, 4], [7, 0]])
    grads = torch.arange(6.0).view(3, 2, 1).expand(3, 2, dim)

    accumulator.add(ids, grads, torch.tensor([1.0, 2.0, 4.0]))
    sums, linear_sums = accumulator.finish()

    assert linear_sums is not None
    entries = sums.index.slots[[first - 1, 7, first + 4, first]].long()
    assert int(entries.max()) * dim >= 2**31
    assert sums.index.counts[entries].tolist() == [1, 2, 2, 1]
    assert sums.sums[entries].tolist() == [[value] * dim for value in (0.0, 6.0, 4.0, 5.0)]
    assert linear_sums.sums[entries, 0].tolist() == [1.0, 6.0, 3.0, 4.0]
