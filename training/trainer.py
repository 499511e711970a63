"""The training loop: batches in order, a step each, an evaluation an epoch, the best epoch kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from stampede import CheckpointError, DivergedError, StoppedError
from stampede.kernels import RowGradients
from stampede.pipeline.dataset import Dataset
from stampede.training.averaging import WeightAverage
from stampede.training.batch import Batch
from stampede.training.build import model_of, optimizer_of
from stampede.training.checkpoint import (
    load_best,
    load_model,
    load_training_state,
    mark_best,
    prune_later,
)
from stampede.training.checkpointer import Checkpointer
from stampede.training.config import TrainConfig
from stampede.training.evaluation import EVALUATION_BATCH, evaluate
from stampede.training.graph import GraphedStep, can_be_captured
from stampede.training.loader import Loader, open_loader
from stampede.training.loss import regulariser
from stampede.training.metrics import Metrics
from stampede.training.models import CTRModel
from stampede.training.nonfinite import NotFiniteError, find_cause, save_rows
from stampede.training.optim import LinearWarmup, TableOptimizer
from stampede.training.records import Records
from stampede.training.state import Checkpoint, RunState
from stampede.training.step import TrainStep
from stampede.training.tablestats import TableStatistics, TableWatch, training_counts

STEPS_PER_LOG = 50
TABLES_PER_EPOCH = 20


class Observer(Protocol):
    """Is told how far a run is."""

    def epoch_started(self, epoch: int, epochs: int, rows: int) -> None:
        """Begin epoch ``epoch`` of ``epochs``, of which that many rows are to be trained."""

    def rows_trained(self, rows: int, loss: float | None) -> None:
        """Take note of a step: its rows, and the mean cross-entropy of late where it was read."""

    def epoch_ended(self, epoch: int, valid: Metrics | None, *, best: bool) -> None:
        """Take note of the end of an epoch and its metrics on the valid split, if there is one."""


@dataclass(frozen=True)
class TrainResult:
    """What a run came to.

    Metrics are of the best epoch. ``seconds`` are those of this call, evaluation included;
    ``samples_per_second`` is of all steps of the run, also before it was resumed, without evaluation.
    """

    valid: Metrics | None
    test: Metrics | None
    best_epoch: int
    epochs: int
    steps: int
    skipped: int
    samples_per_second: float
    seconds: float


class Trainer:
    """Trains one model on one dataset into one run folder.

    ``metrics.jsonl`` of the folder gets a line each :data:`STEPS_PER_LOG` steps and each epoch, and one on
    the tables about :data:`TABLES_PER_EPOCH` times an epoch. Checkpoints are written after each epoch and as
    the config says. A run that goes on from a checkpoint ends as if it had never stopped: on one number of
    CPU threads bit for bit.

    Parameters
    ----------
    config, dataset, device:
        What to train, on what, where.
    run:
        The folder of the run; it must exist when :meth:`fit` begins.
    observer:
        Is told how far the run is.
    initialise:
        Puts other weights and another state than the initial ones into the model and its optimizer.
    start:
        A checkpoint of this run to go on from.
    stop:
        Whether to stop; asked after each step and each batch of an evaluation.

    Raises
    ------
    CheckpointError
        ``start`` is of another model, or its epochs were in another order than this loader gives.
    """

    def __init__(
        self,
        config: TrainConfig,
        dataset: Dataset,
        *,
        device: torch.device,
        run: Path,
        observer: Observer | None = None,
        initialise: Callable[[CTRModel, TableOptimizer], None] | None = None,
        start: Checkpoint | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config = config
        self.run = run
        self.observer = observer
        self.stop = stop
        self.state = RunState() if start is None else start.state
        self.fields, self.dense_columns = list(dataset.fields), list(dataset.dense_columns)
        self.model = model_of(config, dataset.sizes, n_dense=len(dataset.dense_columns)).to(device)
        self.optimizer = optimizer_of(config, self.model)
        if initialise is not None:
            initialise(self.model, self.optimizer)
        self.average = WeightAverage(self.model, decay=config.ema_decay) if config.ema_decay > 0 else None
        kind = config.loader if start is None else start.state.loader
        self.train = self._loader(
            dataset, config.train_split, batch_size=config.batch_size, device=device, kind=kind
        )
        self.valid, self.test = (
            self._loader(dataset, split, batch_size=EVALUATION_BATCH, device=device, kind=config.loader)
            if split in dataset.rows
            else None
            for split in (config.valid_split, config.test_split)
        )
        batch_size = min(config.batch_size, self.train.rows)
        skips = config.on_nan == "skip"
        step = TrainStep(
            self.model,
            self.optimizer,
            batch_size=batch_size,
            accumulate=config.accumulate,
            precision=config.precision,
            compiles=config.compiles,
            checks="gradients" if skips else "loss" if device.type == "cpu" else "nothing",
        )
        self.take_step: TrainStep | GraphedStep = step
        if device.type == "cuda" and config.cuda_graph and not skips and can_be_captured(self.optimizer):
            self.take_step = GraphedStep(step, self.optimizer, batch_size=batch_size)
        warmup_steps = round(config.warmup_epochs * len(self.train))
        self.schedule = LinearWarmup(self.optimizer, warmup_steps=warmup_steps)
        counts = training_counts(dataset)
        self.watch = TableWatch(self.model, self.optimizer, fields=self.fields, counts=counts)
        self._losses: list[Tensor] = []  # since they were last read
        self._cut_short = False
        if start is None:
            self.state.loader, self.state.order = self.train.kind, self.train.order
        else:
            self._restore(start)
        self.checkpoints = Checkpointer(
            run,
            config,
            model=self.model,
            optimizer=self.optimizer,
            average=self.average,
            step=self.state.step,
        )

    def _loader(
        self, dataset: Dataset, split: str, *, batch_size: int, device: torch.device, kind: str
    ) -> Loader:
        return open_loader(
            dataset,
            split,
            batch_size=batch_size,
            device=device,
            kind=kind,  # type: ignore[arg-type]
            memory=self.config.loader_memory,
        )

    def _restore(self, start: Checkpoint) -> None:
        """Put everything in place as it was when the checkpoint was written."""
        state = start.state
        if self.train.order != state.order:
            raise CheckpointError(
                f"{start.folder} was trained in the order {state.order!r}, and this run would go on in "
                f"{self.train.order!r}: resume it on the kind of device that it began on"
            )
        if self.average is not None:
            load_model(start.folder, self.model)
            self.average.restore(steps=state.average_steps)
        load_training_state(start.folder, self.model, self.optimizer)
        self.schedule.load_state_dict(state.schedule)
        for group, rate in zip(self.optimizer.param_groups, state.learning_rates, strict=True):
            group["lr"] = rate

    def fit(self) -> TrainResult:
        """Train until the epochs, the steps or the patience run out; the model ends with the best weights.

        Raises
        ------
        StoppedError
            It was told to stop; a checkpoint has the state.
        CheckpointError
            A checkpoint or a record cannot be written.
        DivergedError
            A loss, or a score of the evaluation, is not finite.
        """
        started = time.perf_counter()
        state = self.state
        with Records(self.run, after=state.records, step=state.step) as records:
            if state.best_step:
                mark_best(self.run, state.best_step)
            prune_later(self.run, step=state.step)
            while not self._finished():
                self._train_epoch(records)
                self._end_epoch(records)
                if self.stop() and not self._finished():
                    raise self._stopped()
            if (
                state.best_step == 0
            ):  # the run had ended, and its best checkpoint was lost: the last one is it
                with self.average.applied() if self.average is not None else nullcontext():
                    state.best_valid = self._evaluate(self.valid, "valid")
                state.best_epoch, state.best_step = state.epoch - 1, state.step
                mark_best(self.run, state.step)
            load_best(self.run, self.model)
            test = self._evaluate(self.test, "test")
            records.write(
                kind="result",
                step=state.step,
                epoch=state.best_epoch,
                valid=_as_json(state.best_valid),
                test=_as_json(test),
            )
        return TrainResult(
            valid=state.best_valid,
            test=test,
            best_epoch=state.best_epoch,
            epochs=state.epoch if self._cut_short else state.epoch - 1,
            steps=state.step,
            skipped=state.skipped,
            samples_per_second=state.rows / state.seconds if state.seconds else 0.0,
            seconds=time.perf_counter() - started,
        )

    def _finished(self) -> bool:
        state = self.state
        if self._cut_short or state.epoch > self.config.epochs:
            return True
        if state.batch > 0:  # in the middle of an epoch, which is still to be evaluated
            return False
        return self._out_of_steps() or 0 < self.config.patience <= state.epochs_since_best

    def _train_epoch(self, records: Records) -> None:
        """Train an epoch from where the state is, up to its end or the last of the steps."""
        state = self.state
        done = min(state.batch * self.config.batch_size, self.train.rows)
        if self.observer is not None:
            self.observer.epoch_started(state.epoch, self.config.epochs, self.train.rows - done)
        if state.batch == len(self.train) or self._out_of_steps():
            return  # it was stopped between the last step and the evaluation, whose line is pending
        if state.pending is not None and state.step % STEPS_PER_LOG == 0:
            self._write(state.pending, records)  # it went on from a last step that is one no more
        state.pending = None
        last = time.perf_counter()
        for batch in self.train.shuffled(seed=self.config.seed, epoch=state.epoch, first=state.batch):
            state.batch += 1
            state.step += 1
            ended = state.batch == len(self.train) or self._out_of_steps()
            self._take(batch, records)
            line = self._line() if ended or state.step % STEPS_PER_LOG == 0 else None
            self.schedule.step()
            state.rows += len(batch)
            now = time.perf_counter()
            state.seconds += now - last
            last = now
            if ended:
                state.pending = line
                break
            if line is not None:
                self._write(line, records)
            if self.observer is not None:
                self.observer.rows_trained(len(batch), None if line is None else line["cross_entropy"])
            if self.stop():
                self.checkpoints.save(self._snapshot(records))
                raise self._stopped()
            if self.checkpoints.is_due(state.step):
                self.checkpoints.save(self._snapshot(records))
                last = time.perf_counter()
        if self.observer is not None:
            self.observer.rows_trained(len(batch), None if line is None else line["cross_entropy"])

    def _take(self, batch: Batch, records: Records) -> None:
        """Take one step, or leave its batch out."""
        state = self.state
        measured: list[TableStatistics] = []

        def watch(gradients: Mapping[Tensor, RowGradients]) -> None:
            measured.append(self.watch.measure(gradients))

        try:
            self._losses.append(self.take_step(batch, watch=watch if self._is_watched() else None))
        except NotFiniteError as error:
            broken = not all(bool(torch.isfinite(weight).all()) for weight in self.model.parameters())
            if self.config.on_nan == "stop" or broken:
                raise self._diverged(batch, step=state.step, why=str(error)) from error
            state.skipped += 1
            records.write(kind="skip", step=state.step, epoch=state.epoch, reason=str(error))
            return
        if self.average is not None:
            self.average.update()
        for tables in measured:
            if bool(torch.isfinite(tables.norms).all()):
                records.write(kind="tables", step=state.step, epoch=state.epoch, **tables.record)
                records.show_histogram("tables/clip_factor", tables.factors, step=state.step)
                records.show_histogram("tables/gradient_norm", tables.norms, step=state.step)

    def _end_epoch(self, records: Records) -> None:
        """Evaluate the weights of an epoch (their running mean, where there is one) and keep them."""
        state = self.state
        partial = state.batch < len(self.train)
        before = self._snapshot(records)
        if state.pending is not None:
            self._write(state.pending, records)
        try:
            with self.average.applied() if self.average is not None else nullcontext():
                valid = self._evaluate(self.valid, "valid")
        except StoppedError:
            self.checkpoints.save(before)
            raise
        best = state.note_epoch(valid)
        records.write(kind="epoch", step=state.step, epoch=state.epoch, valid=_as_json(valid), best=best)
        if valid is not None:
            records.show_scores("epoch/valid/scores", valid.calibration, step=state.step)
        epoch = state.epoch
        if partial:
            # with more steps the run would not have been evaluated here: it goes on from before that
            self._cut_short = True
            self.checkpoints.save(before, best=best)
        else:
            state.epoch, state.batch = epoch + 1, 0
            self.checkpoints.save(self._snapshot(records), best=best)
        if self.observer is not None:
            self.observer.epoch_ended(epoch, valid, best=best)

    def _evaluate(self, loader: Loader | None, split: str) -> Metrics | None:
        """Evaluate the model on a split, unless told to stop.

        Raises
        ------
        StoppedError
            It was.
        """
        if loader is None:
            return None

        def batches() -> Iterator[Batch]:
            for batch in loader:
                if self.stop():
                    raise self._stopped()
                yield batch

        try:
            return evaluate(self.model, batches())
        except DivergedError as error:
            names = {"dense": self.dense_columns, "fields": self.fields}
            cause = find_cause(self.model, next(iter(loader)), **names)
            raise DivergedError(
                f"after step {self.state.step}, on the {split} split: {error}; {cause}"
            ) from error

    def _line(self) -> dict[str, Any]:
        """Make the line on the steps since the last one."""
        self._read_losses()
        losses = self.state.losses
        return {
            "step": self.state.step,
            "epoch": self.state.epoch,
            "cross_entropy": float(torch.tensor(losses).mean()) if losses else None,
            "regulariser": float(regulariser(self.optimizer.param_groups)),
            "clipped_share": self.optimizer.clipped_share(),
            "learning_rates": {group["name"]: group["lr"] for group in self.optimizer.param_groups},
        }

    def _write(self, line: dict[str, Any], records: Records) -> None:
        """Write a line on steps; those after it are told of in the next one."""
        state = self.state
        records.write(kind="step", **line)
        records.write_timing(step=state.step, epoch=state.epoch, rows=state.rows, seconds=state.seconds)
        state.losses, state.pending = [], None

    def _read_losses(self) -> None:
        """Read the losses of late; stop the run where one is not finite.

        They are read together, so that a GPU is not waited for at every step; a CPU looks before each update.
        """
        if not self._losses:
            return
        losses = torch.stack(self._losses).float().cpu()
        self._losses = []
        finite = torch.isfinite(losses)
        if not bool(finite.all()):
            steps_ago = len(losses) - 1 - int((~finite).nonzero()[0, 0])
            first = self.state.batch - 1 - steps_ago
            batch = next(self.train.shuffled(seed=self.config.seed, epoch=self.state.epoch, first=first))
            why = "the loss is not finite"
            raise self._diverged(batch, step=self.state.step - steps_ago, why=why)
        self.state.losses += losses.tolist()

    def _diverged(self, batch: Batch, *, step: int, why: str) -> DivergedError:
        """Keep the rows of a batch that cannot be learned from, and say what is known."""
        names = {"dense": self.dense_columns, "fields": self.fields}
        cause = find_cause(self.model, batch, **names)
        file = save_rows(self.run, step, batch, model=self.model, **names)
        return DivergedError(
            f"{why} at step {step} (epoch {self.state.epoch}): {cause}; its rows are in {file}; training has "
            "diverged: lower the learning rates (--learning-rate, --embedding-learning-rate), or look for "
            "extreme dense values (prepare with --dense log or minmax)"
        )

    def _snapshot(self, records: Records) -> RunState:
        """Return the state as it is, to go on from."""
        self._read_losses()
        return replace(
            self.state,
            losses=list(self.state.losses),
            average_steps=0 if self.average is None else self.average.steps,
            learning_rates=[float(group["lr"]) for group in self.optimizer.param_groups],
            schedule=self.schedule.state_dict(),
            records=records.lengths(),
            config=self.config.fixed(),
        )

    def _is_watched(self) -> bool:
        """Whether the tables are measured at this batch: some times an epoch, and near its end."""
        batches = len(self.train)
        every = max(STEPS_PER_LOG, -(-batches // TABLES_PER_EPOCH))
        return self.state.batch % every == 0 or self.state.batch == max(1, batches - 1)

    def _stopped(self) -> StoppedError:
        return StoppedError(f"stopped at step {self.state.step:,} of epoch {self.state.epoch}")

    def _out_of_steps(self) -> bool:
        return self.config.max_steps is not None and self.state.step >= self.config.max_steps


def _as_json(metrics: Metrics | None) -> dict[str, Any] | None:
    if metrics is None:
        return None
    values = asdict(metrics)
    del values["calibration"]
    return values
