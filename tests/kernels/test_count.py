import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stampede.kernels import count_rows


@given(rows=st.lists(st.integers(0, 6), max_size=40), dtype=st.sampled_from([torch.int32, torch.int64]))
def test_counts_are_those_of_a_loop(rows: list[int], dtype: torch.dtype) -> None:
    counts = count_rows(torch.tensor(rows, dtype=dtype), 7)

    assert counts.dtype == torch.int32
    assert counts.tolist() == [rows.count(i) for i in range(7)]


def test_a_batch_of_any_shape_and_stride_is_counted() -> None:
    rows = torch.tensor([[0, 2], [1, 2], [2, 0]])

    assert count_rows(rows, 4).tolist() == [2, 1, 3, 0]
    assert count_rows(rows.T, 4).tolist() == [2, 1, 3, 0]
    assert count_rows(rows[::2, 1], 4).tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("row", [-1, 4])
def test_a_row_out_of_range_is_an_index_error(row: int) -> None:
    with pytest.raises(IndexError):
        count_rows(torch.tensor([0, row]), 4)


def test_row_numbers_must_be_integers() -> None:
    with pytest.raises(TypeError, match="float32"):
        count_rows(torch.zeros(3), 4)
