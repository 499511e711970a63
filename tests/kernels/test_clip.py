import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stampede.kernels import clip_rows

DTYPES = [torch.float32, torch.float64]


def clip_by_loop(
    grads: Tensor, weights: Tensor, counts: Tensor, ratio: float, zeta: float
) -> list[list[float]]:
    """The rule of DESIGN section 4, row by row in Python's own floats."""
    out = []
    for g, w, count in zip(grads.tolist(), weights.tolist(), counts.tolist(), strict=True):
        norm = math.sqrt(math.fsum(x * x for x in g))
        floor = ratio * math.sqrt(len(w)) * zeta
        threshold = ratio * max(count, 1) * max(math.sqrt(math.fsum(x * x for x in w)), floor)
        out.append([x * min(1.0, threshold / norm) if norm else 0.0 for x in g])
    return out


@settings(deadline=None)
@given(
    rows=st.integers(0, 8),
    dim=st.sampled_from([1, 2, 3, 4, 10, 16]),
    ratio=st.sampled_from([0.5, 1.0, 10.0]),
    zeta=st.sampled_from([0.0, 1e-5, 1e-2]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 9999),
)
def test_clipping_is_the_rule_row_by_row(
    rows: int, dim: int, ratio: float, zeta: float, dtype: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        scales = 10.0 ** torch.randint(-6, 3, (rows, 1), generator=generator, dtype=dtype)
        zeros = torch.rand(rows, 1, generator=generator) < 0.2
        return (torch.randn(rows, dim, dtype=dtype, generator=generator) * scales).masked_fill(zeros, 0.0)

    grads, weights = draw(), draw()
    counts = torch.randint(0, 4, (rows,), generator=generator, dtype=torch.int32)

    clipped, which = clip_rows(grads, weights, counts=counts, ratio=ratio, zeta=zeta)

    expected = torch.tensor(clip_by_loop(grads, weights, counts, ratio, zeta), dtype=dtype).reshape(rows, dim)
    torch.testing.assert_close(clipped, expected, rtol=1e-6 if dtype == torch.float32 else 1e-13, atol=0.0)
    assert torch.equal(clipped[~which], grads[~which])


def test_a_row_within_its_threshold_is_left_bit_for_bit() -> None:
    grads = torch.randn(10_000, 10)
    norms = torch.linalg.vector_norm(grads, dim=1, keepdim=True)
    weights = grads / norms * norms.mul(1.5)  # every threshold is half as large again as the norm

    clipped, which = clip_rows(grads, weights, counts=torch.ones(10_000, dtype=torch.int32))

    assert not which.any()
    assert torch.equal(clipped, grads)


def test_the_threshold_grows_with_the_count_and_an_absent_row_counts_as_one() -> None:
    grads = torch.full((3, 1), 100.0)
    weights = torch.ones(3, 1)

    clipped, which = clip_rows(grads, weights, counts=torch.tensor([0, 1, 7]))

    assert clipped.flatten().tolist() == [1.0, 1.0, 7.0]
    assert which.tolist() == [True, True, True]


def test_the_ratio_stands_in_the_floor_too() -> None:
    grads, weights = torch.full((1, 4), 1.0), torch.zeros(1, 4)

    clipped, _ = clip_rows(grads, weights, counts=torch.tensor([3]), ratio=0.5, zeta=0.01)

    # 0.5 * 3 * (0.5 * sqrt(4) * 0.01) = 0.015, over a norm of 2
    torch.testing.assert_close(clipped, torch.full((1, 4), 0.0075))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_zero_gradient_stays_zero_also_under_a_zero_threshold(dtype: torch.dtype) -> None:
    zeros = torch.zeros(2, 4, dtype=dtype)

    clipped, which = clip_rows(zeros, zeros, counts=torch.tensor([0, 5]), zeta=0.0)

    assert torch.equal(clipped, zeros)
    assert not which.any()


def test_a_zero_threshold_removes_the_gradient() -> None:
    clipped, which = clip_rows(torch.ones(1, 4), torch.zeros(1, 4), counts=torch.tensor([5]), zeta=0.0)

    assert torch.equal(clipped, torch.zeros(1, 4))
    assert which.tolist() == [True]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_diverged_gradient_stays_visible_and_in_its_row(value: float) -> None:
    grads = torch.tensor([[value, 1.0], [1.0, 1.0]])

    clipped, _ = clip_rows(grads, torch.ones(2, 2), counts=torch.tensor([1, 1]))

    assert not clipped[0].isfinite().all()
    assert torch.equal(clipped[1], grads[1])


def test_the_arguments_are_not_changed() -> None:
    grads, weights, counts = torch.full((2, 3), 9.0), torch.ones(2, 3), torch.tensor([0, 1])

    clip_rows(grads, weights, counts=counts)

    assert torch.equal(grads, torch.full((2, 3), 9.0))
    assert torch.equal(weights, torch.ones(2, 3))
    assert counts.tolist() == [0, 1]


def test_inputs_need_not_be_contiguous() -> None:
    grads, weights, counts = torch.randn(4, 6).T, torch.randn(4, 12).T[::2], torch.arange(12)[::2]

    clipped, _ = clip_rows(grads, weights, counts=counts)

    again, _ = clip_rows(grads.contiguous(), weights.contiguous(), counts=counts.contiguous())
    torch.testing.assert_close(clipped, again)


def test_shapes_must_fit() -> None:
    with pytest.raises(ValueError, match=r"\[4\]"):
        clip_rows(torch.ones(3, 2), torch.ones(3, 2), counts=torch.ones(4, dtype=torch.int32))
