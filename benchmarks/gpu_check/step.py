"""Section ``step``: the training step, eager and as a graph, beside its own matrix products."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any
from unittest import mock

import torch
from benchmarks.gpu_check.clock import Clock, Spans
from benchmarks.gpu_check.model import N_DENSE, Contender, Training, long_tailed_ids
from benchmarks.gpu_check.options import Options
from benchmarks.gpu_check.record import Findings, Part
from benchmarks.gpu_check.standins import is_importable

from stampede.training import step as step_module
from stampede.training.batch import Batch
from stampede.training.graph import WARM_UP_STEPS
from stampede.training.optim import tables as tables_module

BATCHES = 4
UNTIMED_STEPS = WARM_UP_STEPS + 2  # one captures, one replays for the first time
PHASE_STEPS = 10
_STEP = "whole step"
LOSS_TOLERANCE = 1e-5
COMPILE_SECONDS = 45.0


def missing(options: Options) -> str | None:
    """Nothing."""


def parts(options: Options) -> list[Part]:
    """Give a part for each table, precision and batch size; then those with torch.compile."""
    found = [
        Part(
            f"{rows:,} rows, {precision}, batch {batch_size:,}",
            partial(_step, options, rows, precision, batch_size),
        )
        for rows in options.table_rows
        for precision in options.precisions
        for batch_size in options.batch_sizes
        if _exists(precision, options)
    ]
    rows, batch_size = options.table_rows[0], options.compile_batch_size
    if options.device == "cpu" or not is_importable("triton"):
        return found
    return found + [
        Part(
            f"{rows:,} rows, {precision}, batch {batch_size:,}, torch.compile",
            partial(_compiled_step, options, rows, precision, batch_size),
            needs_seconds=COMPILE_SECONDS,
        )
        for precision in options.precisions
    ]


def _exists(precision: str, options: Options) -> bool:
    return precision != "tf32" or options.device != "cpu"


def _step(options: Options, rows: int, precision: str, batch_size: int, findings: Findings) -> None:
    device = torch.device(options.device)
    contender = _contender(rows, options.hidden, device)
    batches = _batches(contender, batch_size)
    products = _matrix_products(contender, batch_size, options, precision)
    findings.note(products_milliseconds=products * 1e3)
    start = partial(contender.training, batch_size, precision=precision)
    eager, losses = _run(lambda: start(graph=False), batches, options, phases=True)
    findings.note(eager=eager | _share(products, eager))
    if device.type != "cuda":
        return
    graph, graph_losses = _run(lambda: start(graph=True), batches, options)
    findings.note(graph=graph | _share(products, graph))
    differences = [abs(a - b) for a, b in zip(losses, graph_losses, strict=True)]
    findings.note(loss_difference=differences[-1], largest_loss_difference=max(differences))
    if precision == "float32" and not differences[-1] <= LOSS_TOLERANCE:  # NaN is one too
        first = next(k for k, difference in enumerate(differences) if not difference <= LOSS_TOLERANCE)
        findings.fault(
            f"graph and eager step end with losses {graph_losses[-1]} and {losses[-1]}, "
            f"apart from step {first + 1} on"
        )


def _compiled_step(options: Options, rows: int, precision: str, batch_size: int, findings: Findings) -> None:
    contender = _contender(rows, options.hidden, torch.device(options.device))
    batches = _batches(contender, batch_size)
    start = partial(contender.training, batch_size, precision=precision, compiles=True)
    for name, graph in (("eager", False), ("graph", True)):
        figures, _ = _run(partial(start, graph=graph), batches, options)
        findings.note(**{name: figures})


@lru_cache(maxsize=1)  # the next table takes its memory
def _contender(rows: int, hidden: tuple[int, ...], device: torch.device) -> Contender:
    return Contender(rows, hidden=hidden, device=device)


def _batches(contender: Contender, batch_size: int) -> list[Batch]:
    """Draw batches with long-tailed ids and random labels."""
    draw = torch.Generator(contender.device).manual_seed(1)
    sizes = torch.tensor(contender.sizes, device=contender.device)
    return [
        Batch(
            torch.rand(batch_size, N_DENSE, generator=draw, device=contender.device),
            long_tailed_ids(batch_size, sizes, generator=draw),
            torch.randint(2, (batch_size,), generator=draw, device=contender.device, dtype=torch.int8),
        )
        for _ in range(BATCHES)
    ]


def _run(
    start: Any, batches: Sequence[Batch], options: Options, *, phases: bool = False
) -> tuple[dict[str, Any], list[float]]:
    """Take steps; give figures and the loss of each."""
    device = torch.device(options.device)
    clock = Clock(device)
    if device.type == "cuda":
        gc.collect()  # the step before
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    training: Training = start()
    began = time.perf_counter()
    losses = [training.take(batches[0])]
    clock.wait()
    first_seconds = time.perf_counter() - began
    losses += [training.take(batches[k % BATCHES]) for k in range(1, UNTIMED_STEPS)]
    clock.wait()
    marks = [clock.mark()]
    for k in range(UNTIMED_STEPS, UNTIMED_STEPS + options.steps):
        losses.append(training.take(batches[k % BATCHES]))
        marks.append(clock.mark())
    clock.wait()
    seconds = statistics.median(clock.seconds(a, b) for a, b in pairwise(marks))
    read = torch.stack(losses).tolist()
    figures: dict[str, Any] = {
        "milliseconds": seconds * 1e3,
        "samples_per_second": len(batches[0]) / seconds,
        "mean_milliseconds": clock.seconds(marks[0], marks[-1]) / options.steps * 1e3,
        "first_step_seconds": first_seconds,
        "steps": len(read),
        "loss": read[-1],
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
    }
    if phases:
        figures["phase_milliseconds"] = _phases(training, batches, clock)
    return figures, read


def _phases(training: Training, batches: Sequence[Batch], clock: Clock) -> dict[str, float]:
    """Take steps with the times of their phases, in milliseconds a step.

    The phases are those that the step names for ``torch.profiler``; ``other`` is what lies outside them.
    """
    spans = Spans(clock)
    with (
        mock.patch.object(step_module, "record_function", spans.span),
        mock.patch.object(tables_module, "record_function", spans.span),
    ):
        for k in range(PHASE_STEPS):
            with spans.span(_STEP):
                training.step(batches[k % BATCHES])
    taken = {
        str(name).removeprefix("stampede: "): seconds / PHASE_STEPS * 1e3
        for name, seconds in spans.seconds().items()
    }
    return {**taken, "other": 2 * taken[_STEP] - sum(taken.values())}


def _share(products: float, figures: dict[str, Any]) -> dict[str, float]:
    """Give the speed as a share of that of the matrix products alone."""
    return {"share_of_products": products * 1e3 / figures["milliseconds"]}


def _matrix_products(contender: Contender, batch_size: int, options: Options, precision: str) -> float:
    """Time the products of the MLP alone, forward and backward, in seconds a step."""
    device = contender.device
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    random = partial(torch.rand, device=device, dtype=dtype)
    widths = [len(contender.sizes) * 10 + N_DENSE, *options.hidden]
    layers = [(random(batch_size, a), random(b, a), random(batch_size, b)) for a, b in pairwise(widths)]

    def run() -> None:
        for x, weight, gradient in layers:
            x @ weight.T  # forward
            gradient @ weight  # backward, to the input
            gradient.T @ x  # backward, to the weight

    clock = Clock(device)
    for _ in range(3):
        run()
    again: Any = run
    if device.type == "cuda":  # so that small ones do not wait for Python
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        again = graph.replay
        again()
    clock.wait()
    start = clock.mark()
    for _ in range(options.steps):
        again()
    end = clock.mark()
    clock.wait()
    return clock.seconds(start, end) / options.steps
