import math

import pytest
import torch

from stampede.training.loss import cross_entropy, regulariser


def test_the_loss_is_the_mean_cross_entropy() -> None:
    logits, labels = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64), torch.tensor([1, 0, 0])
    p = [1 / (1 + math.exp(-z)) for z in logits.tolist()]

    expected = -(math.log(p[0]) + math.log(1 - p[1]) + math.log(1 - p[2])) / 3

    assert cross_entropy(logits, labels).item() == pytest.approx(expected, rel=1e-14)


def test_the_loss_stays_exact_for_large_logits() -> None:
    assert cross_entropy(torch.tensor([-200.0, 100.0]), torch.tensor([1, 1])).item() == 100.0


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.float32, torch.bool])
def test_labels_may_be_of_any_dtype(dtype: torch.dtype) -> None:
    loss = cross_entropy(torch.tensor([0.5, -0.5]), torch.tensor([1, 0]).to(dtype))

    assert loss.item() == pytest.approx(math.log1p(math.exp(-0.5)))


def test_half_precision_is_widened() -> None:
    assert cross_entropy(torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3)).dtype == torch.float32


def test_an_empty_batch_has_no_loss_and_no_gradient() -> None:
    logits = torch.zeros(0, requires_grad=True)
    loss = cross_entropy(logits, torch.zeros(0))
    torch.autograd.backward(loss)

    assert loss.item() == 0.0


def test_a_column_of_logits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[3, 1\] and labels \[3\]"):
        cross_entropy(torch.zeros(3, 1), torch.zeros(3))


def test_the_regulariser_sums_the_squares_of_each_group_by_its_strength() -> None:
    groups = [
        {"params": [torch.tensor([[1.0, 2.0], [3.0, 0.0]])], "l2": 0.5},
        {"params": [torch.tensor([10.0])], "l2": 0.0},
        {"params": [torch.tensor([2.0]), torch.tensor([1.0])], "l2": 0.1},
    ]

    assert regulariser(groups).item() == pytest.approx(0.5 * 14 + 0.1 * 5)
