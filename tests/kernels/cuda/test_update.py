"""The update's CUDA C, run on the CPU, against plain torch in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.cuda.cuda_on_cpu import CpuKernels
from torch import Tensor

from stampede.kernels.cuda import update_entries, update_table, update_values
from stampede.kernels.reference.update import add_l2, apply_adam_, apply_cowclip_adam_
from stampede.kernels.rows import RowGradients, RowIndex

pytestmark = pytest.mark.usefixtures("on_cpu")

SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
NAMES = ("weights", "exp_avg", "exp_avg_sq")


@dataclass
class State:
    """A table before a step, and the step's gradient."""

    weights: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    gradients: RowGradients

    def copy(self) -> State:
        return State(self.weights.clone(), self.exp_avg.clone(), self.exp_avg_sq.clone(), self.gradients)

    @property
    def tensors(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in NAMES}


@st.composite
def states(draw: st.DrawFn) -> State:
    """Draw a table whose rows differ in magnitude by many orders, and a batch with some of its rows."""
    rows, dim = draw(st.integers(1, 90)), draw(st.integers(1, 128))
    occurrences = draw(st.integers(0, 60))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def values(count: int, scales: list[float]) -> Tensor:
        chosen = torch.tensor(scales)[torch.randint(len(scales), (count, 1), generator=generator)]
        return torch.randn(count, dim, generator=generator) * chosen

    weight_scales, gradient_scales = [0, 1e-6, 1e-2, 1, 1e6], [0, 1e-12, 1e-3, 1, 1e6]
    if dim > 1:  # torch takes the norm of one value without squaring it, so it neither over- nor underflows
        weight_scales += [1e-30]
        gradient_scales += [1e-30, 1e-22, 1e18, 1e20, 1e25]
    weights = values(rows, weight_scales)
    if draw(st.booleans()):
        gradient_scales += [torch.inf, torch.nan]
    exp_avg = values(rows, [0, 1e-38, 1e-20, 1e-3, 1])
    exp_avg_sq = values(rows, [0, 1e-38, 1e-20, 1e-6, 1]).square()
    batch = torch.randint(rows, (occurrences,), generator=generator)
    if draw(st.booleans()):
        batch[:] = draw(st.integers(0, rows - 1))  # one hot id
    grads = values(occurrences, gradient_scales)
    return State(weights, exp_avg, exp_avg_sq, _with_unused(batch, grads, rows=rows))


def _with_unused(batch: Tensor, grads: Tensor, *, rows: int) -> RowGradients:
    """Sum a batch, with unused entries between those in use, their content undefined."""
    dense = RowGradients.of_batch(batch, grads, num_rows=rows)
    entries, dim = dense.sums.shape
    index = RowIndex(
        rows=torch.full((2 * entries,), 2**40),
        counts=torch.zeros(2 * entries, dtype=torch.int32),
        slots=torch.where(dense.index.slots < 0, -1, 2 * dense.index.slots),
    )
    sums = torch.full((2 * entries, dim), torch.nan)
    index.rows[::2], index.counts[::2], sums[::2] = dense.index.rows, dense.index.counts, dense.sums
    return RowGradients(index, sums)


OPTIONS = st.fixed_dictionaries(
    {
        "rate": st.sampled_from([1e-3, 0.5]),
        "l2": st.sampled_from([0.0, 1e-5, 0.6]),
        "clip": st.sampled_from([None, (1.0, 1e-5), (0.5, 0.0), (2.0, 1e-4)]),
        "betas": st.just((0.9, 0.999)),
        "eps": st.just(1e-7),
    }
)


def check_close(found: State, expected: State, before: State, options: dict[str, Any]) -> None:
    """Hold a step's results to each other, within what rounding makes of float32.

    1e-5 of a value's size before and after; where m cancels, that of its terms, in w too. A flush may fall
    either side. Left out is where the batch's gradient and the L2 term cancel.
    """
    batch, decay = before.gradients.to_dense(), 2 * options["l2"] * before.weights
    cancelled = (batch + decay).abs() < 0.05 * (batch.abs() + decay.abs())
    slack = 1e-6 * (before.exp_avg.abs() + expected.exp_avg.abs())
    slacks = {
        "weights": options["rate"] * slack / (expected.exp_avg_sq.sqrt() + options["eps"]),
        "exp_avg": slack,
        "exp_avg_sq": torch.zeros(()),
    }
    for name in NAMES:
        a, b, start = getattr(found, name), getattr(expected, name), getattr(before, name)
        assert torch.equal(a.isnan(), b.isnan()), name
        bound = 1e-5 * (b.abs() + start.abs()) + 2 * SMALLEST_NORMAL + slacks[name]
        off = ~((a == b) | a.isnan() | cancelled | ((a - b).abs() <= bound))
        assert not off.any(), (name, a[off], b[off], start[off])


