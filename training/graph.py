"""The whole training step as one CUDA graph: a launch a step in place of some hundreds."""

from __future__ import annotations

import torch
from torch import Tensor

from stampede.kernels import cuda_kernels_missing
from stampede.training.batch import Batch
from stampede.training.optim import CowClip, TableOptimizer
from stampede.training.step import TrainStep, Watch

WARM_UP_STEPS = 3
"""Steps before the capture: they compile kernels, choose algorithms and fill torch's allocator."""


def can_be_captured(optimizer: TableOptimizer) -> bool:
    """Whether an optimizer's step has static shapes and never waits for the device."""
    return (
        isinstance(optimizer, CowClip)
        and cuda_kernels_missing() is None
        and all(group["clip"] in ("none", "cowclip") for group in optimizer.param_groups)
    )


class GraphedStep:
    """Takes the steps of full batches by replaying a captured graph, others one kernel after the other.

    Every call is a step: the first ones run as they are, on a stream of their own, then one is captured. The
    last batch of an epoch, where it is shorter, is not padded: it runs as it is, so nothing has to leave its
    padding out of the counts; so does a step that is watched. Rates and step numbers are set before each
    replay; nothing waits for the device.

    Parameters
    ----------
    step:
        The step, on CUDA; see :func:`can_be_captured`.
    optimizer:
        The one it updates by.
    batch_size:
        Rows of a full batch.
    """

    def __init__(self, step: TrainStep, optimizer: TableOptimizer, *, batch_size: int) -> None:
        self._step, self._optimizer, self._batch_size = step, optimizer, batch_size
        self._steps = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Batch | None = None  # what the graph reads
        self._loss: Tensor | None = None  # what it writes

    def __call__(self, batch: Batch, *, watch: Watch | None = None) -> Tensor:
        """Take one step and return the batch's mean cross-entropy before it, a scalar on the device."""
        if len(batch) != self._batch_size or watch is not None:
            return self._step(batch, watch=watch)
        if self._steps < WARM_UP_STEPS:
            self._steps += 1
            return self._warm_up(batch)
        if self._batch is None:
            self._batch = Batch(*(torch.empty_like(tensor) for tensor in batch.tensors))
        self._batch.copy_(batch)
        self._step.prepare()
        if self._graph is None:
            self._capture(self._batch)
        assert self._graph is not None
        assert self._loss is not None
        self._graph.replay()
        self._optimizer.clipped = self._clipped
        return self._loss.clone()  # the next replay overwrites it

    def _warm_up(self, batch: Batch) -> Tensor:
        """Take a step on another stream than the current one, as a capture will."""
        current = torch.cuda.current_stream()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            loss = self._step(batch)
        current.wait_stream(stream)
        for tensor in batch.tensors:
            tensor.record_stream(stream)
        return loss

    def _capture(self, batch: Batch) -> None:
        """Record a step on the static batch; recording runs nothing."""
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss = self._step.compute(batch)
        self._clipped = self._optimizer.clipped
