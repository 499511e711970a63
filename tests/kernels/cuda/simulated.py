"""Runs the numba-cuda kernels in numba's simulator of CUDA, against plain torch; a program of its own.

The simulator is chosen by the environment (NUMBA_ENABLE_CUDASIM=1) before numba is imported, and runs each
thread of a block as a thread of the operating system: small sizes alone.
"""

from __future__ import annotations

import math

import torch

from stampede.kernels.cuda import Batch, batch, clip, clip_rows, gather_batch
from stampede.kernels.reference import clip_rows as plain_clip_rows

# Few threads, each of which is one of the operating system's.
batch.LANES, batch.ROWS = 4, 3
clip.LANES, clip.ROWS = 4, 6


def check_gather_batch() -> None:
    """A batch is the rows in their order, with repeats, of either dense type, into given memory or new."""
    draw = torch.Generator().manual_seed(0)
    for dense_type, fields, dense in (
        (torch.float32, 26, 13),
        (torch.bfloat16, 3, 40),
        (torch.float32, 2, 0),
    ):
        rows = Batch(
            torch.randint(1000, (30, fields), generator=draw, dtype=torch.int32),
            torch.randn(30, dense, generator=draw).to(dense_type),
            torch.randint(2, (30,), generator=draw, dtype=torch.int8),
        )
        order = torch.tensor([7, 29, 0, 7, 12, 3, 3, 28, 1])
        batch = gather_batch(rows, order)
        for source, target in zip(rows, batch, strict=True):
            assert torch.equal(target, source[order])
        into = Batch(*(torch.zeros_like(part[:9]) for part in rows))
        assert gather_batch(rows, order, out=into) is into
        for source, target in zip(rows, into, strict=True):
            assert torch.equal(target, source[order])
        assert len(gather_batch(rows, order[:0]).labels) == 0


def check_clip_rows() -> None:
    """The clip is the reference's: repeated and absent rows, zero norms, huge, tiny and broken gradients."""
    draw = torch.Generator().manual_seed(1)
    for rows, dim in ((1, 1), (17, 10), (20, 33)):
        grads = torch.randn(rows, dim, generator=draw)
        weights = torch.randn(rows, dim, generator=draw)
        counts = torch.randint(4, (rows,), generator=draw, dtype=torch.int32)
        if rows > 1:
            grads[0], grads[1], grads[2, 0], grads[3, 0] = 0, 1e25, math.nan, math.inf
            grads[4], weights[5], weights[6] = 1e-30, 0, 1e-30
            weights[0] = 0
        for ratio, zeta in ((1.0, 1e-5), (0.5, 0.0)):
            expected, expected_clipped = plain_clip_rows(
                grads, weights, counts=counts, ratio=ratio, zeta=zeta
            )
            found, clipped = clip_rows(grads, weights, counts=counts, ratio=ratio, zeta=zeta)
            assert torch.equal(clipped, expected_clipped)
            assert torch.equal(found[~clipped].nan_to_num(-7.0), grads[~clipped].nan_to_num(-7.0))
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, equal_nan=True)


if __name__ == "__main__":
    check_gather_batch()
    check_clip_rows()
    print("simulated")
