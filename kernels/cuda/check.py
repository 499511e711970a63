"""Every kernel on the GPU at hand: held to the plain references, captured in a graph, and timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stampede import DeviceError
from stampede.kernels.cuda.cases import SHAPES, Case, Shape
from stampede.kernels.cuda.lookup import gather
from stampede.kernels.cuda.update import update_entries, update_table, update_values
from stampede.kernels.reference import clip_rows as plain_clip_rows
from stampede.kernels.reference.update import add_l2, apply_adam_, apply_cowclip_adam_

TOLERANCE = 1e-5
"""How far a result may be from that in float64, as a share of the largest value."""

_RULE: dict[str, Any] = {"rate": 1e-3, "l2": 1e-5, "betas": (0.9, 0.999), "eps": 1e-7}
_CLIP = (1.0, 1e-5)


@dataclass
class Check:
    """A kernel's results beside what they should be, and what to time."""

    name: str
    run: Callable[[], object]
    traffic: int  # bytes that the operation must read and write
    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def expect(self, holds: bool, fault: str) -> None:
        """Note a fault where a condition does not hold."""
        if not holds:
            self.faults.append(fault)


def check_on_device(
    device: torch.device | str = "cuda", *, shapes: Sequence[Shape] = SHAPES
) -> list[dict[str, Any]]:
    """Run every kernel on a GPU.

    Returns
    -------
    list[dict[str, Any]]
        For each kernel and shape: ``name``, ``shape``, ``max_abs_error``, ``max_rel_error`` (of the largest
        value), ``ok``, ``faults`` (what is wrong, in words), ``microseconds`` (replayed from a CUDA graph, so
        without the time that Python takes to launch), ``gb_per_second`` (of the traffic that the operation
        must do; a working set that fits the L2 cache may pass the bandwidth of memory) and ``share_of_copy``
        (that, of the bandwidth of a device-to-device copy). A shape that the free memory does not hold has a
        row with ``ok`` None.

    Raises
    ------
    stampede.DeviceError
        There is no GPU, or CuPy or numba-cuda is missing.
    """
    device = torch.device(device)
    if device.type != "cuda" or not torch.cuda.is_available():
        raise DeviceError(f"{device} is no GPU, or torch cannot use it")
    with torch.cuda.device(device):
        copy = _copy_bandwidth(device)
        found = []
        for shape in shapes:
            if shape.bytes > 0.9 * torch.cuda.mem_get_info()[0]:
                found.append({"name": "skipped: memory", "shape": str(shape), "ok": None})
                continue
            found += [_row(check, shape, copy) for check in _checks(Case(shape, device))]
            torch.cuda.empty_cache()
    return found


def _checks(case: Case) -> Iterator[Check]:
    yield from _cuda_c_checks(case)
    yield _gather_batch(case)
    yield _clip_rows(case)


def _cuda_c_checks(case: Case) -> Iterator[Check]:
    yield _gather(case)
    yield _accumulate(case)
    yield _update(case, update_table, clip=_CLIP)
    yield _update(case, update_table, clip=None)
    yield _update(case, update_entries, clip=_CLIP)
    yield _update_values(case)
    yield _step(case)


def _gather(case: Case) -> Check:
    out = torch.empty(case.shape.batch, case.fields, case.shape.dim, device=case.device)
    out_linear = torch.empty(case.shape.batch, device=case.device)
    run = partial(
        gather,
        case.weights,
        case.linear,
        case.ids,
        offsets=case.offsets,
        out=out,
        out_linear=out_linear,
    )
    run()
    check = Check("gather", run, case.ids.numel() * (8 * case.shape.dim + 8))
    check.expect(torch.equal(out.flatten(0, 1), case.weights[case.rows]), "rows differ")
    linear = case.linear[case.rows].double().view(case.shape.batch, -1).sum(1)
    check.pairs.append((out_linear, linear))
    return check


