"""The training loop: batches in order, a step each, an evaluation an epoch, the best epoch kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from stampede import StampedeError
from stampede.pipeline.dataset import Dataset
from stampede.training.averaging import WeightAverage
from stampede.training.batch import Batch
from stampede.training.build import model_of, optimizer_of
from stampede.training.checkpoint import load_best, mark_best, prune_checkpoints, save_checkpoint
from stampede.training.config import TrainConfig
from stampede.training.evaluation import EVALUATION_BATCH, evaluate
from stampede.training.graph import GraphedStep, can_be_captured
from stampede.training.loader import Loader, open_loader
from stampede.training.loss import regulariser
from stampede.training.metrics import Metrics
from stampede.training.optim import LinearWarmup
from stampede.training.records import Records
from stampede.training.step import TrainStep

STEPS_PER_LOG = 50


class Observer(Protocol):
    """Is told how far a run is."""

    def epoch_started(self, epoch: int, epochs: int, rows: int) -> None:
        """Begin epoch ``epoch`` of ``epochs``, of that many rows."""

    def rows_trained(self, rows: int, loss: float | None) -> None:
        """Take note of a step: its rows, and the mean cross-entropy of late where it was read."""

    def epoch_ended(self, epoch: int, valid: Metrics | None, *, best: bool) -> None:
        """Take note of the end of an epoch and its metrics on the valid split, if there is one."""


@dataclass(frozen=True)
class TrainResult:
    """What a run came to. Metrics are of the best epoch; seconds include evaluation."""

    valid: Metrics | None
    test: Metrics | None
    best_epoch: int
    epochs: int
    steps: int
    samples_per_second: float
    seconds: float


class Trainer:
    """Trains one model on one dataset into one run folder.

    ``metrics.jsonl`` of the folder gets a line each :data:`STEPS_PER_LOG` steps and each epoch; after each
    epoch a checkpoint is written, and the best and the last are kept.

    Parameters
    ----------
    config, dataset, device:
        What to train, on what, where.
    run:
        The folder of the run; it must exist when :meth:`fit` begins.
    """

    def __init__(
        self,
        config: TrainConfig,
        dataset: Dataset,
        *,
        device: torch.device,
        run: Path,
        observer: Observer | None = None,
    ) -> None:
        self.config = config
        self.run = run
        self.observer = observer
        self.model = model_of(config, dataset.sizes, n_dense=len(dataset.dense_columns)).to(device)
        self.optimizer = optimizer_of(config, self.model)
        self.average = WeightAverage(self.model, decay=config.ema_decay) if config.ema_decay > 0 else None
        self.train = self._loader(dataset, "train", batch_size=config.batch_size, device=device)
        self.valid, self.test = (
            self._loader(dataset, split, batch_size=EVALUATION_BATCH, device=device)
            if split in dataset.rows
            else None
            for split in ("valid", "test")
        )
        batch_size = min(config.batch_size, self.train.rows)
        step = TrainStep(
            self.model,
            self.optimizer,
            batch_size=batch_size,
            accumulate=config.accumulate,
            precision=config.precision,
            compiles=config.compiles,
        )
        self.take_step: Callable[[Batch], Tensor] = step
        if device.type == "cuda" and config.cuda_graph and can_be_captured(self.optimizer):
            self.take_step = GraphedStep(step, self.optimizer, batch_size=batch_size)
        warmup_steps = round(config.warmup_epochs * len(self.train))
        self.schedule = LinearWarmup(self.optimizer, warmup_steps=warmup_steps)
        self.step = 0
        self.best_epoch = 0
        self.best_valid: Metrics | None = None
        self._losses: list[Tensor] = []

    def _loader(self, dataset: Dataset, split: str, *, batch_size: int, device: torch.device) -> Loader:
        return open_loader(
            dataset,
            split,
            batch_size=batch_size,
            device=device,
            kind=self.config.loader,
            memory=self.config.loader_memory,
        )

    def fit(self) -> TrainResult:
        """Train until the epochs, the steps or the patience run out; the model ends with the best weights."""
        started = time.perf_counter()
        training_seconds, trained_rows, epochs_since_best = 0.0, 0, 0
        lowest_loss = float("inf")
        with Records(self.run) as records:
            for epoch in range(1, self.config.epochs + 1):
                epoch_started = time.perf_counter()
                trained_rows += self._train_epoch(epoch, records)
                training_seconds += time.perf_counter() - epoch_started

                valid, checkpoint = self._end_epoch(epoch)
                is_best = self._is_best(valid)
                if is_best:
                    mark_best(self.run, checkpoint)
                    self.best_epoch, self.best_valid = epoch, valid
                prune_checkpoints(self.run, keep=checkpoint)
                records.write(kind="epoch", step=self.step, epoch=epoch, valid=_as_json(valid), best=is_best)
                if self.observer is not None:
                    self.observer.epoch_ended(epoch, valid, best=is_best)

                improved = is_best
                if valid is not None and valid.auc is None and valid.logloss is not None:
                    improved = valid.logloss < lowest_loss
                    lowest_loss = min(lowest_loss, valid.logloss)
                epochs_since_best = 0 if improved else epochs_since_best + 1
                if self._out_of_steps() or 0 < self.config.patience <= epochs_since_best:
                    break

            load_best(self.run, self.model)
            test = evaluate(self.model, self.test) if self.test is not None else None
            records.write(
                kind="result",
                step=self.step,
                epoch=self.best_epoch,
                valid=_as_json(self.best_valid),
                test=_as_json(test),
            )
        return TrainResult(
            valid=self.best_valid,
            test=test,
            best_epoch=self.best_epoch,
            epochs=epoch,
            steps=self.step,
            samples_per_second=trained_rows / training_seconds,
            seconds=time.perf_counter() - started,
        )

    def _end_epoch(self, epoch: int) -> tuple[Metrics | None, Path]:
        """Evaluate and keep the weights of an epoch: their running mean, where there is one."""
        with self.average.applied() if self.average is not None else nullcontext() as training_weights:
            try:
                valid = evaluate(self.model, self.valid) if self.valid is not None else None
            except StampedeError as error:
                raise StampedeError(f"after step {self.step}, on the valid split: {error}") from error
            checkpoint = save_checkpoint(
                self.run,
                step=self.step,
                model=self.model,
                optimizer=self.optimizer,
                state={"epoch": epoch, "schedule": self.schedule.state_dict()},
                training_weights=training_weights,
            )
        return valid, checkpoint

    def _train_epoch(self, epoch: int, records: Records) -> int:
        """Train one epoch, or what is left of the steps; return how many rows it took."""
        if self.observer is not None:
            self.observer.epoch_started(epoch, self.config.epochs, self.train.rows)
        rows = 0
        for batch in self.train.shuffled(seed=self.config.seed, epoch=epoch):
            self._losses.append(self.take_step(batch))
            if self.average is not None:
                self.average.update()
            self.step += 1
            rows += len(batch)
            ended = rows == self.train.rows or self._out_of_steps()
            loss = self._log_step(epoch, records) if ended or self.step % STEPS_PER_LOG == 0 else None
            self.schedule.step()
            if self.observer is not None:
                self.observer.rows_trained(len(batch), loss)
            if ended:
                break
        return rows

    def _log_step(self, epoch: int, records: Records) -> float:
        """Write a line on the steps since the last one; return their mean cross-entropy."""
        loss = self._read_losses()
        records.write(
            kind="step",
            step=self.step,
            epoch=epoch,
            cross_entropy=loss,
            regulariser=float(regulariser(self.optimizer.param_groups)),
            clipped_share=self.optimizer.clipped_share(),
            learning_rates={group["name"]: group["lr"] for group in self.optimizer.param_groups},
        )
        return loss

    def _read_losses(self) -> float:
        """Return the mean loss of the steps since the last reading; stop the run where one is not finite.

        Losses are read together, so that a GPU is not waited for at every step.
        """
        losses = torch.stack(self._losses).cpu()
        self._losses = []
        finite = torch.isfinite(losses)
        if not bool(finite.all()):
            step = self.step - len(losses) + int((~finite).nonzero()[0, 0]) + 1
            raise StampedeError(
                f"the loss is not finite at step {step}: training has diverged; lower the learning rates "
                "(--learning-rate, --embedding-learning-rate), or look for extreme dense values "
                "(prepare with --dense log or minmax)"
            )
        return float(losses.mean())

    def _out_of_steps(self) -> bool:
        return self.config.max_steps is not None and self.step >= self.config.max_steps

    def _is_best(self, valid: Metrics | None) -> bool:
        """Whether this epoch is the best so far: the highest valid AUC, else the last epoch."""
        if valid is None or valid.auc is None or self.best_valid is None or self.best_valid.auc is None:
            return True
        return valid.auc > self.best_valid.auc


def _as_json(metrics: Metrics | None) -> dict[str, Any] | None:
    if metrics is None:
        return None
    values = asdict(metrics)
    del values["calibration"]
    return values
