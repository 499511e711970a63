"""One table for all categorical fields, which knows how often each row occurred in its last batch.

The counts belong to ``weight.grad``: CowClip bounds a row's gradient by how often the row occurs in the
batch that the gradient is of, however many backward passes it was summed over.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from stampede import ConfigError, InputError
from stampede.kernels import empty, lookup, make_accumulator

_RECORD, _SIZES = "count_record", "field_sizes"


class FusedEmbedding(nn.Module):
    """The embedding tables of all fields as one table: row ``offsets[f] + id`` is id ``id`` of field ``f``.

    The backward pass sums the gradients per row in a fixed order and records on ``weight`` how often each
    row occurred (:func:`batch_counts`), which is what :class:`stampede.training.optim.CowClip` clips by.
    The record starts anew with a new gradient (``weight.grad`` is None, or zeroed in place) and adds up
    while gradients do, so clipping after K accumulated micro-batches is clipping the whole batch.

    Parameters
    ----------
    sizes:
        Rows of each field, in the order of the columns of ``ids``.
    dim:
        Values of a row.
    init_std:
        Deviation of the normal distribution that the table is drawn from; 0 gives zeros.
    track_counts:
        Whether backward records the counts. Tables that are never clipped can leave it out.
    generator:
        Source of the initial values; torch's own (``torch.manual_seed``) without one.

    Example
    -------
    >>> embedding = FusedEmbedding([3, 5], dim=4)
    >>> embedding(torch.tensor([[0, 4], [2, 4]])).shape
    torch.Size([2, 2, 4])
    """

    starts: Tensor

    def __init__(
        self,
        sizes: Sequence[int],
        dim: int,
        *,
        init_std: float = 1e-2,
        track_counts: bool = True,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not sizes or any(size < 1 for size in sizes):
            raise ConfigError(f"every field needs at least one row: sizes are {list(sizes)}")
        if dim < 1:
            raise ConfigError(f"an embedding needs at least one value per row: dim is {dim}")
        if not init_std >= 0:
            raise ConfigError(f"init_std must be 0 or more: it is {init_std}")
        self.sizes = tuple(int(size) for size in sizes)
        self.dim = dim
        self.track_counts = track_counts
        starts = [0, *accumulate(self.sizes)]
        # Not persistent: the starts follow from the sizes, and a checkpoint holds what was learned.
        self.register_buffer("starts", torch.tensor(starts, device=device), persistent=False)  # int64 [F + 1]
        table = empty((starts[-1], dim), device=device, dtype=dtype or torch.get_default_dtype())
        # std 0 would give zeros too, but draw from the generator for them
        table = table.normal_(0.0, init_std, generator=generator) if init_std else table.zero_()
        self.weight = nn.Parameter(table)  # [rows, d]

    def forward(self, ids: Tensor) -> Tensor:
        """Look up ids, int32 or int64 ``[B, F]``; gives ``[B, F, d]``.

        Raises
        ------
        IndexError
            A field does not have an id. On CUDA that is not looked for: :meth:`check_ids` finds it, once,
            where ids enter.
        """
        return look_up(self, None, ids)[0]

    def rows(self, ids: Tensor) -> Tensor:
        """Give the table rows of ids ``[B, F]``, int64 ``[B, F]``; tables of one set of sizes share them."""
        self._check_shape(ids)
        return ids + self.starts[:-1]  # the starts are int64, so the sum is

    def _check_shape(self, ids: Tensor) -> None:
        if ids.dim() != 2 or ids.shape[1] != len(self.sizes):
            raise ValueError(f"ids [batch, {len(self.sizes)}] are wanted, not {list(ids.shape)}")
        if ids.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"ids must be int64 or int32, not {ids.dtype}")

    def check_ids(self, ids: Tensor, *, names: Sequence[str] | None = None) -> None:
        """Raise :class:`stampede.InputError` for an id that its field does not have (:func:`check_ids`)."""
        check_ids(ids, self.sizes, names=names)

    def extra_repr(self) -> str:
        """Say the sizes."""
        return f"{len(self.sizes)} fields, {self.weight.shape[0]} rows, dim={self.dim}"


def look_up(
    embedding: FusedEmbedding, first_order: FusedEmbedding | None, ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Look up a batch in a table and in the first-order table beside it, of the same sizes.

    Parameters
    ----------
    ids:
        int32 or int64 ``[B, F]``.

    Returns
    -------
    tuple[Tensor, Tensor]
        ``[B, F, d]``, and the sum of each row's first-order weights, ``[B]``; zeros without such a table.

    Raises
    ------
    IndexError
        A field does not have an id (on a CPU).
    """
    embedding._check_shape(ids)
    # on the parameter, for the clips by field; set anew here since a copy of a parameter has no attributes
    setattr(embedding.weight, _SIZES, embedding.sizes)
    linear = None if first_order is None else first_order.weight
    result: tuple[Tensor, Tensor] = _Lookup.apply(  # type: ignore[no-untyped-call]
        embedding.weight, linear, ids, embedding.starts, embedding.sizes, embedding.track_counts
    )
    return result