def doubtful_rows(state: State, options: dict[str, Any]) -> int:
    """How many rows are so near to their threshold that rounding decides."""
    if options["clip"] is None:
        return 0
    ratio, zeta = options["clip"]
    weights = state.weights.double()
    grads = add_l2(state.gradients.to_dense().double(), weights, l2=options["l2"])
    floor = ratio * weights.shape[1] ** 0.5 * zeta
    counts = state.gradients.index.dense_counts().clamp(min=1)
    thresholds = ratio * counts * weights.norm(dim=1).clamp(min=floor)
    norms = grads.norm(dim=1)
    # Squares below the smallest float32 count as nothing in one order of summation and not in another.
    near = ((norms - thresholds).abs() <= 1e-5 * norms) | ((norms > 0) & (norms < 1e-20))
    return int(near.sum())


@settings(max_examples=120, deadline=None)
@given(state=states(), options=OPTIONS)
def test_a_table_is_updated_as_by_plain_torch(state: State, options: dict[str, Any]) -> None:
    expected, found = state.copy(), state.copy()
    expected_clipped = apply_cowclip_adam_(
        grads=state.gradients.to_dense(),
        counts=state.gradients.index.dense_counts(),
        **expected.tensors,
        **options,
    )
    clipped = update_table(gradients=state.gradients, **found.tensors, **options)
    assert clipped.dtype == torch.int64
    assert abs(int(clipped) - int(expected_clipped)) <= doubtful_rows(state, options)
    check_close(found, expected, state, options)


@settings(max_examples=60, deadline=None)
@given(state=states(), options=OPTIONS)
def test_the_rows_of_a_batch_alone_are_updated(state: State, options: dict[str, Any]) -> None:
    index = state.gradients.index
    touched = index.slots >= 0
    expected, found = state.copy(), state.copy()
    parts = {name: table[touched] for name, table in expected.tensors.items()}
    apply_cowclip_adam_(
        grads=state.gradients.to_dense()[touched],
        counts=index.dense_counts()[touched],
        **parts,
        **options,
    )
    for name, table in expected.tensors.items():
        table[touched] = parts[name]
    update_entries(gradients=state.gradients, **found.tensors, **options)
    for name in NAMES:
        assert torch.equal(getattr(found, name)[~touched], getattr(state, name)[~touched])
    check_close(found, expected, state, options)


def test_a_gradient_of_the_whole_table_is_taken_too() -> None:
    weights, grads = torch.ones(3, 2), torch.tensor([[3.0, 4.0]] * 3)
    expected, state = weights.clone(), [torch.zeros(3, 2) for _ in range(4)]
    counts = torch.tensor([0, 2, 9], dtype=torch.int32)
    options: dict[str, Any] = {
        "counts": counts,
        "rate": 0.1,
        "l2": 0.0,
        "clip": (1.0, 1e-5),
        "betas": (0.9, 0.999),
        "eps": 1e-7,
    }
    wanted = apply_cowclip_adam_(expected, grads, exp_avg=state[0], exp_avg_sq=state[1], **options)
    clipped = update_table(weights, grads, exp_avg=state[2], exp_avg_sq=state[3], **options)
    assert int(clipped) == int(wanted) == 2  # ||g|| = 5 against sqrt(2) * 1, 2 and 9
    torch.testing.assert_close(weights, expected)


def test_a_row_within_its_threshold_is_left_bit_for_bit() -> None:
    """Without momentum, m is (1 - b1) * g to the bit: multiplied by 1 and by nothing else."""
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(200, 10, generator=generator)
    grads = torch.randn(200, 10, generator=generator) * 0.1
    exp_avg = torch.zeros(200, 10)
    options: dict[str, Any] = {"exp_avg_sq": torch.zeros(200, 10), "rate": 1e-3}
    clipped = update_table(weights, grads, exp_avg=exp_avg, clip=(1.0, 1e-5), betas=(0.5, 0.5), **options)
    assert int(clipped) == 0
    assert torch.equal(exp_avg, grads * 0.5)


