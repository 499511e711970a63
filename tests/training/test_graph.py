"""The host's part of a captured step, on a stand-in for the graph: a replay computes the step anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from stampede.training.batch import Batch
from stampede.training.build import model_of, optimizer_of
from stampede.training.config import TrainConfig
from stampede.training.graph import WARM_UP_STEPS, GraphedStep, can_be_captured
from stampede.training.optim import LinearWarmup
from stampede.training.step import TrainStep

SIZES = {"a": 7, "b": 30}
BATCH = 16


class Recorded(TrainStep):
    """A step that notes how often it computed, and inside what."""

    captured: Callable[[], Any] | None = None

    def compute(self, batch: Batch) -> Any:
        if Stream.capturing is not None:  # recording runs nothing
            Stream.capturing.replays = lambda: super(Recorded, self).compute(batch)
            self.loss = torch.zeros(())
            Stream.capturing.loss = self.loss
            return self.loss
        return super().compute(batch)


class Graph:
    """Replays what was captured, and writes the loss where the capture said it would be."""

    replays: Callable[[], Any]
    loss: torch.Tensor

    def replay(self) -> None:
        self.loss.copy_(self.replays())


class Stream:
    capturing: Graph | None = None

    def wait_stream(self, other: Any) -> None:
        """Nothing runs beside anything here."""


@contextmanager
def capture(graph: Graph) -> Iterator[None]:
    Stream.capturing = graph
    yield
    Stream.capturing = None


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)


def batches() -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    rows = [BATCH] * (WARM_UP_STEPS + 3) + [5] + [BATCH] * 2
    return [
        Batch(
            torch.rand(n, 2, generator=generator),
            torch.stack([torch.randint(0, size, (n,), generator=generator) for size in SIZES.values()], 1),
            torch.randint(0, 2, (n,), generator=generator).to(torch.int8),
        )
        for n in rows
    ]


def train(*, graphed: bool) -> tuple[dict[str, torch.Tensor], list[float], list[float | None]]:
    config = TrainConfig(embedding_dim=3, hidden=(8,), l2=1e-2, ratio=0.05)
    model = model_of(config, SIZES, n_dense=2)
    optimizer = optimizer_of(config, model)
    schedule = LinearWarmup(optimizer, warmup_steps=6)
    step = Recorded(model, optimizer, batch_size=BATCH)
    take_step = GraphedStep(step, optimizer, batch_size=BATCH) if graphed else step
    losses, shares = [], []
    for batch in batches():
        losses.append(take_step(batch).item())
        shares.append(optimizer.clipped_share())
        schedule.step()
    return model.state_dict(), losses, shares


def test_replayed_steps_are_those_taken_one_kernel_after_the_other() -> None:
    plain, plain_losses, _ = train(graphed=False)
    replayed, losses, shares = train(graphed=True)

    assert losses == plain_losses
    assert all(share is not None for share in shares)
    for name, value in plain.items():
        assert torch.equal(replayed[name], value), name


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"clip": "cowclip"}, True),
        ({"clip": "none"}, True),
        ({"clip": "column", "clip_norm": 1.0}, False),
        ({"optimizer": "helen"}, False),
        ({"optimizer": "sgd"}, False),
    ],
)
def test_only_steps_of_static_shapes_are_captured(
    values: dict[str, Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stampede.training.graph.cuda_kernels_missing", lambda: None)
    config = TrainConfig(**values)

    assert can_be_captured(optimizer_of(config, model_of(config, SIZES, n_dense=2))) is expected


def test_nothing_is_captured_without_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stampede.training.graph.cuda_kernels_missing", lambda: "CuPy is not there")
    config = TrainConfig()

    assert not can_be_captured(optimizer_of(config, model_of(config, SIZES, n_dense=2)))
