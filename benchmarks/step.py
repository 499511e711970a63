"""Time one training step against the matrix products that its model cannot do without.

    python benchmarks/step.py --rows 1000000 --batch-sizes 1024,8192

Prints, for each batch size, thousand samples a second of the whole step (every row of the table
updated), of the matrix products of its MLP alone, and the first as a share of the second. Both sides run in
turn in one process; compare ratios, not times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch

from stampede.training.batch import Batch
from stampede.training.build import model_of, optimizer_of
from stampede.training.config import TrainConfig
from stampede.training.step import TrainStep

FIELDS, N_DENSE = 26, 13
SECONDS_PER_SIDE = 4.0


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the embedding table")
    parser.add_argument("--batch-sizes", default="1024,8192")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"DeepFM 400x3, table of {options.rows:,} rows x 11, {options.threads} threads, float32")
    print(f"{'batch':>8} {'step':>10} {'products':>10} {'share':>7}   (thousand samples a second)")
    for size in (int(text) for text in options.batch_sizes.split(",")):
        step, products = _interleaved(_training_step(size, options.rows), _matrix_products(size))
        print(f"{size:>8} {size / step / 1e3:>10.1f} {size / products / 1e3:>10.1f} {products / step:>7.2f}")


def _training_step(batch_size: int, rows: int) -> Callable[[], object]:
    sizes = {f"C{i}": rows // FIELDS for i in range(1, FIELDS + 1)}
    config = TrainConfig(batch_size=batch_size)
    model = model_of(config, sizes, n_dense=N_DENSE)
    optimizer = optimizer_of(config, model)
    # ids with the long tail of click logs: the k-th id is about 1/k as frequent as the first
    uniform = torch.rand(batch_size, FIELDS)
    ids = ((rows // FIELDS) ** uniform).to(torch.int32) - 1
    batch = Batch(torch.rand(batch_size, N_DENSE), ids, torch.randint(0, 2, (batch_size,), dtype=torch.int8))
    take_step = TrainStep(model, optimizer, batch_size=batch_size)
    return lambda: take_step(batch)


def _matrix_products(batch_size: int) -> Callable[[], object]:
    widths = [FIELDS * 10 + N_DENSE, 400, 400, 400]
    layers = [
        (torch.rand(batch_size, a), torch.rand(b, a), torch.rand(batch_size, b)) for a, b in pairwise(widths)
    ]

    def run() -> None:
        for x, weight, gradient in layers:
            x @ weight.T  # forward
            gradient @ weight  # backward, to the input
            gradient.T @ x  # backward, to the weight

    return run


def _interleaved(one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    """Return the median seconds of each of two functions, called in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    one(), other()
    stop = time.perf_counter() + 2 * SECONDS_PER_SIDE
    while time.perf_counter() < stop or len(times[0]) < 3:
        for function, seconds in zip((one, other), times, strict=True):
            started = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - started)
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    main()
