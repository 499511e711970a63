"""Each clip is what its name says, held to loops over Python numbers; in plain torch loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stampede.kernels import count_rows
from stampede.kernels.reference.update import adam_
from stampede.training.embedding import FusedEmbedding, batch_counts
from stampede.training.loss import cross_entropy
from stampede.training.optim import SGD, Adagrad, Clip, CowClip, TableOptimizer

SIZES = (3, 5, 20)
DIM = 4
L2 = 0.02
OTHERS = ["global", "field", "column", "adaptive-field"]
CLIPS = [*OTHERS, "cowclip"]
Matrix = list[list[float]]


# --- what is expected ---------------------------------------------------------------------------


def norm_of(rows: Matrix) -> float:
    return math.sqrt(sum(value * value for row in rows for value in row))


def clip_by_loops(
    clip: str,
    grads: Matrix,
    weights: Matrix,
    counts: list[int],
    *,
    sizes: tuple[int, ...],
    rows: list[int],
    clip_norm: float,
    ratio: float,
    zeta: float,
    norm_of_all: float = math.nan,
) -> tuple[Matrix, int]:
    """Clip the whole gradient of some rows of a table; give it, and how many rows were clipped."""
    fields = list(itertools.pairwise([0, *itertools.accumulate(sizes)]))
    groups = {
        "global": [range(sum(sizes))],
        "field": [range(*ends) for ends in fields],
        "adaptive-field": [range(*ends) for ends in fields],
    }.get(clip, [range(row, row + 1) for row in range(sum(sizes))])
    out, clipped = [list(row) for row in grads], 0
    for group in groups:
        present = [row for row in group if row in rows]
        limit = clip_norm
        if clip == "adaptive-field":
            values = len(group) * len(weights[0])
            limit = ratio * max(norm_of([weights[row] for row in group]), ratio * math.sqrt(values) * zeta)
        if clip == "cowclip":
            floor = ratio * math.sqrt(len(weights[0])) * zeta
            limit = ratio * max(counts[group[0]], 1) * max(norm_of([weights[group[0]]]), floor)
        norm = norm_of_all if clip == "global" else norm_of([grads[row] for row in present])
        if norm > limit:
            clipped += len(present)
            for row in present:
                out[row] = [value * limit / norm for value in grads[row]]
    return out, clipped


# --- a model in plain torch ---------------------------------------------------------------------


class Model(nn.Module):
    """Embeddings and a linear layer; the tables one for all fields or one for each."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        scales = torch.tensor([0.3, 0.03, 0.003]).repeat_interleave(torch.tensor(SIZES)).unsqueeze(1)
        start = torch.randn(sum(SIZES), DIM, generator=generator, dtype=torch.float64) * scales
        start[4] = 0.0
        self.fused = fused
        self.tables: nn.ModuleList
        if fused:
            self.tables = nn.ModuleList([FusedEmbedding(SIZES, DIM, dtype=torch.float64)])
        else:
            self.tables = nn.ModuleList(nn.Embedding(size, DIM, dtype=torch.float64) for size in SIZES)
        self.head = nn.Linear(len(SIZES) * DIM, 1, dtype=torch.float64)
        with torch.no_grad():
            parts = torch.split(start, [sum(sizes) for sizes in self.sizes()])
            for table, part in zip(self.weights(), parts, strict=True):
                table.copy_(part)
            self.head.weight.copy_(torch.randn(1, len(SIZES) * DIM, generator=generator))
            self.head.bias.zero_()

    def weights(self) -> list[nn.Parameter]:
        return [table.weight for table in self.tables]  # type: ignore[misc]

    def sizes(self) -> list[tuple[int, ...]]:
        return [SIZES] if self.fused else [(size,) for size in SIZES]

    def forward(self, ids: Tensor) -> Tensor:
        if self.fused:
            embeddings = self.tables[0](ids)
        else:
            columns = ids.long().unbind(1)
            embeddings = torch.stack(
                [table(column) for table, column in zip(self.tables, columns, strict=True)], 1
            )
        logits: Tensor = self.head(embeddings.flatten(1)).squeeze(1)
        return logits

    def counts(self, ids: Tensor) -> dict[Tensor, Tensor]:
        if self.fused:
            counts = batch_counts(self.weights()[0])
            assert counts is not None
            return {self.weights()[0]: counts}
        return {table: count_rows(ids[:, field], SIZES[field]) for field, table in enumerate(self.weights())}


