"""Bodies -> scores, on a thread of its own, in the order in which they came.

Requests that wait together are encoded together, for that takes the time of one; each is then scored by
itself, so that no score depends on what else is asked for: the last digits of a logit may follow the rows
that are multiplied at once.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from stampede.pipeline.encode_rows import Encoded, RowEncoder, RowFault, RowText
from stampede.pipeline.rows import Fault
from stampede.training.batch import Batch, batch_of
from stampede.training.evaluation import EVALUATION_BATCH, logits_of
from stampede.training.metrics import probabilities_of
from stampede.training.models import CTRModel
from stampede.workflows.serve.document import parse_document
from stampede.workflows.serve.refusal import Refusal

ROWS_TOGETHER, REQUESTS_TOGETHER, BYTES_TOGETHER = 4096, 256, 1 << 20
"""Rows, requests or bytes of bodies after which those that were read are answered before others are read."""

UNEXPECTED = (Exception, pl.exceptions.PanicException)


@dataclass(frozen=True)
class Scored:
    """Float64 probabilities of the rows of a request, and whether it is one row that stands by itself."""

    scores: npt.NDArray[np.float64]
    single: bool


@dataclass
class _Job:
    body: bytes | bytearray
    answer: Future[Scored] = field(default_factory=Future)
    texts: list[RowText] = field(default_factory=list)
    single: bool = False


class Scorer:
    """Scores the bodies of requests with one model.

    Parameters
    ----------
    set_up:
        Called on the scoring thread before anything else.
    on_scored:
        Called with the rows and seconds of what was encoded and scored together.
    """

    def __init__(
        self,
        model: CTRModel,
        rows: RowEncoder,
        *,
        device: torch.device,
        max_rows: int,
        set_up: Callable[[], object],
        on_scored: Callable[[int, float], None],
        debug: bool = False,
    ) -> None:
        self._model, self._rows, self._device = model, rows, device
        self._max_rows, self._set_up, self._on_scored, self._debug = max_rows, set_up, on_scored, debug
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._work, name="scorer", daemon=True)

    def start(self) -> None:
        """Start the thread, and score a row, so that everything is compiled and loaded.

        Raises
        ------
        Exception
            What scoring fails with.
        """
        self._thread.start()
        self._ready.result()

    @property
    def alive(self) -> bool:
        """Whether it can score."""
        return self._thread.is_alive()

    def submit(self, body: bytes | bytearray) -> Future[Scored]:
        """Have a body scored; the result, or a :class:`Refusal`, is set by the scoring thread."""
        job = _Job(body)
        self._jobs.put(job)
        return job.answer

    def stop(self, *, seconds: float) -> None:
        """End the thread, after what was submitted before."""
        self._jobs.put(None)
        self._thread.join(seconds)

    def _work(self) -> None:
        try:
            self._set_up()
            self._scores(self._batch(self._rows.encode_texts([("",) * len(self._rows.columns)])))
        except UNEXPECTED as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        going_on = True
        while going_on:
            job = self._jobs.get()
            if job is None:
                return
            together: list[_Job] = []
            rows = size = 0
            while job is not None:
                size += len(job.body)
                if job.answer.set_running_or_notify_cancel() and self._read(job):
                    together.append(job)
                    rows += len(job.texts)
                if rows >= ROWS_TOGETHER or len(together) >= REQUESTS_TOGETHER or size >= BYTES_TOGETHER:
                    break
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                going_on = job is not None
            self._answer(together)
            del together, job

    def _read(self, job: _Job) -> bool:
        """Turn the body of a job into texts; False where it has been refused."""
        try:
            document = parse_document(
                job.body,
                max_rows=self._max_rows,
                columns=len(self._rows.known),
                rows_is_a_column="rows" in self._rows.known,
            )
            job.body, job.single = b"", document.single
            for index, row in enumerate(document.rows):
                try:
                    job.texts.append(self._rows.text_of(row))
                except RowFault as error:
                    raise _refusal(index, error.fault, single=job.single) from None
        except Refusal as error:
            job.answer.set_exception(error)
        except UNEXPECTED as error:
            job.answer.set_exception(self._failure(error))
        return not job.answer.done()

    def _answer(self, jobs: list[_Job]) -> None:
        """Encode the rows of some jobs together, and answer each."""
        if not jobs:
            return
        started = time.perf_counter()
        try:
            encoded = self._rows.encode_texts([text for job in jobs for text in job.texts])
            batch = self._batch(encoded)
        except UNEXPECTED as error:
            if len(jobs) == 1:
                jobs[0].answer.set_exception(self._failure(error))
                return
            for job in jobs:  # the others shall not fail with the one
                self._answer([job])
            return
        first = scored = 0
        for job in jobs:
            scored += self._answer_one(job, first, encoded, batch)
            first += len(job.texts)
        self._on_scored(scored, time.perf_counter() - started)

    def _answer_one(self, job: _Job, first: int, encoded: Encoded, batch: Batch) -> int:
        """Answer a job; return how many rows were scored."""
        for index in range(len(job.texts)) if encoded.faults else ():
            fault = encoded.faults.get(first + index)
            if fault is not None:
                job.answer.set_exception(_refusal(index, fault, single=job.single))
                return 0
        try:
            scores = self._scores(batch[first : first + len(job.texts)])
        except UNEXPECTED as error:
            job.answer.set_exception(self._failure(error))
            return 0
        job.answer.set_result(Scored(scores, job.single))
        return len(scores)

    def _batch(self, encoded: Encoded) -> Batch:
        encoder = self._rows.encoder
        return batch_of(
            encoded.frame, dense_columns=encoder.dense_columns, fields=list(encoder.vocabularies)
        ).to(self._device)

    def _scores(self, batch: Batch) -> npt.NDArray[np.float64]:
        """Score rows as ``stampede predict`` does; float64 [rows].

        Raises
        ------
        ArithmeticError
            The model gives no number.
        """
        scores = [np.empty(0)]
        for logits, _ in logits_of(self._model, batch.split(EVALUATION_BATCH)):
            scores.append(probabilities_of(logits.float().cpu().numpy()))
        joined = np.concatenate(scores)
        if not np.isfinite(joined).all():
            raise ArithmeticError("the model's weights give no number")
        return joined

    def _failure(self, error: BaseException) -> Refusal:
        """Tell the server's owner of an error that is not the client's, and the client no more than that."""
        if self._debug:
            traceback.print_exception(error)
        reason = (str(error).strip().splitlines() or [""])[0]
        print(f"stampede: a request failed: {type(error).__name__}: {reason}", file=sys.stderr)
        return Refusal(500, "the server could not score this; its log says why")


def _refusal(index: int, fault: Fault, *, single: bool) -> Refusal:
    place = "" if single else f"row {index}"
    if fault.column is not None:
        place += f", column {fault.column}" if place else f"column {fault.column}"
    return Refusal(422, f"{place}: {fault.reason}" if place else fault.reason)