def _accumulate(case: Case) -> Check:
    accumulator, pieces = case.accumulator(), case.accumulator()
    dim, rows = case.shape.dim, case.rows

    def run() -> None:
        accumulator.add(case.ids, case.grads, case.linear_grads)
        accumulator.finish()
        accumulator.clear()

    case.ids.copy_(case.batches[1])
    run()  # another batch before, of which nothing may be left
    case.ids.copy_(case.batches[0])
    accumulator.add(case.ids, case.grads, case.linear_grads)
    sums, linear = accumulator.finish()
    used = sums.index.counts > 0
    check = Check("accumulate", run, case.ids.numel() * (4 * dim + 4) + int(used.sum()) * (4 * dim + 16))
    unique, inverse, counts = torch.unique(rows, return_inverse=True, return_counts=True)
    expected = torch.zeros(len(unique), dim + 1, dtype=torch.float64, device=case.device)
    expected[:, :dim].index_add_(0, inverse, case.grads.flatten(0, 1).double())
    expected[:, dim].index_add_(0, inverse, case.linear_grads.double().repeat_interleave(case.fields))
    check.expect(torch.equal(sums.index.rows[used], unique), "rows differ")
    check.expect(torch.equal(sums.index.counts[used].long(), counts), "counts differ")
    check.expect(torch.equal(sums.index.slots[unique], used.nonzero()[:, 0].int()), "slots differ")
    check.expect(int((sums.index.slots >= 0).sum()) == len(unique), "slots of other rows are set")
    if len(check.faults) == 0 and linear is not None:
        check.pairs += [(sums.sums[used], expected[:, :dim]), (linear.sums[used, 0], expected[:, dim])]
    half = case.shape.batch // 2
    for part in (slice(0, half), slice(half, None)):
        pieces.add(case.ids[part], case.grads[part], case.linear_grads[part])
    again, _ = pieces.finish()
    check.expect(torch.equal(again.sums[used], sums.sums[used]), "pieces give other bits")
    accumulator.clear()
    check.expect(bool((sums.index.slots == -1).all()), "slots are not cleared")
    return check


def _update(case: Case, update: Callable[..., Tensor], *, clip: tuple[float, float] | None) -> Check:
    """Check the update of a table, of every row or the batch's; of a large table, some rows are compared."""
    accumulator = case.accumulator()
    accumulator.add(case.ids, case.grads, case.linear_grads)
    sums, _ = accumulator.finish()
    index, dim = sums.index, case.shape.dim
    sample, touched = case.sample, index.counts > 0
    if update is update_entries:
        sample = index.rows[touched]
    entries = index.slots[sample].long()
    present = entries >= 0
    grads = torch.zeros(len(sample), dim, dtype=torch.float64, device=case.device)
    grads[present] = sums.sums[entries[present]].double()
    counts = torch.zeros(len(sample), dtype=torch.int32, device=case.device)
    counts[present] = index.counts[entries[present]]
    expected = case.state(sample)
    doubtful = _doubtful_rows(expected["weights"], grads, counts)
    wanted = apply_cowclip_adam_(grads=grads, counts=counts, **expected, **_RULE, clip=clip)

    def run() -> Tensor:
        return update(gradients=sums, **case.state(), **_RULE, clip=clip)

    clipped = run()
    work = case.num_rows if update is update_table else int(touched.sum())
    name = f"{update.__name__}, {'clip' if clip else 'no clip'}"
    check = Check(name, run, work * (24 * dim + 4) + int(touched.sum()) * (4 * dim + 4))
    check.pairs += [(table[sample], expected[name]) for name, table in case.state().items()]
    if len(sample) == work:
        check.expect(
            abs(int(clipped) - int(wanted)) <= doubtful, f"{int(clipped)} clipped, not {int(wanted)}"
        )
    return check


def _doubtful_rows(weights: Tensor, grads: Tensor, counts: Tensor) -> int:
    """Count the rows that are so near to their threshold that rounding decides."""
    norms = add_l2(grads, weights, l2=_RULE["l2"]).norm(dim=1)
    floor = _CLIP[0] * math.sqrt(weights.shape[1]) * _CLIP[1]
    thresholds = weights.norm(dim=1).clamp(min=floor) * counts.clamp(min=1) * _CLIP[0]
    return int(((norms - thresholds).abs() <= TOLERANCE * norms).sum())