def make_batch(rows: int, *, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = [(torch.rand(rows, generator=generator) ** 2 * size).int() for size in SIZES]
    return torch.stack(ids, 1), torch.randint(0, 2, (rows,), generator=generator)


def groups_of(model: Model) -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = [
        {"params": [table], "kind": "embedding", "sizes": sizes, "l2": L2}
        for table, sizes in zip(model.weights(), model.sizes(), strict=True)
    ]
    return [*tables, {"params": model.head.parameters(), "kind": "dense"}]


def step_and_compare(
    model: Model,
    optimizer: TableOptimizer,
    *,
    clip: str,
    clip_norm: float,
    seed: int,
    gives_counts: bool,
    expected_after: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> float:
    """Take one step and hold every table to the loops; give the share of clipped rows that is expected."""
    ids, labels = make_batch(12, seed=seed)
    optimizer.zero_grad()
    torch.autograd.backward(cross_entropy(model(ids), labels))
    group = optimizer.param_groups[0]
    counts = model.counts(ids)
    before, wanted, clipped_rows = {}, {}, 0
    together: Matrix = []  # what the clip "global" bounds as one
    for table in model.weights():
        assert table.grad is not None
        taken = counts[table] > 0 if group["update"] == "touched" else torch.ones(len(table)).bool()
        together += (table.grad + 2 * L2 * table.detach())[taken].tolist()
    for table, sizes in zip(model.weights(), model.sizes(), strict=True):
        assert table.grad is not None
        before[table] = table.detach().clone()
        present = counts[table] > 0 if group["update"] == "touched" else torch.ones(len(table)).bool()
        grads, clipped = clip_by_loops(
            clip,
            (table.grad + 2 * L2 * table.detach()).tolist(),
            table.tolist(),
            counts[table].tolist(),
            sizes=sizes,
            rows=present.nonzero().squeeze(1).tolist(),
            clip_norm=clip_norm,
            ratio=group["ratio"],
            zeta=group["zeta"],
            norm_of_all=norm_of(together),
        )
        clipped_rows += clipped
        after = expected_after(table, before[table], torch.tensor(grads, dtype=torch.float64))
        wanted[table] = torch.where(present.unsqueeze(1), after, before[table])

    optimizer.step(counts=counts if gives_counts else None)

    for table in model.weights():
        torch.testing.assert_close(table.detach(), wanted[table], rtol=1e-12, atol=1e-14)
    share = clipped_rows / sum(SIZES)
    assert optimizer.clipped_share() == pytest.approx(share)
    return share


def by_sgd(table: Tensor, before: Tensor, grads: Tensor) -> Tensor:
    return before - grads


@pytest.mark.parametrize("update", ["dense", "touched"])
@pytest.mark.parametrize("clip_norm", [1e-4, 0.05, 0.2, 1e3])
@pytest.mark.parametrize("fused", [True, False], ids=["one table", "a table per field"])
@pytest.mark.parametrize("clip", CLIPS)
def test_a_plain_torch_loop_clips_as_the_loops_do(
    clip: str, fused: bool, clip_norm: float, update: str
) -> None:
    """Without rate and memory, so that a step is the clipped gradient."""
    model = Model(fused=fused)
    # the clips by the weights' own norm have their strength from the ratio
    ratio = {1e-4: 1e-3, 0.05: 0.3, 0.2: 1.0, 1e3: 1e4}[clip_norm]
    norm = clip_norm if clip in ("global", "field", "column") else None
    optimizer = SGD(groups_of(model), 1.0, clip=clip, clip_norm=norm, ratio=ratio, zeta=1e-3, update=update)

    # without given counts a row of nn.Embedding is touched where it has a gradient, which is the same here
    gives_counts = clip == "cowclip" and not fused
    shares = [
        step_and_compare(
            model,
            optimizer,
            clip=clip,
            clip_norm=clip_norm,
            seed=seed,
            gives_counts=gives_counts,
            expected_after=by_sgd,
        )
        for seed in range(3)
    ]

    if clip_norm == 1e-4:
        assert min(shares) > 0
    if clip_norm == 1e3:
        assert max(shares) == 0


@pytest.mark.parametrize("clip", CLIPS)
def test_somewhere_between_a_clip_takes_some_rows_and_leaves_others(clip: str) -> None:
    """All rows or none of a table for ``global``; whole fields or rows for the others."""
    found = set()
    for strength in (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0):
        model = Model(fused=True)
        own = clip in ("cowclip", "adaptive-field")
        optimizer = SGD(
            groups_of(model),
            1.0,
            clip=clip,
            clip_norm=None if own else strength,
            ratio=strength if own else 1.0,
        )
        ids, labels = make_batch(12, seed=0)
        torch.autograd.backward(cross_entropy(model(ids), labels))
        optimizer.step()
        found.add(optimizer.clipped_share())

    if clip == "global":
        assert found == {0.0, 1.0}
    elif clip in ("field", "adaptive-field"):
        whole = {sum(sizes) / sum(SIZES) for n in range(4) for sizes in itertools.combinations(SIZES, n)}
        assert found <= whole
        assert found - {0.0, 1.0}
    else:
        assert len(found) > 2


@pytest.mark.parametrize("update", ["dense", "touched"])
@pytest.mark.parametrize("clip", CLIPS)
def test_adam_takes_the_clipped_gradient(clip: str, update: str) -> None:
    model = Model(fused=True)
    norm = 0.05 if clip in ("global", "field", "column") else None
    optimizer = CowClip(
        groups_of(model), 0.01, clip=clip, clip_norm=norm, ratio=0.3, zeta=1e-3, update=update
    )
    means: dict[Tensor, dict[str, Tensor]] = {}

    def by_adam(table: Tensor, before: Tensor, grads: Tensor) -> Tensor:
        state = optimizer.state[table]
        first = not state
        kept = {
            name: torch.zeros_like(before) if first else state[name].clone()
            for name in ("exp_avg", "exp_avg_sq")
        }
        means[table] = kept
        after = before.clone()
        step = 1 if first else int(state["step"]) + 1
        adam_(after, grads, **kept, learning_rate=0.01, step=step)  # type: ignore[arg-type]
        return after

    for seed in range(3):
        step_and_compare(
            model,
            optimizer,
            clip=clip,
            clip_norm=norm or 0.0,
            seed=seed,
            gives_counts=False,
            expected_after=by_adam,
        )


@pytest.mark.parametrize("clip", CLIPS)
def test_adagrad_takes_the_clipped_gradient(clip: str) -> None:
    model = Model(fused=True)
    norm = 0.05 if clip in ("global", "field", "column") else None
    optimizer = Adagrad(groups_of(model), 0.01, clip=clip, clip_norm=norm, ratio=0.3, zeta=1e-3)

    def by_adagrad(table: Tensor, before: Tensor, grads: Tensor) -> Tensor:
        total: Tensor = optimizer.state[table].get("sum", torch.full_like(before, 0.1)) + grads.square()
        return before - 0.01 * grads / (total.sqrt() + 1e-7)

    for seed in range(3):
        step_and_compare(
            model,
            optimizer,
            clip=clip,
            clip_norm=norm or 0.0,
            seed=seed,
            gives_counts=False,
            expected_after=by_adagrad,
        )


# --- what a clip leaves alone -------------------------------------------------------------------


@pytest.mark.parametrize("clip", OTHERS)
def test_a_gradient_within_its_limit_is_left_bit_for_bit(clip: str) -> None:
    ends = []
    for options in ({"clip": clip, "ratio": 1e6}, {"clip": "none"}):
        model = Model(fused=True)
        norm = 1e6 if options["clip"] in ("global", "field", "column") else None
        optimizer = SGD(groups_of(model), 0.1, clip_norm=norm, **options)
        ids, labels = make_batch(12, seed=0)
        torch.autograd.backward(cross_entropy(model(ids), labels))
        optimizer.step()
        ends.append(model.weights()[0].detach())

    assert torch.equal(ends[0], ends[1])


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("fused", [True, False], ids=["one table", "a table per field"])
def test_dense_weights_and_gradients_are_not_changed_by_a_clip(fused: bool, clip: str) -> None:
    model = Model(fused=fused)
    norm = 1e-6 if clip in ("global", "field", "column") else None
    optimizer = SGD(groups_of(model), 1.0, clip=clip, clip_norm=norm, ratio=1e-6)
    ids, labels = make_batch(12, seed=0)
    torch.autograd.backward(cross_entropy(model(ids), labels))
    before = model.head.weight.detach().clone()
    grads = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    optimizer.step(counts=model.counts(ids) if clip == "cowclip" else None)

    assert model.head.weight.grad is not None
    torch.testing.assert_close(model.head.weight.detach(), before - model.head.weight.grad)
    after = [parameter.grad for parameter in model.parameters()]
    assert len(after) == len(grads)
    assert all(a is not None and torch.equal(a, b) for a, b in zip(after, grads, strict=True))


@pytest.mark.parametrize("clip", ["field", "adaptive-field"])
def test_without_sizes_a_table_is_one_field(clip: str) -> None:
    shares = []
    for sizes in (None, (sum(SIZES),)):
        table = nn.Parameter(torch.ones(sum(SIZES), DIM))
        table.grad = torch.ones_like(table) * 0.5
        norm = 0.1 if clip == "field" else None
        group = {"params": [table], "kind": "embedding", "sizes": sizes}
        optimizer = SGD([group], 1.0, clip=clip, clip_norm=norm, ratio=0.1)
        optimizer.step()
        shares.append((optimizer.clipped_share(), float(table.detach()[0, 0])))

    assert shares[0] == shares[1]
    assert shares[0][0] == 1.0


@pytest.mark.parametrize("clip", OTHERS)
def test_a_zero_gradient_stays_zero_also_under_zero_weights(clip: str) -> None:
    table = nn.Parameter(torch.zeros(sum(SIZES), DIM))
    table.grad = torch.zeros_like(table)
    norm = 0.1 if clip in ("global", "field", "column") else None
    group = {"params": [table], "kind": "embedding", "sizes": SIZES}
    optimizer = SGD([group], 1.0, clip=clip, clip_norm=norm, zeta=0.0)

    optimizer.step()

    assert torch.equal(table, torch.zeros_like(table))
    assert optimizer.clipped_share() == 0.0


@pytest.mark.parametrize(("clip", "spread"), [("global", SIZES), ("field", SIZES[:1]), ("column", (1,))])
def test_a_diverged_gradient_stays_visible_where_it_is_clipped_with(
    clip: str, spread: tuple[int, ...]
) -> None:
    """An infinite norm makes 0 of the finite gradients beside it, as dividing by it does."""
    table = nn.Parameter(torch.ones(sum(SIZES), DIM))
    table.grad = torch.ones_like(table)
    table.grad[0, 0] = math.inf
    optimizer = SGD(
        [{"params": [table], "kind": "embedding", "sizes": SIZES}], 1.0, clip=clip, clip_norm=10.0
    )

    optimizer.step()

    assert table[0, 0].isnan()
    moved = (table.detach() != 1.0).any(1)
    assert bool(moved[sum(spread) :].all())


@pytest.mark.parametrize("clip", list(Clip))
def test_a_clip_and_update_survive_the_state(clip: str) -> None:
    def make() -> tuple[Model, SGD]:
        model = Model(fused=True)
        norm = 0.05 if clip in ("global", "field", "column") else None
        return model, SGD(groups_of(model), 0.1, clip=clip, clip_norm=norm, ratio=0.3, update="touched")

    _, optimizer = make()
    _, other = make()
    other.load_state_dict(optimizer.state_dict())

    for group, loaded in zip(optimizer.param_groups, other.param_groups, strict=True):
        assert {k: v for k, v in group.items() if k != "params"} == {
            k: v for k, v in loaded.items() if k != "params"
        }
