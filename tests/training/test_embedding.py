import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stampede import ConfigError, InputError
from stampede.kernels import count_rows
from stampede.training.embedding import FusedEmbedding, batch_counts, check_ids

SIZES = (3, 5, 2)


def random_ids(rows: int, *, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.stack([torch.randint(0, size, (rows,)) for size in SIZES], 1).to(dtype)


def backward(embedding: FusedEmbedding, ids: Tensor, grads: Tensor) -> None:
    torch.autograd.backward(embedding(ids), grads)


def counts_of(embedding: FusedEmbedding) -> list[int]:
    counts = batch_counts(embedding.weight)
    assert counts is not None
    return [int(count) for count in counts]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_each_field_has_its_own_rows_of_one_table(dtype: torch.dtype) -> None:
    embedding = FusedEmbedding(SIZES, 4)
    ids = random_ids(7, dtype=dtype)

    looked_up = embedding(ids)

    assert embedding.weight.shape == (10, 4)
    for field, offset in enumerate([0, 3, 8]):
        assert torch.equal(looked_up[:, field], embedding.weight[ids[:, field].long() + offset])


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(0, 12), seed=st.integers(0, 999), dim=st.sampled_from([1, 3]))
def test_the_gradient_is_that_of_torchs_own_lookup(rows: int, seed: int, dim: int) -> None:
    torch.manual_seed(seed)
    embedding = FusedEmbedding(SIZES, dim, dtype=torch.float64)
    reference = embedding.weight.detach().clone().requires_grad_()
    ids, grads = random_ids(rows), torch.randn(rows, 3, dim, dtype=torch.float64)

    backward(embedding, ids, grads)

    torch.autograd.backward(reference[ids + torch.tensor([0, 3, 8])], grads)
    assert embedding.weight.grad is not None
    torch.testing.assert_close(embedding.weight.grad, reference.grad)
    assert counts_of(embedding) == count_rows(ids + torch.tensor([0, 3, 8]), 10).tolist()


def test_the_gradient_passes_a_numerical_check() -> None:
    embedding = FusedEmbedding(SIZES, 2, dtype=torch.float64)
    ids = random_ids(4)

    def function(weight: Tensor) -> Any:
        return torch.func.functional_call(embedding, {"weight": weight}, (ids,)).square()

    assert torch.autograd.gradcheck(function, embedding.weight.detach().clone().requires_grad_())


def test_counts_start_anew_with_each_batch() -> None:
    embedding = FusedEmbedding([3], 2)

    for _ in range(2):
        embedding.zero_grad()
        backward(embedding, torch.tensor([[0], [2], [2]]), torch.randn(3, 1, 2))

        assert counts_of(embedding) == [1, 0, 2]


def test_counts_start_anew_when_the_gradient_is_zeroed_in_place() -> None:
    embedding = FusedEmbedding([3], 2)

    for _ in range(2):
        embedding.zero_grad(set_to_none=False)
        backward(embedding, torch.tensor([[0], [2], [2]]), torch.randn(3, 1, 2))

        assert counts_of(embedding) == [1, 0, 2]


def test_counts_add_up_while_gradients_accumulate() -> None:
    torch.manual_seed(0)
    whole, parts = (
        FusedEmbedding(SIZES, 2, dtype=torch.float64),
        FusedEmbedding(SIZES, 2, dtype=torch.float64),
    )
    ids, grads = random_ids(10), torch.randn(10, 3, 2, dtype=torch.float64)

    backward(whole, ids, grads)
    for start in (0, 4, 8):
        backward(parts, ids[start : start + 4], grads[start : start + 4])

    assert counts_of(parts) == counts_of(whole)
    torch.testing.assert_close(parts.weight.grad, whole.weight.grad)


def test_two_lookups_in_one_backward_pass_count_as_one_batch() -> None:
    embedding = FusedEmbedding([3], 2)

    for _ in range(2):
        embedding.zero_grad()
        torch.autograd.backward(
            embedding(torch.tensor([[0], [1]])).sum() + embedding(torch.tensor([[1]])).sum()
        )

        assert counts_of(embedding) == [1, 2, 0]


def test_two_graphs_built_before_either_backward_pass_add_up() -> None:
    embedding = FusedEmbedding([3], 2)
    first, second = embedding(torch.tensor([[0], [1]])).sum(), embedding(torch.tensor([[1]])).sum()

    torch.autograd.backward(first)
    torch.autograd.backward(second)

    assert counts_of(embedding) == [1, 2, 0]


def test_a_copy_of_the_module_keeps_its_own_counts() -> None:
    embedding = FusedEmbedding([3], 2)
    backward(embedding, torch.tensor([[0]]), torch.ones(1, 1, 2))
    twin = copy.deepcopy(embedding)
    twin.zero_grad()

    backward(twin, torch.tensor([[1]]), torch.ones(1, 1, 2))

    assert counts_of(embedding) == [1, 0, 0]
    assert counts_of(twin) == [0, 1, 0]


