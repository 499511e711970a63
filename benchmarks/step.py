"""Time one training step on a CPU against what it cannot do without.

    python benchmarks/step.py --rows 1000000 --batch-sizes 1024,8192,65536,131072 --json step.json

For each batch size, in turn in one process:

- thousand samples a second of the whole step (DeepFM 400x3, every row of the table updated) in float32 and
  with bfloat16 products, and of the step that updates the batch's rows alone;
- the same of the matrix products of its MLP alone, by torch in float32, at this batch size and at 8192, where
  the products themselves are fastest; and the step as a share of each;
- the embedding update (counts, row sums, L2, clip, Adam) against the time that its memory traffic takes at
  the speed of a copy;
- where the time of a step goes.

All sides run in turn; compare ratios, not times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from stampede.kernels import RowGradients, empty
from stampede.training.batch import Batch
from stampede.training.build import model_of, optimizer_of
from stampede.training.config import TrainConfig
from stampede.training.step import TrainStep

FIELDS, N_DENSE, DIM, HIDDEN = 26, 13, 10, (400, 400, 400)
PRODUCTS_BATCH = 8192
PROFILED_STEPS = 5
SECONDS_PER_TURN, TURNS = 0.3, 3
VARIANTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bf16": {"precision": "bf16"},
    "touched": {"update": "touched"},
}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the embedding table")
    parser.add_argument("--batch-sizes", default="1024,8192,65536")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each side and batch size")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        f"DeepFM 400x3, table of {options.rows:,} rows x {DIM + 1}, {options.threads} threads; "
        "thousand samples a second"
    )
    print(
        f"{'batch':>8} {'products':>9} {'float32':>8} {'share':>6} {'of 8K':>6} "
        f"{'bf16':>7} {'gain':>5} {'touched':>8} {'update':>7}  where float32 goes"
    )
    results = []
    for size in (int(text) for text in options.batch_sizes.split(",")):
        result = _measure(size, options.rows, seconds=options.seconds)
        results.append(result)
        speed = {name: result[f"{name}_samples_per_second"] / 1e3 for name in VARIANTS}
        phases = ", ".join(f"{name} {share:.1%}" for name, share in result["phases"].items())
        print(
            f"{size:>8} {result['products_samples_per_second'] / 1e3:>9.1f} {speed['float32']:>8.1f} "
            f"{result['share_of_products']:>6.2f} {result['share_of_products_8k']:>6.2f} "
            f"{speed['bf16']:>7.1f} {result['bf16_gain']:>5.2f} {speed['touched']:>8.1f} "
            f"{result['update_over_copy']:>6.2f}x  {phases}",
            flush=True,
        )
    if options.json is not None:
        document = {"rows": options.rows, "threads": options.threads, "torch": torch.__version__}
        options.json.write_text(json.dumps({**document, "results": results}, indent=1) + "\n")


def _measure(batch_size: int, rows: int, *, seconds: float) -> dict[str, Any]:
    steps = {name: _Step(batch_size, rows, variant) for name, variant in VARIANTS.items()}
    copied = empty((rows * (DIM + 1) * 3,)).zero_()
    target = empty((rows * (DIM + 1) * 3,)).zero_()
    sides: dict[str, Callable[[], object]] = {
        **steps,
        "products": _matrix_products(batch_size),
        "products_8k": _matrix_products(PRODUCTS_BATCH),
        "update": steps["float32"].update,
        "copy": lambda: target.copy_(copied),
    }
    times = _interleaved(sides, seconds=seconds * len(sides))
    ratio = _ratios(times)
    per_sample = PRODUCTS_BATCH / batch_size
    return {
        "batch_size": batch_size,
        **{f"{name}_samples_per_second": batch_size / statistics.median(times[name]) for name in VARIANTS},
        "products_samples_per_second": batch_size / statistics.median(times["products"]),
        "products_8k_samples_per_second": PRODUCTS_BATCH / statistics.median(times["products_8k"]),
        "share_of_products": ratio("products", "float32"),
        "share_of_products_8k": ratio("products_8k", "float32") / per_sample,
        "bf16_gain": ratio("float32", "bf16"),
        "touched_gain": ratio("float32", "touched"),
        "update_milliseconds": 1e3 * statistics.median(times["update"]),
        "update_over_copy": ratio("update", "copy") * _bytes_of_copy(rows) / steps["float32"].traffic(),
        "copy_gb_per_second": _bytes_of_copy(rows) / statistics.median(times["copy"]) / 1e9,
        "phases": steps["float32"].phases(),
    }


class _Step:
    """A training step on one batch, over and over."""

    def __init__(self, batch_size: int, rows: int, variant: dict[str, Any]) -> None:
        sizes = {f"C{i}": rows // FIELDS for i in range(1, FIELDS + 1)}
        config = TrainConfig(batch_size=batch_size, **variant)
        self.model = model_of(config, sizes, n_dense=N_DENSE)
        self.optimizer = optimizer_of(config, self.model)
        self.take_step = TrainStep(
            self.model, self.optimizer, batch_size=batch_size, precision=config.precision
        )
        generator = torch.Generator().manual_seed(0)
        # ids with the long tail of click logs: the k-th id is about 1/k as frequent as the first
        uniform = torch.rand(batch_size, FIELDS, generator=generator)
        ids = ((rows // FIELDS) ** uniform).to(torch.int32) - 1
        labels = torch.randint(0, 2, (batch_size,), dtype=torch.int8, generator=generator)
        self.batch = Batch(torch.rand(batch_size, N_DENSE, generator=generator), ids, labels)
        self.grads = torch.randn(batch_size, FIELDS, DIM, generator=generator) * 1e-4
        self.linear_grads = torch.randn(batch_size, generator=generator) * 1e-4

    def __call__(self) -> object:
        return self.take_step(self.batch)

    def update(self) -> None:
        """Count, sum and update as a step does, with given gradients."""
        accumulator = self.take_step.accumulator
        accumulator.clear()
        for start in range(0, len(self.batch), self.take_step.piece_rows):
            piece = slice(start, start + self.take_step.piece_rows)
            accumulator.add(self.batch.ids[piece], self.grads[piece], self.linear_grads[piece])
        embedding, linear = accumulator.finish()
        assert linear is not None
        assert self.model.first_order is not None
        gradients: dict[torch.Tensor, RowGradients] = {
            self.model.embedding.weight: embedding,
            self.model.first_order.weight: linear,
        }
        self.optimizer.zero_grad()
        self.optimizer.step(gradients=gradients)

    def traffic(self) -> int:
        """Return the bytes that the update must read and write."""
        rows = self.model.embedding.weight.shape[0]
        table = rows * (DIM + 1) * 4
        occurrences = self.batch.ids.numel()
        return 3 * 2 * table + rows * 4 + occurrences * (4 + 4 * DIM) + len(self.batch) * 4

    def phases(self) -> dict[str, float]:
        """Return the share of each part in the time of a step."""
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            started = time.perf_counter()
            for _ in range(PROFILED_STEPS):
                self()
            whole = 1e6 * (time.perf_counter() - started)
        named = {
            event.key.removeprefix("stampede: "): event.cpu_time_total / whole
            for event in recorded.key_averages()
            if event.key.startswith("stampede: ")
        }
        return {**dict(sorted(named.items(), key=lambda item: -item[1])), "rest": 1 - sum(named.values())}


def _matrix_products(batch_size: int) -> Callable[[], object]:
    widths = [FIELDS * DIM + N_DENSE, *HIDDEN]
    layers = [
        (torch.rand(batch_size, a), torch.rand(b, a), torch.rand(batch_size, b)) for a, b in pairwise(widths)
    ]

    def run() -> None:
        for x, weight, gradient in layers:
            x @ weight.T  # forward
            gradient @ weight  # backward, to the input
            gradient.T @ x  # backward, to the weight

    return run


def _bytes_of_copy(rows: int) -> int:
    return 2 * rows * (DIM + 1) * 3 * 4


def _interleaved(sides: Mapping[str, Callable[[], object]], *, seconds: float) -> dict[str, list[float]]:
    """Return the seconds of a call of each function, turn by turn.

    A turn is a call that is not timed, since it finds the caches as another side left them, and then the
    mean of as many calls as fit.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for function in sides.values():
        function()
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(times["copy"]) < TURNS:
        for name, function in sides.items():
            function()
            calls, started = 0, time.perf_counter()
            while calls == 0 or time.perf_counter() - started < SECONDS_PER_TURN:
                function()
                calls += 1
            times[name].append((time.perf_counter() - started) / calls)
    return times


def _ratios(times: Mapping[str, list[float]]) -> Callable[[str, str], float]:
    """Return a function of two sides: the first's time over the second's, the median over turns."""

    def ratio(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))

    return ratio


if __name__ == "__main__":
    main()
