"""The one-pass update of a table is regulariser, clip and Adam of the definition.

Values of a row, its m and its gradient are drawn with one sign, so that nothing cancels and each result is
held to its own size. Weights and gradients span what a float holds; left out are rows whose squares are
denormal, where the order of a sum decides, and, of a single value, those whose square leaves the range:
torch takes the norm of one value without squaring it.
"""

from __future__ import annotations

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

from stampede.kernels import (
    RowGradients,
    RowIndex,
    adam_,
    add_l2,
    update_entries,
    update_table,
    update_values,
)
from stampede.kernels.reference.update import apply_cowclip_adam_

NAMES = ("weights", "exp_avg", "exp_avg_sq")
DTYPES = [torch.float32, torch.float64]
# Of the terms of a result. Float32: the kernel forms 1 - beta2 from the rounded 0.999, as the reference
# program does, which moves v by 1.3e-5.
ROUNDING = {torch.float32: 2e-5, torch.float64: 1e-13}


@dataclass
class State:
    """A table, and the gradient of a batch."""

    weights: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    gradients: RowGradients

    def copy(self) -> State:
        return State(self.weights.clone(), self.exp_avg.clone(), self.exp_avg_sq.clone(), self.gradients)

    def of_rows(self, rows: Tensor, gradients: RowGradients) -> State:
        return State(self.weights[rows], self.exp_avg[rows], self.exp_avg_sq[rows], gradients)

    @property
    def means(self) -> dict[str, Any]:
        return {"exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq}

    @property
    def counts(self) -> Tensor:
        return self.gradients.index.dense_counts()


@st.composite
def states(draw: st.DrawFn, *, finite: bool = False) -> State:
    """Draw a table whose rows differ in size by many orders, and a batch with some of its rows."""
    dim = draw(st.one_of(st.integers(1, 128), st.sampled_from([1, 10])))
    rows = draw(st.integers(1, 60)) + draw(st.sampled_from([0, 0, 2 * 2048 // dim]))  # one block, and three
    occurrences = draw(st.integers(0, 60))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    weight_scales, gradient_scales = [0, 1e-6, 1e-2, 1, 1e6], [0, 1e-12, 1e-3, 1, 1e6]
    if dim > 1:
        weight_scales += [1e-25]
        gradient_scales += [1e-25, 1e15, 1e25]
    if not finite and draw(st.booleans()):
        gradient_scales += [math.inf, math.nan]
    signs = torch.randint(2, (rows, dim), generator=generator).to(dtype) * 2 - 1

    def values(scales: list[float]) -> Tensor:
        chosen = torch.tensor(scales, dtype=dtype)[torch.randint(len(scales), (rows, 1), generator=generator)]
        sizes = torch.rand(rows, dim, generator=generator, dtype=dtype) + 0.1
        return sizes * chosen * signs

    batch = torch.randint(rows, (occurrences,), generator=generator)
    if draw(st.booleans()):
        batch[:] = draw(st.integers(0, rows - 1))  # one id for all
    return State(
        values(weight_scales),
        values([0, 1e-38, 1e-20, 1e-3, 1]),
        values([0, 1e-38, 1e-20, 1e-6, 1]).square(),
        with_unused(batch, values(gradient_scales)),
    )


def with_unused(batch: Tensor, of_row: Tensor) -> RowGradients:
    """Count a batch and give each of its rows a gradient, with undefined entries between those in use."""
    rows, dim = of_row.shape
    unique, counts = torch.unique(batch, return_counts=True)
    entries = len(unique)
    index = RowIndex(
        rows=torch.full((2 * entries,), 2**40),
        counts=torch.zeros(2 * entries, dtype=torch.int32),
        slots=torch.full((rows,), -1, dtype=torch.int32),
    )
    sums = torch.full((2 * entries, dim), math.nan, dtype=of_row.dtype)
    index.rows[1::2], index.counts[1::2], sums[1::2] = unique, counts.to(torch.int32), of_row[unique]
    index.slots[unique] = torch.arange(entries, dtype=torch.int32) * 2 + 1
    return RowGradients(index, sums)


OPTIONS = st.fixed_dictionaries(
    {
        "rate": st.sampled_from([1e-3, 0.5]),
        "l2": st.sampled_from([0.0, 1e-5, 0.3, 3.0]),
        "clip": st.sampled_from([None, (1.0, 1e-5), (0.5, 0.0), (10.0, 1e-2), (0.1, 1e-4)]),
        "betas": st.sampled_from([(0.9, 0.999), (0.0, 0.5)]),
        "eps": st.sampled_from([1e-7, 1e-3]),
    }
)


def by_definition(state: State, options: dict[str, Any]) -> tuple[State, Tensor]:
    after = state.copy()
    clipped = apply_cowclip_adam_(
        after.weights, state.gradients.to_dense(), counts=state.counts, **after.means, **options
    )
    return after, clipped


def check_close(found: State, expected: State, before: State, options: dict[str, Any]) -> None:
    smallest = torch.finfo(before.weights.dtype).tiny
    step = options["rate"] * expected.exp_avg / (expected.exp_avg_sq.sqrt() + options["eps"])
    terms = {
        "weights": before.weights.abs() + step.abs(),
        "exp_avg": expected.exp_avg.abs(),
        "exp_avg_sq": expected.exp_avg_sq,
    }
    for name in NAMES:
        a, b = getattr(found, name), getattr(expected, name)
        assert torch.equal(a.isnan(), b.isnan()), name
        # a mean at the smallest normal number may be flushed on one side
        bound = ROUNDING[a.dtype] * terms[name] + 2 * smallest
        off = ~((a == b) | a.isnan() | ((a - b).abs() <= bound))
        assert not off.any(), (name, a[off], b[off])


def same_bits(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are equal, NaN where there is NaN."""
    return torch.equal(found.nan_to_num(), expected.nan_to_num()) and torch.equal(
        found.isnan(), expected.isnan()
    )


@settings(deadline=None, max_examples=150, derandomize=True)
@given(state=states(), options=OPTIONS)
def test_every_row_is_updated_as_by_the_definition(state: State, options: dict[str, Any]) -> None:
    expected, clipped = by_definition(state, options)
    found = state.copy()

    number = update_table(found.weights, state.gradients, **found.means, **options)

    assert int(number) == int(clipped)
    check_close(found, expected, state, options)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(state=states(), options=OPTIONS)
def test_a_dense_gradient_with_its_counts_gives_the_bits_of_the_batchs_rows(
    state: State, options: dict[str, Any]
) -> None:
    of_rows, dense = state.copy(), state.copy()

    number = update_table(of_rows.weights, state.gradients, **of_rows.means, **options)
    again = update_table(
        dense.weights, state.gradients.to_dense(), counts=state.counts.long(), **dense.means, **options
    )

    assert int(number) == int(again)
    for name in NAMES:
        assert same_bits(getattr(dense, name), getattr(of_rows, name)), name


@settings(deadline=None, max_examples=80, derandomize=True)
@given(state=states(), options=OPTIONS)
def test_the_rows_of_the_batch_alone_are_updated_and_the_others_keep_every_bit(
    state: State, options: dict[str, Any]
) -> None:
    present = state.counts > 0
    rows = present.nonzero().squeeze(1)
    batch = torch.arange(len(rows)).repeat_interleave(state.counts[rows])
    part = state.of_rows(rows, with_unused(batch, state.gradients.to_dense()[rows]))
    expected, clipped = by_definition(part, options)
    found = state.copy()

    number = update_entries(found.weights, state.gradients, **found.means, **options)

    assert int(number) == int(clipped)
    check_close(found.of_rows(rows, part.gradients), expected, part, options)
    for name in NAMES:
        assert same_bits(getattr(found, name)[~present], getattr(state, name)[~present]), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("update", [update_table, update_entries])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clip", [None, (1.0, 1e-5)])
def test_a_diverged_gradient_shows_in_its_row_and_leaves_the_others_alone(
    clip: tuple[float, float] | None, value: float, update: Any, dtype: torch.dtype
) -> None:
    weights = torch.rand(40, 3, dtype=dtype)
    batch, grads = torch.arange(0, 40, 2), torch.rand(40, 3, dtype=dtype)
    ends = []
    for first in (0.5, value):
        grads[6, 1] = first
        state = State(
            weights.clone(), torch.zeros_like(weights), torch.zeros_like(weights), with_unused(batch, grads)
        )
        update(state.weights, state.gradients, **state.means, rate=0.1, l2=1e-3, clip=clip)
        ends.append(state)

    healthy, diverged = ends
    assert not diverged.weights[6].isfinite().all()
    others = torch.arange(40) != 6
    for name in NAMES:
        assert torch.equal(getattr(diverged, name)[others], getattr(healthy, name)[others])


def test_gradients_and_weights_of_mixed_signs_are_summed_as_by_the_definition() -> None:
    """On more rows than a task has, so over several of them."""
    torch.manual_seed(0)
    weights, grads = torch.randn(3000, 33, dtype=torch.float64), torch.randn(3000, 33, dtype=torch.float64)
    means = torch.randn_like(weights), torch.rand_like(weights)
    state = State(weights, *means, with_unused(torch.randint(3000, (5000,)), grads))
    options: dict[str, Any] = {
        "rate": 0.01,
        "l2": 0.05,
        "clip": (0.7, 1e-3),
        "betas": (0.9, 0.999),
        "eps": 1e-7,
    }
    expected, clipped = by_definition(state, options)
    found = state.copy()

    number = update_table(found.weights, state.gradients, **found.means, **options)

    assert 0 < int(number) == int(clipped) < 3000
    for name in NAMES:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("update", [update_table, update_entries])
def test_means_below_the_smallest_normal_number_become_zero(update: Any, dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    weights = torch.ones(1, 3, dtype=dtype)
    means: dict[str, Any] = {
        name: torch.tensor([[tiny, 4 * tiny, math.nan]], dtype=dtype) for name in ("exp_avg", "exp_avg_sq")
    }
    gradients = with_unused(torch.tensor([0]), torch.zeros(1, 3, dtype=dtype))

    update(weights, gradients, **means, rate=0.1, betas=(0.5, 0.5))

    for mean in means.values():
        assert mean[0, :2].tolist() == [0.0, 2 * tiny]
        assert mean[0, 2].isnan()


@pytest.mark.parametrize("l2", [0.3, 0.7])
def test_rows_that_the_batch_does_not_have_are_clipped_where_the_regulariser_is_enormous(l2: float) -> None:
    """Their gradient is 2 * l2 * w against a threshold of ||w||."""
    weights = torch.full((3, 2), 0.5)
    means = torch.zeros_like(weights), torch.zeros_like(weights)
    state = State(weights, *means, with_unused(torch.tensor([1]), torch.zeros(3, 2)))

    number = update_table(state.weights, state.gradients, **state.means, rate=0.0, l2=l2, clip=(1.0, 1e-5))

    assert int(number) == (3 if 2 * l2 > 1 else 0)
    torch.testing.assert_close(state.exp_avg, torch.full((3, 2), 0.1 * 0.5 * min(2 * l2, 1.0)))


def test_without_a_regulariser_infinite_weights_give_no_gradient() -> None:
    """0 * inf is NaN."""
    weights = torch.tensor([[math.inf, 1.0]])
    means: dict[str, Any] = {"exp_avg": torch.zeros(1, 2), "exp_avg_sq": torch.zeros(1, 2)}
    gradients = with_unused(torch.tensor([], dtype=torch.int64), torch.zeros(1, 2))

    update_table(weights, gradients, **means, rate=0.1, l2=0.0)

    assert weights.tolist() == [[math.inf, 1.0]]
    assert means["exp_avg"].tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("update", [update_table, update_entries])
def test_whole_numbers_are_a_ratio_and_a_floor_too(update: Any) -> None:
    ends = []
    for clip in ((2.0, 0.0), (2, 0)):
        weights = torch.ones(1, 4)
        means: dict[str, Any] = {"exp_avg": torch.zeros(1, 4), "exp_avg_sq": torch.zeros(1, 4)}
        update(
            weights, with_unused(torch.tensor([0]), torch.full((1, 4), 100.0)), **means, rate=0.1, clip=clip
        )
        ends.append(means["exp_avg"])

    torch.testing.assert_close(ends[0], torch.full((1, 4), 0.2))
    assert torch.equal(ends[1], ends[0])


@pytest.mark.parametrize(
    ("grads", "counts"),
    [
        (torch.ones(3, 4), None),
        (torch.ones(3, 4), torch.ones(2, dtype=torch.int32)),
        (torch.ones(2, 4), torch.ones(3, dtype=torch.int32)),
    ],
)
def test_a_dense_gradient_that_does_not_fit_or_is_not_counted_is_a_value_error(
    grads: Tensor, counts: Tensor | None
) -> None:
    weights = torch.ones(3, 4)

    with pytest.raises(ValueError, match=r"a gradient \[rows, d\] is wanted, with counts \[rows\]"):
        update_table(
            weights,
            grads,
            counts=counts,
            exp_avg=torch.zeros(3, 4),
            exp_avg_sq=torch.zeros(3, 4),
            rate=0.1,
            clip=(1.0, 1e-5),
        )

    assert torch.equal(weights, torch.ones(3, 4))


@pytest.mark.parametrize("what", ["a transposed table", "a rate on the device", "a transposed gradient"])
def test_what_the_kernels_do_not_take_goes_through_plain_torch(what: str) -> None:
    torch.manual_seed(0)
    weights, grads = torch.rand(6, 3), torch.rand(6, 3)
    state = State(weights, torch.rand(6, 3), torch.rand(6, 3), with_unused(torch.tensor([0, 2, 2]), grads))
    options: dict[str, Any] = {
        "rate": 0.1,
        "l2": 1e-2,
        "clip": (0.5, 1e-4),
        "betas": (0.9, 0.999),
        "eps": 1e-7,
    }
    expected, clipped = by_definition(state, options)
    found = state.copy()
    gradients: RowGradients | Tensor = state.gradients
    given = dict(options)
    if what == "a transposed table":
        found.weights = found.weights.T.contiguous().T
    elif what == "a rate on the device":
        given["rate"] = torch.tensor(0.1)
    else:
        gradients, given["counts"] = state.gradients.to_dense().T.contiguous().T, state.counts

    number = update_table(found.weights, gradients, **found.means, **given)

    assert int(number) == int(clipped)
    for name in NAMES:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))


def test_the_rows_of_the_batch_alone_go_through_plain_torch_where_the_table_is_transposed() -> None:
    torch.manual_seed(0)
    gradients = with_unused(torch.tensor([0, 2, 2]), torch.rand(6, 3))
    weights = torch.rand(6, 3)
    means: dict[str, Any] = {name: torch.rand(6, 3) for name in NAMES[1:]}
    other = weights.T.contiguous().T
    other_means = {name: mean.clone() for name, mean in means.items()}

    number = update_entries(weights, gradients, **means, rate=0.1, l2=1e-2, clip=(0.5, 1e-4))
    again = update_entries(other, gradients, **other_means, rate=0.1, l2=1e-2, clip=(0.5, 1e-4))

    assert not other.is_contiguous()
    assert number == again
    torch.testing.assert_close(other, weights)
    for name, mean in means.items():
        torch.testing.assert_close(other_means[name], mean, rtol=2e-5, atol=0.0)


# --- weights of any shape -----------------------------------------------------------------------


@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    shape=st.one_of(
        st.lists(st.integers(0, 7), max_size=3),
        st.sampled_from([[2047], [2048], [2049], [65_536], [65_537], [3, 50_000]]),
    ),
    dtype=st.sampled_from(DTYPES),
    l2=st.sampled_from([0.0, 1e-5, 3.0]),
    layout=st.sampled_from(["contiguous", "expanded", "transposed"]),
)
def test_weights_of_any_shape_are_updated_as_by_the_definition(
    shape: list[int], dtype: torch.dtype, l2: float, layout: str
) -> None:
    torch.manual_seed(0)
    weights, grads = torch.rand(shape, dtype=dtype), torch.rand(shape, dtype=dtype)
    if layout == "expanded":
        grads = torch.rand((), dtype=dtype).expand(shape)
    if layout == "transposed" and len(shape) > 1:
        grads = grads.transpose(0, -1).contiguous().transpose(0, -1)
    before = grads.clone()
    found, expected = weights.clone(), weights.clone()
    means: dict[str, Any] = {name: torch.full(shape, 0.5, dtype=dtype) for name in NAMES[1:]}
    expected_means = {name: mean.clone() for name, mean in means.items()}

    update_values(found, grads, **means, rate=0.1, l2=l2, betas=(0.9, 0.999), eps=1e-7)

    rate = 0.1 * (1 - 0.9) / math.sqrt(1 - 0.999)  # which adam_ corrects at step 1
    adam_(expected, add_l2(grads, expected, l2=l2), **expected_means, learning_rate=rate, step=1)
    tolerance: dict[str, Any] = {"rtol": ROUNDING[dtype], "atol": ROUNDING[dtype]}
    torch.testing.assert_close(found, expected, **tolerance)
    for name, mean in means.items():
        torch.testing.assert_close(mean, expected_means[name], **tolerance)
    assert torch.equal(grads, before)


# --- large tables -------------------------------------------------------------------------------


def test_rows_past_2_to_the_31_values_are_updated(
    tmp_path: Path, sparse_file: Callable[[Path, int, int], Tensor]
) -> None:
    dim, rows = 1024, 2**21 + 3
    weights, exp_avg, exp_avg_sq = (sparse_file(tmp_path / name, rows, dim) for name in NAMES)
    weights[-1], weights[5] = 1.0, 1.0
    gradients = with_unused_of_few(torch.tensor([rows - 1, 5]), torch.full((2, dim), 2.0), rows)

    number = update_entries(
        weights, gradients, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq, rate=0.5, clip=(1.0, 1e-5)
    )

    assert (rows - 1) * dim >= 2**31
    assert int(number) == 2
    for row in (rows - 1, 5):
        torch.testing.assert_close(exp_avg[row], torch.full((dim,), 0.1))
        torch.testing.assert_close(exp_avg_sq[row], torch.full((dim,), 0.001), rtol=2e-5, atol=0.0)
    assert torch.equal(weights[-1], weights[5])
    assert float(weights[-1, 0]) == pytest.approx(1 - 0.5 * 0.1 / math.sqrt(0.001), rel=1e-5)
    taken = sum((tmp_path / name).stat().st_blocks for name in NAMES) * 512
    assert taken < 1 << 24  # nothing else was written to


def with_unused_of_few(batch: Tensor, grads: Tensor, num_rows: int) -> RowGradients:
    slots = torch.full((num_rows,), -1, dtype=torch.int32)
    slots[batch] = torch.arange(len(batch), dtype=torch.int32)
    return RowGradients(RowIndex(batch, torch.ones(len(batch), dtype=torch.int32), slots), grads)


def test_means_and_gradients_of_another_table_are_refused() -> None:
    weights = torch.zeros(6, 2)
    means = {"exp_avg": torch.zeros(6, 2), "exp_avg_sq": torch.zeros(6, 2)}
    other = RowGradients.of_batch(torch.tensor([0, 2]), torch.zeros(2, 2), num_rows=5)

    with pytest.raises(ValueError, match=r"means of \[3, 2\]"):
        update_table(weights, weights, rate=0.1, exp_avg=torch.zeros(3, 2), exp_avg_sq=torch.zeros(3, 2))
    for function in (update_table, update_entries):
        with pytest.raises(ValueError, match="of another table"):
            function(weights, other, rate=0.1, **means)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="of another table"):
        update_values(weights, torch.zeros(12), rate=0.1, **means)  # type: ignore[arg-type]