def test_counts_are_unknown_before_backward_and_where_they_are_not_tracked() -> None:
    fresh, untracked = FusedEmbedding([3], 2), FusedEmbedding([3], 2, track_counts=False)
    backward(untracked, torch.tensor([[0]]), torch.ones(1, 1, 2))

    assert batch_counts(fresh.weight) is None
    assert batch_counts(untracked.weight) is None


def test_an_empty_batch_works() -> None:
    embedding = FusedEmbedding(SIZES, 4)

    backward(embedding, random_ids(0), torch.zeros(0, 3, 4))

    assert embedding.weight.grad is not None
    assert not embedding.weight.grad.any()
    assert sum(counts_of(embedding)) == 0


def test_a_checkpoint_holds_the_table_alone() -> None:
    embedding = FusedEmbedding(SIZES, 4)
    other = FusedEmbedding(SIZES, 4)

    other.load_state_dict(embedding.state_dict())

    assert list(embedding.state_dict()) == ["weight"]
    assert torch.equal(other.weight, embedding.weight)


def test_the_seed_decides_the_initial_values() -> None:
    torch.manual_seed(3)
    first = FusedEmbedding([1000], 10).weight
    torch.manual_seed(3)
    second = FusedEmbedding([1000], 10).weight
    generators = [torch.Generator().manual_seed(4) for _ in range(2)]
    third, fourth = (FusedEmbedding([9], 2, init_std=0.5, generator=g).weight for g in generators)

    assert torch.equal(first, second)
    assert torch.equal(third, fourth)
    assert first.std().item() == pytest.approx(1e-2, rel=0.05)
    assert not FusedEmbedding([9], 2, init_std=0.0).weight.any()


@pytest.mark.parametrize(("sizes", "dim"), [([], 4), ([3, 0], 4), ([3], 0)])
def test_a_table_without_rows_or_values_is_a_config_error(sizes: list[int], dim: int) -> None:
    with pytest.raises(ConfigError):
        FusedEmbedding(sizes, dim)


def test_ids_must_have_a_column_per_field_and_be_integers() -> None:
    embedding = FusedEmbedding(SIZES, 4)

    with pytest.raises(ValueError, match=r"\[batch, 3\]"):
        embedding(torch.zeros(4, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match="float32"):
        embedding(torch.zeros(4, 3))


@pytest.mark.parametrize("bad", [-1, 5])
def test_check_ids_names_field_row_and_id(bad: int) -> None:
    ids = torch.tensor([[0, 4, 1], [2, bad, 1], [2, bad, 0]], dtype=torch.int32)

    with pytest.raises(InputError, match=rf"column C2: id {bad} in row 1 is outside \[0, 5\)"):
        check_ids(ids, SIZES, names=["C1", "C2", "C3"])


def test_check_ids_accepts_what_every_field_has() -> None:
    check_ids(random_ids(100, dtype=torch.int32), SIZES)
    FusedEmbedding(SIZES, 1).check_ids(random_ids(0))


def test_check_ids_refuses_another_number_of_fields() -> None:
    with pytest.raises(InputError, match="the model has 3 fields"):
        check_ids(torch.zeros(2, 4, dtype=torch.int64), SIZES)


def test_a_gradient_that_came_without_a_lookup_has_no_counts() -> None:
    embedding = FusedEmbedding([5], dim=2)
    embedding(torch.tensor([[1], [1]])).sum().backward()
    embedding.zero_grad()

    torch.autograd.backward(embedding.weight.square().sum())

    assert batch_counts(embedding.weight) is None


def test_a_gradient_that_goes_elsewhere_leaves_the_counts_alone() -> None:
    embedding = FusedEmbedding([5], dim=2)
    embedding(torch.tensor([[1], [2]])).sum().backward()

    torch.autograd.grad(embedding(torch.tensor([[3], [3]])).sum(), embedding.weight)
    embedding(torch.tensor([[4]])).sum().backward()

    counts = batch_counts(embedding.weight)
    assert counts is not None
    assert counts.tolist() == [0, 1, 1, 0, 1]


def test_a_copy_counts_for_itself() -> None:
    embedding = FusedEmbedding([5], dim=2)
    embedding(torch.tensor([[1]])).sum().backward()

    twin = copy.deepcopy(embedding)
    twin.zero_grad()
    twin(torch.tensor([[2]])).sum().backward()

    counts = batch_counts(twin.weight)
    assert counts is not None
    assert counts.tolist() == [0, 0, 1, 0, 0]


def test_a_trained_table_can_be_pickled() -> None:
    embedding = FusedEmbedding([5], dim=2)
    embedding(torch.tensor([[1]])).sum().backward()

    again = pickle.loads(pickle.dumps(embedding))

    assert torch.equal(again.weight, embedding.weight)
    assert batch_counts(again.weight) is None


def test_a_micro_batch_without_a_gradient_counts_too() -> None:
    embedding = FusedEmbedding([5], dim=2)
    (embedding(torch.tensor([[1], [1]])) * 0).sum().backward()

    embedding(torch.tensor([[1], [2]])).sum().backward()

    counts = batch_counts(embedding.weight)
    assert counts is not None
    assert counts.tolist() == [0, 3, 1, 0, 0]