def test_a_zero_gradient_stays_zero_where_the_threshold_is_zero() -> None:
    weights, exp_avg, exp_avg_sq = torch.zeros(3, 4, 5)
    clipped = update_table(
        weights,
        torch.zeros(4, 5),
        exp_avg=exp_avg,
        exp_avg_sq=exp_avg_sq,
        rate=0.1,
        clip=(1.0, 0.0),
    )
    assert int(clipped) == 0
    assert not weights.any()


def test_what_decays_below_the_smallest_normal_number_becomes_zero() -> None:
    weights = torch.zeros(1, 2)
    exp_avg = torch.tensor([[SMALLEST_NORMAL, torch.nan]])
    exp_avg_sq = torch.tensor([[SMALLEST_NORMAL, 1.0]])
    update_table(weights, torch.zeros(1, 2), exp_avg=exp_avg, exp_avg_sq=exp_avg_sq, rate=0.1)
    assert exp_avg[0, 0] == 0
    assert exp_avg[0, 1].isnan()
    assert exp_avg_sq[0, 0] == 0


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_broken_weight_stays_visible_and_clips_nothing(broken: float) -> None:
    """Without L2 its row's gradient is not touched: fmaxf would drop NaN, 0 * inf would make it."""
    weights, grads = torch.tensor([[broken, 1.0]]), torch.tensor([[3.0, 4.0]])
    expected, state = weights.clone(), torch.zeros(4, 1, 2)
    options: dict[str, Any] = {"clip": (1.0, 1.0), "l2": 0.0, "betas": (0.5, 0.5), "eps": 1e-7, "rate": 0.1}
    counts = torch.ones(1, dtype=torch.int32)
    wanted = apply_cowclip_adam_(
        expected, grads, counts=counts, exp_avg=state[0], exp_avg_sq=state[1], **options
    )
    clipped = update_table(weights, grads, exp_avg=state[2], exp_avg_sq=state[3], **options)
    assert int(clipped) == int(wanted) == 0
    assert state[2].tolist() == state[0].tolist() == [[1.5, 2.0]]
    torch.testing.assert_close(weights, expected, equal_nan=True)


def test_the_rate_is_read_from_the_device() -> None:
    """A replayed graph has the arguments of its capture, so the rate is memory."""
    rate = torch.tensor(0.5)
    options: dict[str, Any] = {"rate": rate, "betas": (0.0, 0.0), "eps": 0.0}
    weights, exp_avg, exp_avg_sq = torch.zeros(3, 2, 2)
    update_table(weights, torch.ones(2, 2), exp_avg=exp_avg, exp_avg_sq=exp_avg_sq, **options)
    rate.fill_(0.25)
    update_table(weights, torch.ones(2, 2), exp_avg=exp_avg, exp_avg_sq=exp_avg_sq, **options)
    assert weights.tolist() == [[-0.75] * 2] * 2


@settings(max_examples=40, deadline=None)
@given(
    shape=st.sampled_from([(), (1,), (3, 5), (1024,), (1025,), (0, 4), (7, 11, 30)]),
    l2=st.sampled_from([0.0, 1e-2]),
    seed=st.integers(0, 2**31),
)
def test_dense_weights_are_updated_as_by_plain_torch(shape: tuple[int, ...], l2: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights, grads, exp_avg = (torch.randn(shape, generator=generator) for _ in range(3))
    exp_avg_sq = torch.randn(shape, generator=generator).square()
    expected = [tensor.clone() for tensor in (weights, exp_avg, exp_avg_sq)]
    apply_adam_(
        expected[0],
        add_l2(grads, expected[0], l2=l2),
        exp_avg=expected[1],
        exp_avg_sq=expected[2],
        rate=1e-2,
    )
    update_values(weights, grads, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq, rate=1e-2, l2=l2)
    for found, wanted in zip((weights, exp_avg, exp_avg_sq), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_the_order_of_threads_changes_no_bit(on_cpu: CpuKernels) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(333, 13, generator=generator)
    grads = torch.randn(333, 13, generator=generator) * 10
    results = []
    for reverse in (False, True):
        on_cpu.reverse = reverse
        table = weights.clone()
        exp_avg, exp_avg_sq = torch.zeros(2, 333, 13)
        clipped = update_table(
            table, grads, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq, rate=0.1, clip=(1.0, 1e-5)
        )
        results.append((table, int(clipped)))
    on_cpu.reverse = False
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1] > 300
