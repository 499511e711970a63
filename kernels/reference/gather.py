"""The rows of a table that a batch asks for."""

from __future__ import annotations

from torch import Tensor


def gather_rows(table: Tensor, rows: Tensor) -> Tensor:
    """Copy rows out of a table: ``out[..., :] = table[rows[...], :]``.

    Parameters
    ----------
    table:
        ``[num_rows, d]``, any dtype; ``num_rows * d`` may pass 2^31.
    rows:
        int64 or int32 ``[...]``: row numbers in ``[0, num_rows)``.

    Returns
    -------
    Tensor
        ``[..., d]``, contiguous, of the table's dtype.

    Raises
    ------
    ValueError
        ``table`` is not a matrix.
    IndexError
        A row number is out of range (on CUDA: a device-side assertion).
    """
    if table.dim() != 2:
        raise ValueError(f"a table is [rows, d], not {list(table.shape)}")
    return table.index_select(0, rows.reshape(-1)).view(*rows.shape, table.shape[1])
