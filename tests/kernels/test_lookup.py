"""A lookup is that of the definition, bit for bit, whatever the fields, dtypes and strides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stampede.kernels import gather_rows, lookup

VALUES = [torch.float32, torch.float64]
INTEGERS = [torch.int32, torch.int64]


@dataclass(frozen=True)
class Case:
    """Tables, and a batch of ids in their fields' ranges."""

    table: Tensor  # [rows, d]
    linear: Tensor  # [rows, 1]
    ids: Tensor  # [B, F]
    offsets: Tensor  # int64 [F + 1]

    def expected(self) -> tuple[Tensor, Tensor]:
        rows = self.ids.to(torch.int64) + self.offsets[:-1]
        first_order = gather_rows(self.linear, rows).squeeze(2)  # [B, F]
        total = torch.zeros(len(self.ids), dtype=self.linear.dtype)
        for column in first_order.unbind(1):
            total = total + column
        return gather_rows(self.table, rows), total


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=6))
    batch = draw(st.one_of(st.integers(0, 8), st.integers(120, 400)))  # below and above the rows of a task
    dim = draw(st.integers(1, 128) if batch <= 8 else st.sampled_from([1, 3, 10]))
    dtype, integer = draw(st.sampled_from(VALUES)), draw(st.sampled_from(INTEGERS))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    ids = (torch.rand(batch, len(sizes), generator=generator) * torch.tensor(sizes)).to(integer)
    rows = sum(sizes)
    return Case(
        torch.randn(rows, dim, generator=generator, dtype=dtype),
        torch.randn(rows, 1, generator=generator, dtype=dtype),
        ids,
        torch.tensor([0, *itertools.accumulate(sizes)]),
    )


def small_case(*, batch: int = 5, integer: torch.dtype = torch.int64) -> Case:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 4, (batch, 2), generator=generator, dtype=integer)
    return Case(torch.randn(9, 3), torch.randn(9, 1), ids, torch.tensor([0, 5, 9]))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(case=cases())
def test_a_batch_is_looked_up_as_by_the_definition_bit_for_bit(case: Case) -> None:
    values, first_order = lookup(case.table, case.linear, case.ids, offsets=case.offsets)

    expected, expected_first_order = case.expected()
    assert values.dtype == case.table.dtype
    assert torch.equal(values, expected)
    assert first_order is not None
    assert torch.equal(first_order, expected_first_order)


def test_without_first_order_weights_there_is_no_sum_of_them() -> None:
    case = small_case()

    values, first_order = lookup(case.table, None, case.ids, offsets=case.offsets)

    assert torch.equal(values, case.expected()[0])
    assert first_order is None


def test_ids_need_not_be_contiguous() -> None:
    case = small_case(batch=6)
    layouts = {
        "transposed": case.ids.T.contiguous().T,
        "sliced": torch.cat([case.ids, case.ids], 1)[:, :2],
        "every second row": case.ids.repeat_interleave(2, 0)[::2],
    }
    for name, ids in layouts.items():
        assert not ids.is_contiguous(), name

        values, first_order = lookup(case.table, case.linear, ids, offsets=case.offsets)

        expected, expected_first_order = case.expected()
        assert torch.equal(values, expected), name
        assert first_order is not None
        assert torch.equal(first_order, expected_first_order), name


def test_one_row_of_ids_may_be_expanded_to_a_batch() -> None:
    case = small_case(batch=1)

    values, _ = lookup(case.table, case.linear, case.ids.expand(4, 2), offsets=case.offsets)

    assert torch.equal(values, case.expected()[0].expand(4, 2, 3))


def test_results_go_where_they_are_wanted_and_nowhere_else() -> None:
    case = small_case()
    space, linear_space = torch.full((7, 2, 3), 9.0), torch.full((7,), 9.0)

    values, first_order = lookup(
        case.table, case.linear, case.ids, offsets=case.offsets, out=space[1:6], out_linear=linear_space[1:6]
    )

    assert values.data_ptr() == space[1:6].data_ptr()
    assert first_order is not None
    assert first_order.data_ptr() == linear_space[1:6].data_ptr()
    expected, expected_first_order = case.expected()
    assert torch.equal(space[1:6], expected)
    assert torch.equal(linear_space[1:6], expected_first_order)
    assert (space[[0, 6]] == 9.0).all()
    assert (linear_space[[0, 6]] == 9.0).all()


def test_without_first_order_weights_the_space_for_their_sum_stays_as_it_is() -> None:
    case = small_case()
    space = torch.full((5,), 9.0)

    lookup(case.table, None, case.ids, offsets=case.offsets, out_linear=space)

    assert (space == 9.0).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e-42])
