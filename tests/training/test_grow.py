"""A checkpoint put into a model with more ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stampede import CheckpointError
from stampede.training.batch import Batch
from stampede.training.build import model_of, optimizer_of
from stampede.training.checkpoint import save_checkpoint
from stampede.training.config import TrainConfig
from stampede.training.grow import grow_into
from stampede.training.models import CTRModel
from stampede.training.optim import TableOptimizer
from stampede.training.step import TrainStep

OLD, NEW = [5, 7, 4], [9, 7, 6]
# by hand: where the rows 0..4, 5..11, 12..15 of the old tables are in the new ones
ROWS = [*range(5), *range(9, 16), *range(16, 20)]
FRESH = [5, 6, 7, 8, 20, 21]


def config(**values: Any) -> TrainConfig:
    return TrainConfig(
        **{"hidden": (8,), "embedding_dim": 3, "learning_rate": 0.01, "warmup_epochs": 0, **values}
    )


def built(sizes: list[int], **values: Any) -> tuple[CTRModel, TableOptimizer]:
    model = model_of(config(**values), {f"f{i}": size for i, size in enumerate(sizes)}, n_dense=2)
    return model, optimizer_of(config(**values), model)


def batches(count: int, *, seed: int = 0) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)

    def batch() -> Batch:
        ids = [torch.randint(0, size, (32,), generator=generator, dtype=torch.int32) for size in OLD]
        labels = torch.randint(0, 2, (32,), generator=generator, dtype=torch.int8)
        return Batch(torch.randn(32, 2, generator=generator), torch.stack(ids, 1), labels)

    return [batch() for _ in range(count)]


def train(model: CTRModel, optimizer: TableOptimizer, rows: list[Batch]) -> None:
    step = TrainStep(model, optimizer, batch_size=32)
    for batch in rows:
        step(batch)


def checkpoint(folder: Path, *, weights: dict[str, Tensor] | None = None, **values: Any) -> Path:
    model, optimizer = built(OLD, **values)
    train(model, optimizer, batches(4))
    return save_checkpoint(
        folder, step=4, model=model, optimizer=optimizer, state={}, training_weights=weights
    )


def tables(model: CTRModel, optimizer: TableOptimizer) -> dict[str, Tensor]:
    """All that has a row per id."""
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if name in ("embedding.weight", "first_order.weight"):
            found[name] = parameter.detach()
            found |= {f"{name} {n}": t for n, t in optimizer.state[parameter].items() if n != "step"}
    return found


@pytest.mark.parametrize(
    ("values", "initial"),
    [({}, 0.0), ({"optimizer": "adagrad"}, 0.1), ({"optimizer": "helen"}, 0.0), ({"optimizer": "sgd"}, 0.0)],
)
def test_old_rows_move_with_their_state_and_new_ones_are_fresh(
    values: dict[str, Any], initial: float, tmp_path: Path
) -> None:
    old = built(OLD, **values)
    train(*old, batches(4))
    folder = save_checkpoint(tmp_path, step=4, model=old[0], optimizer=old[1], state={})
    model, optimizer = built(NEW, seed=3, **values)
    fresh = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    grow_into(folder, model, optimizer, old_sizes=OLD, new_sizes=NEW)

    before, after = tables(*old), tables(model, optimizer)
    assert list(after) == list(before)
    for name, table in after.items():
        assert torch.equal(table[ROWS], before[name]), name
        if name in fresh:
            assert torch.equal(table[FRESH], fresh[name][FRESH])
        else:
            assert bool((table[FRESH] == initial).all()), name
    for name, parameter in model.named_parameters():
        theirs = dict(old[0].named_parameters())[name]
        assert int(optimizer.state[parameter]["step"]) == 4
        if name.startswith("network."):
            assert torch.equal(parameter, theirs)
            for key, tensor in old[1].state[theirs].items():
                assert torch.equal(optimizer.state[parameter][key], tensor), (name, key)


@pytest.mark.parametrize("model_name", ["deepfm", "dlrm", "dcn-v2"])
def test_on_rows_without_new_ids_training_goes_on_as_it_would_have(model_name: str, tmp_path: Path) -> None:
    old = built(OLD, model=model_name)
    train(*old, batches(4))
    folder = save_checkpoint(tmp_path, step=4, model=old[0], optimizer=old[1], state={})
    new = built(NEW, seed=3, model=model_name)

    grow_into(folder, *new, old_sizes=OLD, new_sizes=NEW)
    train(*old, batches(4, seed=1))
    train(*new, batches(4, seed=1))

    before, after = tables(*old), tables(*new)
    assert all(torch.equal(after[name][ROWS], table) for name, table in before.items())
    rest = {name: t for name, t in new[0].state_dict().items() if name.startswith("network.")}
    assert rest
    assert all(torch.equal(tensor, old[0].state_dict()[name]) for name, tensor in rest.items())


def test_the_weights_that_trained_are_taken_where_a_mean_was_kept(tmp_path: Path) -> None:
    trained = {name: torch.full_like(p, 7.0) for name, p in built(OLD)[0].named_parameters()}
    folder = checkpoint(tmp_path, weights=trained)
    model, _ = built(NEW)

    grow_into(folder, model, None, old_sizes=OLD, new_sizes=NEW)

    assert bool((model.embedding.weight[ROWS] == 7).all())
    assert not bool((model.embedding.weight[FRESH] == 7).any())
    assert all(bool((weight == 7).all()) for weight in model.network.parameters())


@pytest.mark.parametrize(
    ("sizes", "values", "message"),
    [
        ([9, 6, 6], {}, "field number 1 has 6 ids where the checkpoint has 7"),
        ([9, 7], {}, "the checkpoint has 3 fields where the model has 2"),
        (
            NEW,
            {"hidden": (9,)},
            r"network.* has the shape \[8, 11\] where \[9, 11\] is wanted: it is of another model",
        ),
        (NEW, {"embedding_dim": 4}, r"embedding.weight has the shape \[16, 3\] where \[16, 4\] is wanted"),
        (NEW, {"model": "dlrm"}, "is of another model: it has"),
        (NEW, {"optimizer": "adagrad"}, "is of another optimizer than Adagrad: it has exp_avg"),
        (NEW, {"optimizer": "sgd"}, "is of another optimizer than SGD: it has exp_avg"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    sizes: list[int], values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path)
    model, optimizer = built(sizes, **values)
    fresh = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    with pytest.raises(CheckpointError, match=message):
        grow_into(folder, model, optimizer, old_sizes=OLD, new_sizes=sizes)

    assert all(torch.equal(tensor, fresh[name]) for name, tensor in model.state_dict().items())
    assert not optimizer.state


def test_sizes_that_are_not_those_of_the_checkpoint_are_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"embedding.weight has the shape \[16, 3\] where \[15, 3\]"):
        grow_into(folder, *built(NEW), old_sizes=[5, 7, 3], new_sizes=NEW)
    with pytest.raises(CheckpointError, match="has other fields than it is to grow to"):
        grow_into(folder, *built(NEW), old_sizes=OLD, new_sizes=[9, 8, 5])


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
def test_a_missing_or_damaged_checkpoint_is_refused(file: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    (folder / file).write_bytes((folder / file).read_bytes()[:100])
    with pytest.raises(CheckpointError, match=f"{file} is damaged"):
        grow_into(folder, *built(NEW), old_sizes=OLD, new_sizes=NEW)
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=f"{file} is missing"):
        grow_into(folder, *built(NEW), old_sizes=OLD, new_sizes=NEW)
