import math
from typing import Any

import pytest
import torch
from torch import Tensor

from stampede.kernels import adam_, add_l2, clip_rows, cowclip_adam_
from stampede.kernels.reference import update

DTYPES = [torch.float32, torch.float64]


def zeros_like(table: Tensor) -> dict[str, Any]:
    return {"exp_avg": torch.zeros_like(table), "exp_avg_sq": torch.zeros_like(table)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 3), (4, 1), (7,), (0, 3)])
def test_adam_is_the_keras_form(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    weights = torch.randn(shape, dtype=dtype)
    w = weights.flatten().tolist()
    m, v = [0.0] * len(w), [0.0] * len(w)
    state = zeros_like(weights)
    lr, b1, b2, eps = 0.01, 0.8, 0.95, 1e-3

    for step in range(1, 6):
        grads = torch.randn(shape, dtype=dtype)
        adam_(weights, grads, **state, learning_rate=lr, step=step, betas=(b1, b2), eps=eps)
        for i, g in enumerate(grads.flatten().tolist()):
            m[i] = b1 * m[i] + (1 - b1) * g
            v[i] = b2 * v[i] + (1 - b2) * g * g
            w[i] -= lr * math.sqrt(1 - b2**step) / (1 - b1**step) * m[i] / (math.sqrt(v[i]) + eps)

    torch.testing.assert_close(weights, torch.tensor(w, dtype=dtype).reshape(shape))
    torch.testing.assert_close(state["exp_avg"], torch.tensor(m, dtype=dtype).reshape(shape))
    torch.testing.assert_close(state["exp_avg_sq"], torch.tensor(v, dtype=dtype).reshape(shape))


def test_epsilon_stands_beside_the_uncorrected_root() -> None:
    weights, grads = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 1e-7, dtype=torch.float64)

    adam_(weights, grads, **zeros_like(weights), learning_rate=1.0, step=1, eps=1e-7)

    root = math.sqrt(0.001)
    assert weights.item() == pytest.approx(-root * 1e-7 / (root * 1e-7 + 1e-7))  # torch's Adam: -0.5


def test_a_row_without_a_gradient_still_moves_by_its_momentum() -> None:
    weights = torch.ones(1, 2)
    state = zeros_like(weights)
    adam_(weights, torch.ones(1, 2), **state, learning_rate=0.1, step=1)
    before = weights.clone()

    adam_(weights, torch.zeros(1, 2), **state, learning_rate=0.1, step=2)

    assert (weights < before).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_means_below_the_smallest_normal_number_become_zero(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    weights = torch.ones(1, 3, dtype=dtype)
    state: dict[str, Any] = {
        name: torch.tensor([[tiny, 4 * tiny, math.nan]], dtype=dtype) for name in zeros_like(weights)
    }

    adam_(weights, torch.zeros(1, 3, dtype=dtype), **state, learning_rate=0.1, step=1, betas=(0.5, 0.5))

    for mean in state.values():
        assert mean[0, :2].tolist() == [0.0, 2 * tiny]
        assert mean[0, 2].isnan()


def test_the_gradient_of_the_regulariser_is_added_to_every_row() -> None:
    grads, weights = torch.tensor([[1.0], [0.0]]), torch.tensor([[3.0], [5.0]])

    assert add_l2(grads, weights, l2=0.5).tolist() == [[4.0], [5.0]]
    assert add_l2(grads, weights, l2=0.0) is grads


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_table_is_updated_by_regulariser_then_clip_then_adam(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weights, grads = torch.randn(50, 4, dtype=dtype), torch.randn(50, 4, dtype=dtype)
    counts = torch.randint(0, 9, (50,))
    untouched = grads.clone()
    expected, state, expected_state = weights.clone(), zeros_like(weights), zeros_like(weights)
    clip: dict[str, Any] = {"counts": counts, "ratio": 0.7, "zeta": 1e-3}
    clipped, which = clip_rows(add_l2(grads, weights, l2=1e-2), weights, **clip)
    adam_(expected, clipped, **expected_state, learning_rate=0.01, step=3)

    number = cowclip_adam_(weights, grads, **clip, **state, l2=1e-2, learning_rate=0.01, step=3)

    assert torch.equal(weights, expected)
    assert all(torch.equal(state[name], expected_state[name]) for name in state)
    assert 0 < int(number) == int(which.sum()) < 50
    assert torch.equal(grads, untouched)


@pytest.mark.parametrize("block", [1, 16, 50])
def test_the_size_of_a_block_does_not_matter(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    grads, counts = torch.randn(50, 4), torch.randint(0, 9, (50,))
    whole, blocks = (torch.randn(50, 4, generator=torch.Generator().manual_seed(1)) for _ in range(2))

    expected = cowclip_adam_(whole, grads, counts=counts, **zeros_like(whole), learning_rate=0.1, step=1)
    monkeypatch.setattr(update, "_BLOCK_ROWS", block)
    number = cowclip_adam_(blocks, grads, counts=counts, **zeros_like(blocks), learning_rate=0.1, step=1)

    torch.testing.assert_close(blocks, whole)
    assert number == expected > 0


def test_a_table_without_rows_is_updated_to_nothing() -> None:
    empty = torch.zeros(0, 4)

    number = cowclip_adam_(
        empty, empty, counts=torch.zeros(0).int(), **zeros_like(empty), learning_rate=1, step=1
    )

    assert int(number) == 0