def _update_values(case: Case) -> Check:
    shape = (len(case.sample) // 3, 3 * case.shape.dim)
    grads = case.weights.flatten()[-shape[0] * shape[1] :].reshape(shape).clone()
    state = {
        name: table.flatten()[: grads.numel()].view(shape).clone() for name, table in case.state().items()
    }
    expected = {name: table.double() for name, table in state.items()}
    rule = {name: value for name, value in _RULE.items() if name != "l2"}
    apply_adam_(grads=add_l2(grads.double(), expected["weights"], l2=_RULE["l2"]), **expected, **rule)
    run = partial(update_values, grads=grads, **state, **_RULE)
    run()
    check = Check("update_values", run, 28 * grads.numel())
    check.pairs += [(state[name], expected[name]) for name in state]
    return check


def _step(case: Case) -> Check:
    """Check a step in a graph: replayed with other ids and another rate, it gives the bits of eager steps."""
    accumulator = case.accumulator()
    linear_state = [torch.zeros_like(case.linear) for _ in range(2)]
    out = torch.empty_like(case.grads)
    out_linear = torch.empty_like(case.linear_grads)
    rate = torch.zeros((), device=case.device)
    rule = {**_RULE, "rate": rate}
    tables = [*case.state().values(), case.linear, *linear_state]
    begun = [table.clone() for table in tables]

    def step() -> None:
        gather(
            case.weights,
            case.linear,
            case.ids,
            offsets=case.offsets,
            out=out,
            out_linear=out_linear,
        )
        accumulator.add(case.ids, case.grads, case.linear_grads)
        sums, linear_sums = accumulator.finish()
        update_table(gradients=sums, **case.state(), **rule, clip=_CLIP)
        if linear_sums is not None:
            update_table(
                case.linear, linear_sums, exp_avg=linear_state[0], exp_avg_sq=linear_state[1], **rule
            )
        accumulator.clear()

    def run_two(step: Callable[[], object]) -> list[Tensor]:
        for table, start in zip(tables, begun, strict=True):
            table.copy_(start)
        for ids, value in zip(case.batches, (1e-3, 0.5e-3), strict=True):
            case.ids.copy_(ids)
            rate.fill_(value)
            step()
        return [*(table[case.sample] for table in tables), out.clone(), out_linear.clone()]

    eager = run_two(step)
    replayed = run_two(_captured(step))
    dim, occurrences = case.shape.dim, case.ids.numel()
    traffic = occurrences * (12 * dim + 12) + case.num_rows * (24 * dim + 32)
    check = Check("step in a graph", step, traffic)
    same = all(torch.equal(a, b) for a, b in zip(eager, replayed, strict=True))
    check.expect(same, "a replayed graph gives other bits than eager steps")
    case.ids.copy_(case.batches[0])
    return check


def _gather_batch(case: Case) -> Check:
    from stampede.kernels.cuda.batch import Batch, gather_batch

    batch, rows = case.shape.batch, 2 * case.shape.batch
    dense = torch.randn(rows, 13, device=case.device).to(torch.bfloat16)
    labels = torch.randint(2, (rows,), device=case.device, dtype=torch.int8)
    dataset = Batch(torch.cat(case.batches), dense, labels)
    order = torch.randperm(rows, device=case.device)[:batch]
    out = gather_batch(dataset, order)
    row_bytes = 4 * case.fields + 2 * 13 + 1
    check = Check("gather_batch", partial(gather_batch, dataset, order, out=out), batch * (2 * row_bytes + 8))
    same = all(torch.equal(a, b[order]) for a, b in zip(out, dataset, strict=True))
    check.expect(same, "rows differ")
    return check


def _clip_rows(case: Case) -> Check:
    from stampede.kernels.cuda.clip import clip_rows

    rows = case.sample[-min(len(case.sample), 2**20) :]
    weights = case.weights[rows]
    grads = torch.randn_like(weights).mul_(2e-2)
    counts = (rows % 4).int()
    run = partial(clip_rows, grads, weights, counts=counts)
    found, _ = run()
    expected, _ = plain_clip_rows(grads.double(), weights.double(), counts=counts)
    check = Check("clip_rows", run, 12 * weights.numel() + 5 * len(rows))
    check.pairs.append((found, expected))
    return check


def _row(check: Check, shape: Shape, copy: float) -> dict[str, Any]:
    """Compare and time."""
    absolute = relative = 0.0
    for found, expected in check.pairs:
        error = (found.double() - expected).abs().max().item() if found.numel() else 0.0
        largest = expected.abs().max().item() if found.numel() else 1.0
        absolute, relative = max(absolute, error), max(relative, error / (largest or 1.0))
    correct = relative <= TOLERANCE  # false for NaN
    faults = [*check.faults, *([] if correct else [f"off by {relative:.1e} of the largest value"])]
    microseconds = _microseconds(_captured(check.run))
    speed = check.traffic / microseconds / 1e3
    return {
        "name": check.name,
        "shape": str(shape),
        "max_abs_error": absolute,
        "max_rel_error": relative,
        "ok": not faults,
        "faults": faults,
        "microseconds": microseconds,
        "gb_per_second": speed,
        "share_of_copy": speed / copy,
    }


def _captured(run: Callable[[], object]) -> Callable[[], None]:
    """Capture an operation in a CUDA graph; gives its replay."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()  # compiles what is not compiled yet, and takes memory outside the graph
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _microseconds(replay: Callable[[], object], *, repeats: int = 20) -> float:
    """Time an operation by the device's clock; the mean of some runs, after some."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    for _ in range(3):
        replay()
    start.record()
    for _ in range(repeats):
        replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / repeats


def _copy_bandwidth(device: torch.device) -> float:
    """Measure a device-to-device copy in GB/s, bytes read and written."""
    source = torch.empty(2**28, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / _microseconds(partial(target.copy_, source)) / 1e3
