import pytest
import torch

from stampede.kernels import gather_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5,), (3, 2), (0,), (0, 4)])
def test_gathered_rows_are_the_tables(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    table = torch.randn(6, 3, dtype=dtype)
    rows = torch.randint(0, 6, shape)

    assert torch.equal(gather_rows(table, rows), table[rows])


def test_a_table_and_rows_need_not_be_contiguous() -> None:
    table, rows = torch.randn(3, 6).T, torch.randint(0, 6, (4, 2)).T

    assert torch.equal(gather_rows(table, rows), table[rows])


@pytest.mark.parametrize("row", [-1, 6])
def test_a_row_out_of_range_is_an_index_error(row: int) -> None:
    with pytest.raises(IndexError):
        gather_rows(torch.randn(6, 3), torch.tensor([row]))


def test_a_table_must_be_a_matrix() -> None:
    with pytest.raises(ValueError, match="rows, d"):
        gather_rows(torch.randn(6), torch.tensor([0]))
