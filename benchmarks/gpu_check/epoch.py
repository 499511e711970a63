"""Section ``epoch``: epochs of planted rows that lie on the device, at one large batch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from benchmarks.gpu_check.model import Contender, scaled, sizes_of
from benchmarks.gpu_check.options import Options
from benchmarks.gpu_check.planted import ROW_BYTES, Law, planted_rows
from benchmarks.gpu_check.record import Findings, Part
from torch import Tensor

from stampede import StampedeError
from stampede.kernels import cuda_kernels_missing
from stampede.training.batch import Batch
from stampede.training.evaluation import EVALUATION_BATCH, evaluate
from stampede.training.metrics import Evaluation, Metrics
from stampede.training.models import CTRModel
from stampede.training.optim import LinearWarmup
from stampede.training.order import epoch_order

KAGGLE_ROWS = 45_840_617 * 9 // 10
"""Training rows of Criteo Kaggle."""

EPOCHS = 10
_OTHER_MEMORY = 16 << 30  # tables, means, activations of a batch, an order of the rows


def missing(options: Options) -> str | None:
    """Nothing."""


def parts(options: Options) -> list[Part]:
    """Compare after one epoch, then go on with CowClip as long as there is time."""
    runs = [
        ("cowclip, float32, 1 epoch", "cowclip", "cowclip", "float32", 1),
        ("linear, no clip, bf16, 1 epoch", "linear", "none", "bf16", 1),
        ("cowclip, bf16", "cowclip", "cowclip", "bf16", options.epochs),
    ]
    return [
        Part(name, partial(_train, options, rule=rule, clip=clip, precision=precision, epochs=epochs))
        for name, rule, clip, precision, epochs in runs
    ]


@dataclass(frozen=True)
class _Data:
    train: Batch
    held_out: Batch
    true_auc: float | None
    click_rate: float | None
    seconds: float


@lru_cache(maxsize=1)
def _data(options: Options) -> _Data:
    started = time.perf_counter()
    device, sizes = torch.device(options.device), sizes_of(options.epoch_table_rows)
    rows = options.epoch_rows
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0] - _OTHER_MEMORY
        rows = max(min(rows, free // (ROW_BYTES + 20)), options.epoch_batch_size)
    law = Law.drawn(sizes, device=device)
    train, _ = planted_rows(rows, sizes, law, seed=1)
    held_out, logits = planted_rows(options.held_out_rows, sizes, law, seed=2)
    evaluation = Evaluation()
    evaluation.update(logits, held_out.labels)
    true = evaluation.result()
    return _Data(train, held_out, true.auc, true.click_rate, time.perf_counter() - started)


@lru_cache(maxsize=1)
def _contender(options: Options) -> Contender:
    return Contender(options.epoch_table_rows, hidden=options.hidden, device=torch.device(options.device))


def _train(
    options: Options, findings: Findings, *, rule: str, clip: str, precision: str, epochs: int
) -> None:
    data, contender = _data(options), _contender(options)
    batch_size, on_cuda = min(options.epoch_batch_size, len(data.train)), options.device != "cpu"
    findings.note(
        rows=len(data.train),
        held_out_rows=len(data.held_out),
        click_rate=data.click_rate,
        true_auc=data.true_auc,
        data_seconds=data.seconds,
        graph=on_cuda,
    )
    training = contender.training(
        batch_size, precision=precision, graph=on_cuda, rates=scaled(batch_size, rule), clip=clip
    )
    steps = -(-len(data.train) // batch_size)
    schedule = LinearWarmup(training.optimizer, warmup_steps=steps)
    done: list[dict[str, Any]] = []
    while True:
        began = time.perf_counter()
        losses: list[Tensor] = []
        for batch in _shuffled(data.train, batch_size, epoch=len(done) + 1):
            losses.append(training.take(batch))
            schedule.step()
        losses_read = torch.stack(losses).cpu()  # waits for the device
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        metrics = _evaluate(training.model, data.held_out) if torch.isfinite(losses_read).all() else None
        if metrics is None:
            findings.note(diverged_in_epoch=len(done) + 1)
            if clip == "cowclip":  # without it, that is what the comparison is for
                findings.fault("training has diverged")
            return
        evaluation_seconds = time.perf_counter() - began
        done.append(
            {
                "seconds": seconds,
                "evaluation_seconds": evaluation_seconds,
                "loss": float(losses_read[-min(50, steps) :].mean()),
                "auc": metrics.auc,
                "logloss": metrics.logloss,
            }
        )
        # the first one compiles, and captures the graph
        usual = statistics.median(epoch["seconds"] for epoch in done[1:] or done)
        findings.note(
            epochs=done,
            steps=steps,
            auc=metrics.auc,
            seconds_per_epoch=usual,
            samples_per_second=len(data.train) / usual,
            projected_seconds=EPOCHS * usual * KAGGLE_ROWS / len(data.train),
            clipped_share=training.optimizer.clipped_share(),
        )
        if len(done) >= epochs or findings.seconds_left < 1.5 * (usual + evaluation_seconds) + 2:
            break
    if clip == "cowclip" and (metrics.auc is None or not metrics.auc > 0.5):
        findings.fault(f"the held-out AUC is {metrics.auc}: nothing was learned")


def _evaluate(model: CTRModel, rows: Batch) -> Metrics | None:
    """Evaluate; None where a logit is not finite."""
    try:
        return evaluate(model, rows.split(EVALUATION_BATCH))
    except StampedeError:
        return None


def _shuffled(data: Batch, batch_size: int, *, epoch: int) -> Iterator[Batch]:
    """Yield the batches of an epoch, as the trainer's loader of device-resident rows does."""
    order = epoch_order(len(data), seed=0, epoch=epoch, device=data.ids.device)
    for chosen in torch.split(order, batch_size):
        if not chosen.is_cuda or cuda_kernels_missing() is not None:
            yield data[chosen]
            continue
        from stampede.kernels import cuda

        held = cuda.Batch(ids=data.ids, dense=data.dense, labels=data.labels)
        gathered = cuda.gather_batch(held, chosen)
        yield Batch(dense=gathered.dense, ids=gathered.ids, labels=gathered.labels)