def test_a_diverged_or_denormal_value_comes_out_as_it_is_and_in_its_row_alone(value: float) -> None:
    case = small_case()
    case.table[int(case.ids[2, 0]), 1] = value
    case.linear[int(case.ids[2, 0])] = value

    values, first_order = lookup(case.table, case.linear, case.ids, offsets=case.offsets)

    expected, expected_first_order = case.expected()
    exactly: dict[str, Any] = {"rtol": 0.0, "atol": 0.0, "equal_nan": True}
    torch.testing.assert_close(values, expected, **exactly)
    torch.testing.assert_close(first_order, expected_first_order, **exactly)


@pytest.mark.parametrize("what", ["bfloat16", "a transposed table"])
def test_a_table_that_the_kernels_do_not_take_is_looked_up_by_plain_torch(what: str) -> None:
    case = small_case()
    table, linear = (
        (case.table.bfloat16(), case.linear.bfloat16())
        if what == "bfloat16"
        else (case.table.T.contiguous().T, case.linear)
    )

    values, first_order = lookup(table, linear, case.ids, offsets=case.offsets)

    expected, expected_first_order = Case(table, linear, case.ids, case.offsets).expected()
    assert torch.equal(values, expected)
    torch.testing.assert_close(first_order, expected_first_order)


# --- ids out of range ---------------------------------------------------------------------------


@pytest.mark.parametrize("integer", INTEGERS)
@pytest.mark.parametrize(("field", "number", "size"), [(0, -1, 5), (0, 5, 5), (1, 4, 4), (1, -1, 4)])
def test_an_id_that_its_field_does_not_have_is_named(
    field: int, number: int, size: int, integer: torch.dtype
) -> None:
    """Also where it would fall into the field before or after."""
    case = small_case(integer=integer)
    case.ids[3, field] = number

    message = rf"id {number} of field {field}, row 3 of the batch, is outside \[0, {size}\)"
    with pytest.raises(IndexError, match=message):
        lookup(case.table, case.linear, case.ids, offsets=case.offsets)


@pytest.mark.parametrize(
    ("integer", "number"),
    [(torch.int32, 2**31 - 1), (torch.int32, -(2**31)), (torch.int64, 2**63 - 1), (torch.int64, -(2**63))],
)
def test_the_largest_and_least_numbers_are_ids_out_of_range_too(integer: torch.dtype, number: int) -> None:
    case = small_case(integer=integer)
    case.ids[4, 1] = number

    with pytest.raises(IndexError, match=rf"id {number} of field 1, row 4"):
        lookup(case.table, case.linear, case.ids, offsets=case.offsets)


def test_one_of_many_bad_ids_is_named_where_threads_share_a_batch() -> None:
    case = small_case(batch=1000)
    case.ids[::100, 1] = 77
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(IndexError, match=r"id 77 of field 1, row \d*00? of the batch"):
            lookup(case.table, case.linear, case.ids, offsets=case.offsets)
    finally:
        torch.set_num_threads(threads)


# --- large tables -------------------------------------------------------------------------------


def test_rows_past_2_to_the_31_values_are_found(
    tmp_path: Path, sparse_file: Callable[[Path, int, int], Tensor]
) -> None:
    dim = 1024
    rows = 2**21 + 3
    table = sparse_file(tmp_path / "table", rows, dim)
    table[-1], table[2**21 - 1], table[0] = 1.0, 2.0, 3.0
    linear = torch.zeros(rows, 1)
    ids = torch.tensor([[2**21 - 1, 2], [0, 2]])

    values, _ = lookup(table, linear, ids, offsets=torch.tensor([0, 2**21, rows]))

    assert (rows - 1) * dim >= 2**31
    assert values[:, :, 0].tolist() == [[2.0, 1.0], [3.0, 1.0]]
    assert torch.equal(values, values[:, :, :1].expand(2, 2, dim))


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"ids": torch.zeros(4, 1, dtype=torch.int16)}, TypeError),
        ({"offsets": torch.tensor([0, 3], dtype=torch.int32)}, TypeError),
        ({"offsets": torch.tensor([0, 1, 3])}, ValueError),
        ({"linear": torch.zeros(2, 1)}, ValueError),
        ({"out": torch.zeros(1, 1, 2)}, ValueError),
        ({"out": torch.zeros(4, 1, 2, dtype=torch.float64)}, ValueError),
        ({"out_linear": torch.zeros(3)}, ValueError),
        ({"offsets": torch.tensor([5, 1_000_000_000])}, IndexError),
    ],
)
def test_tensors_that_do_not_belong_together_are_refused(
    changed: dict[str, torch.Tensor], error: type[Exception]
) -> None:
    given: dict[str, Any] = {
        "table": torch.zeros(3, 2),
        "linear": torch.zeros(3, 1),
        "ids": torch.zeros(4, 1, dtype=torch.int64),
        "offsets": torch.tensor([0, 3]),
        **changed,
    }

    with pytest.raises(error):
        lookup(given.pop("table"), given.pop("linear"), given.pop("ids"), **given)