def check_ids(ids: Tensor, sizes: Sequence[int], *, names: Sequence[str] | None = None) -> None:
    """Raise for the first id that its field does not have.

    For the places where ids enter (a loader that opens a dataset, ``predict``), not for every step: on CUDA
    it waits for the device.

    Parameters
    ----------
    ids:
        Integers ``[B, F]``.
    sizes:
        Rows of each field.
    names:
        Names of the fields, for the message.

    Raises
    ------
    stampede.InputError
        Some id is negative or not below its field's size; names the field, the row and the id.
    """
    if ids.dim() != 2 or ids.shape[1] != len(sizes):
        raise InputError(f"ids have the shape {list(ids.shape)}, the model has {len(sizes)} fields")
    if ids.shape[0] == 0:
        return
    bounds = torch.tensor(list(sizes), device=ids.device)
    lowest, highest = ids.amin(0), ids.amax(0)  # [F]: two passes over ids, no [B, F] temporary
    bad = ((lowest < 0) | (highest >= bounds)).nonzero()
    if len(bad) == 0:
        return
    field = int(bad[0, 0])
    column = ids[:, field]
    row = int(((column < 0) | (column >= sizes[field])).nonzero()[0, 0])
    raise InputError(
        f"id {int(column[row])} in row {row} is outside [0, {sizes[field]}): "
        "the data were prepared with another vocabulary than the model's",
        column=names[field] if names is not None else f"field {field}",
    )


def batch_counts(weight: Tensor) -> Tensor | None:
    """Give how often each row occurred in the batch that ``weight.grad`` is of, where that is known.

    Returns
    -------
    Tensor | None
        int32 ``[rows]``; None for a table of another kind, or a gradient that came without a lookup.
    """
    record: _CountRecord | None = getattr(weight, _RECORD, None)
    return None if record is None else record.settled


def field_sizes(weight: Tensor) -> tuple[int, ...]:
    """Give the rows of each field of a table: the sizes of its FusedEmbedding; else it is one field."""
    sizes: tuple[int, ...] = getattr(weight, _SIZES, (weight.shape[0],))
    return sizes


class _CountRecord:
    """The counts of a table's gradient, kept in step with it by a hook on its accumulation.

    A lookup's backward pass adds its counts to ``pending``; they count once the gradient arrives in
    ``weight.grad``. So ``torch.autograd.grad``, which leaves that alone, leaves the counts alone too.
    """

    settled: Tensor | None = None

    def __init__(self, weight: Tensor) -> None:
        self._pending: Tensor | None = None
        self._pass = -1
        self._gradient: weakref.ref[Tensor] | None = None
        self._version = -1
        weight.register_post_accumulate_grad_hook(self._settle)  # type: ignore[no-untyped-call]

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Leave a pickled table without a record: the gradient does not travel either."""
        return type(None), ()

    @classmethod
    def of(cls, weight: Tensor) -> _CountRecord:
        """Give the record of a table; a copy of a table has none of its own yet."""
        record: _CountRecord | None = getattr(weight, _RECORD, None)
        if record is None:
            record = cls(weight)
            setattr(weight, _RECORD, record)
        return record

    def add(self, weight: Tensor, counts: Tensor) -> None:
        """Add the counts of one lookup to those of the backward pass that is running."""
        # A pass may hold several lookups of one table, and none has reached weight.grad yet: the number of
        # the pass tells them from a new batch. torch has no public name for it.
        running = torch._C._current_graph_task_id()
        if self._pass == running and self._pending is not None:
            self._pending = self._pending + counts
            return
        if self.settled is not None and weight.grad is not None:
            known = self.settled.to(counts.device)
            if weight.grad._version != self._version:
                # Changed since, scaled or zeroed in place: after zero_grad(set_to_none=False) .any() is false
                # and the old counts fall away, without the host waiting for the device.
                known = known * weight.grad.any()
            counts = known + counts
        self._pass, self._pending = running, counts

    def _settle(self, weight: Tensor) -> None:
        """Take over the pending counts; a new gradient that came without a lookup has none."""
        if self._pending is not None and self._pass == torch._C._current_graph_task_id():
            self.settled = self._pending
        elif self._gradient is None or self._gradient() is not weight.grad:
            self.settled = None
        self._pending = None
        self._gradient, self._version = None, -1
        if weight.grad is not None:
            self._gradient, self._version = weakref.ref(weight.grad), weight.grad._version


class _Lookup(torch.autograd.Function):
    """Look rows up; the gradient is the dense per-row sum, not torch's embedding backward."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        linear: Tensor | None,
        ids: Tensor,
        starts: Tensor,
        sizes: tuple[int, ...],
        track_counts: bool,
    ) -> tuple[Tensor, Tensor]:
        """Look up ``weight[rows]``, and the sums of ``linear[rows]``."""
        ctx.save_for_backward(ids)
        ctx.weight = weight  # the parameter itself, to hang the counts on
        ctx.has_linear, ctx.sizes, ctx.track_counts = linear is not None, sizes, track_counts
        if track_counts and weight.requires_grad:
            _CountRecord.of(weight)  # before the backward pass, so that its hook is there in time
        values, sums = lookup(
            weight.detach(), None if linear is None else linear.detach(), ids, offsets=starts
        )
        return values, weight.new_zeros(len(ids)) if sums is None else sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor, linear_grads: Tensor) -> tuple[Tensor | None, ...]:
        """Sum the gradients [B, F, d] and [B] per row and record the counts."""
        needed = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        if not needed:
            return (None,) * 6
        (ids,) = ctx.saved_tensors
        weight: Tensor = ctx.weight
        accumulator = make_accumulator(
            ctx.sizes,
            weight.shape[1],
            batch_rows=len(ids),
            linear=ctx.has_linear,
            dtype=weight.dtype,
            device=weight.device,
        )
        accumulator.add(ids, grads, linear_grads if ctx.has_linear else None)
        gradients, linear = accumulator.finish()
        if ctx.track_counts and ctx.needs_input_grad[0]:
            _CountRecord.of(weight).add(weight, gradients.index.dense_counts())
        return gradients.to_dense(), None if linear is None else linear.to_dense(), None, None, None, None
