"""One training step: lookup, network, loss, gradients per row, update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.profiler import record_function

from stampede.kernels import RowGradients, empty, keep_freed_memory, lookup, make_accumulator
from stampede.training.batch import Batch
from stampede.training.config import Precision
from stampede.training.models import CTRModel
from stampede.training.nonfinite import check_step
from stampede.training.optim import TableOptimizer

Watch = Callable[[Mapping[Tensor, RowGradients]], None]
"""Is shown the gradients of the tables, before they are applied; those of the network are in ``.grad``."""

Checks = Literal["nothing", "loss", "gradients"]
"""What must be finite before an update."""

CPU_PIECE_ROWS = 4096
"""Rows of a batch that a CPU works on at a time: their activations (400 values a layer, 6.5 MB) stay in the
last cache, so that the speed does not fall with the batch."""


class Phase(StrEnum):
    """Parts of a step, under these names in a trace of ``torch.profiler``; the update is the optimizer's."""

    LOOKUP = "stampede: lookup"
    FORWARD = "stampede: forward"
    BACKWARD = "stampede: backward"
    SUM_ROWS = "stampede: counts and row sums"


class TrainStep:
    """Takes a step on each batch it is called with.

    A batch may be worked on in pieces, one after the other: counts and gradients are merged before the one
    clip and update, so the step is that of the whole batch. The tables' gradients never take up
    ``[rows, d]``: the network's gradients ``[b, F, d]`` are summed per row as they come.

    Parameters
    ----------
    model:
        Its network is trained on looked-up values; its tables are updated row by row.
    optimizer:
        Over the model's parameters.
    batch_size:
        Rows of a batch, at most.
    accumulate:
        Into how many pieces a batch is cut at least, for batches beyond memory.
    precision:
        Of the matrix products: ``bf16`` multiplies in bfloat16 (autocast) and keeps weights, tables, sums
        and the update in float32; ``tf32`` lets CUDA use TensorFloat-32.
    compiles:
        Whether the network goes through ``torch.compile``.
    checks:
        What must be finite: ``loss``, or that and the ``gradients``. On a GPU a check waits for the device.
    """

    def __init__(
        self,
        model: CTRModel,
        optimizer: TableOptimizer,
        *,
        batch_size: int,
        accumulate: int = 1,
        precision: Precision = "float32",
        compiles: bool = False,
        checks: Checks = "nothing",
    ) -> None:
        keep_freed_memory()
        self._checks = checks
        self._model, self._optimizer, self._precision = model, optimizer, precision
        table = model.embedding.weight
        self._device = table.device
        most = CPU_PIECE_ROWS if self._device.type == "cpu" else batch_size
        pieces = max(accumulate, -(-batch_size // most))
        self.piece_rows = -(-batch_size // pieces)
        self._network = torch.compile(model.network) if compiles else model.network
        self._gradients: dict[Tensor, RowGradients] = {}
        self.accumulator = make_accumulator(
            model.embedding.sizes,
            model.embedding.dim,
            batch_rows=batch_size,
            linear=model.first_order is not None,
            dtype=table.dtype,
            device=self._device,
        )
        shape = (self.piece_rows, len(model.embedding.sizes), model.embedding.dim)
        self._values = empty(shape, dtype=table.dtype, device=self._device)
        self._linear_values = table.new_zeros(self.piece_rows)

    def __call__(self, batch: Batch, *, watch: Watch | None = None) -> Tensor:
        """Take one step and return the batch's mean cross-entropy before it, a scalar on the device.

        Raises
        ------
        NotFiniteError
            A check failed; nothing was updated.
        """
        watches = [] if watch is None else [watch]

        def closure() -> Tensor:
            loss = self._backward(batch)
            if self._checks != "nothing":
                parameters = self._model.network.parameters() if self._checks == "gradients" else None
                check_step(loss, self._gradients, parameters)
            if watches:  # once, though Helen takes two passes
                watches.pop()(self._gradients)
            return loss

        loss: Tensor = self._optimizer.step(closure, gradients=self._gradients)
        return loss

    def prepare(self) -> None:
        """Do the next step's work on the host: step numbers and rates."""
        self._optimizer.prepare_step(self._gradients)

    def compute(self, batch: Batch) -> Tensor:
        """Do a step's work on the device, after :meth:`prepare`: what a graph captures."""
        with torch.enable_grad():
            loss = self._backward(batch)
        self._optimizer.apply_step(self._gradients)
        return loss

    def _backward(self, batch: Batch) -> Tensor:
        """Compute all gradients of a batch and return its mean cross-entropy."""
        self._optimizer.zero_grad(set_to_none=True)
        with record_function(Phase.SUM_ROWS):
            self.accumulator.clear()
        losses = [self._backward_piece(piece, len(batch)) for piece in batch.split(self.piece_rows)]
        with record_function(Phase.SUM_ROWS):
            gradients, linear_gradients = self.accumulator.finish()
        self._gradients[self._model.embedding.weight] = gradients
        if self._model.first_order is not None and linear_gradients is not None:
            self._gradients[self._model.first_order.weight] = linear_gradients
        return torch.stack(losses).sum()

    def _backward_piece(self, piece: Batch, batch_rows: int) -> Tensor:
        """Add the gradients of a piece to those of its batch; return its share of the loss."""
        rows = len(piece)
        values, linear = self._values[:rows].detach(), self._linear_values[:rows].detach()
        first_order = self._model.first_order
        with record_function(Phase.LOOKUP):
            lookup(
                self._model.embedding.weight.detach(),
                None if first_order is None else first_order.weight.detach(),
                piece.ids,
                offsets=self._model.embedding.starts,
                out=values,
                out_linear=linear,
            )
        values.requires_grad_()
        linear.requires_grad_()
        with record_function(Phase.FORWARD), self._autocast():
            logits = self._network(piece.dense, values, linear)  # [b]
        labels = piece.labels.to(torch.float32 if logits.dtype == torch.bfloat16 else logits.dtype)
        loss = functional.binary_cross_entropy_with_logits(
            logits.to(labels.dtype), labels, reduction="sum"
        ) / max(batch_rows, 1)
        with record_function(Phase.BACKWARD):
            torch.autograd.backward(loss)
        assert values.grad is not None
        linear_grads = None
        if first_order is not None:
            linear_grads = linear.grad if linear.grad is not None else torch.zeros_like(linear)
        with record_function(Phase.SUM_ROWS):
            self.accumulator.add(piece.ids, values.grad, linear_grads)
        return loss.detach()

    def _autocast(self) -> AbstractContextManager[object]:
        if self._precision != "bf16":
            return nullcontext()
        # each weight is cast once a pass anyway, and a cast that is kept would outlive a captured graph
        return torch.autocast(self._device.type, torch.bfloat16, cache_enabled=False)
