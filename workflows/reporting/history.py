"""What a run wrote while it trained: ``metrics.jsonl`` and ``timings.jsonl``.

A line that is damaged, such as the last one of a run that was killed, is left out with a note. Where a step
or an epoch was written twice, the later line counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stampede import CheckpointError
from stampede.training.records import METRICS, TIMINGS


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Record(_Part):
    """What every line has: the step it is of, and its epoch."""

    step: int
    epoch: int


class StepRecord(_Record):
    """Steps since the last record: mean cross-entropy; regulariser, clipped share and rates at their end.

    ``clipped_share`` is of all rows of the tables that are clipped; None where nothing is.
    """

    cross_entropy: float | None
    regulariser: float | None = None
    clipped_share: float | None = None
    learning_rates: dict[str, float] = {}


class FieldNorms(_Part):
    """The rows of a field's table that a batch had, and how many of them were clipped.

    ``gradient_norm`` is of those rows, L2 included, before the clip; ``weight_norm`` of the whole table.
    """

    gradient_norm: float
    weight_norm: float
    rows: int
    clipped: int | None = None


class FrequencyBin(_Part):
    """The rows of a batch whose id occurs so often in the training split.

    ``upper`` is included and None for no bound; ``mean_factor`` is the mean of min(1, threshold / norm).
    """

    lower: int = Field(alias="from")
    upper: int | None = Field(alias="to")
    rows: int
    clipped: int
    mean_factor: float | None


class DenseNorms(_Part):
    """Norms of all dense weights together and of their gradient."""

    gradient_norm: float
    weight_norm: float


class TablesRecord(_Record):
    """The tables at one step, over the rows of its batch."""

    fields: dict[str, FieldNorms]
    frequency: tuple[FrequencyBin, ...] | None = None
    dense: DenseNorms | None = None


class SplitMetrics(_Part):
    """What an evaluation came to; what is undefined is None."""

    auc: float | None = None
    logloss: float | None = None
    rows: int | None = None
    click_rate: float | None = None
    mean_score: float | None = None


class EpochRecord(_Record):
    """The end of an epoch: its metrics on the valid split, and whether it was the best so far."""

    valid: SplitMetrics | None = None
    best: bool


class ResultRecord(_Record):
    """The end of a run; ``epoch`` is the best one, which the metrics are of."""

    valid: SplitMetrics | None = None
    test: SplitMetrics | None = None


class SkipRecord(_Record):
    """A batch that was left out."""

    reason: str = ""


class TimingRecord(_Record):
    """Rows trained and seconds of training since the run began, at a step."""

    rows: int
    seconds: float


@dataclass(frozen=True)
class History:
    """What is known of a run, each kind of record in the order of steps.

    ``notes`` says which lines or files could not be read.
    """

    steps: tuple[StepRecord, ...]
    tables: tuple[TablesRecord, ...]
    epochs: tuple[EpochRecord, ...]
    skips: tuple[SkipRecord, ...]
    timings: tuple[TimingRecord, ...]
    result: ResultRecord | None
    notes: tuple[str, ...]

    @classmethod
    def read(cls, run: Path) -> History:
        """Read what a run wrote; files that are not there count as empty.

        Raises
        ------
        CheckpointError
            A file cannot be read.
        """
        notes: list[str] = []
        kinds: dict[str, _Kept[Any]] = {
            "step": _Kept(StepRecord),
            "tables": _Kept(TablesRecord),
            "epoch": _Kept(EpochRecord, by="epoch"),
            "skip": _Kept(SkipRecord, by="line"),
            "result": _Kept(ResultRecord),
        }
        for number, document in _documents(run / METRICS, notes):
            kind = kinds.get(str(document.get("kind")))
            if kind is not None and not kind.take(number, document):
                notes.append(f"{METRICS}, line {number} is no whole record and was left out.")
        timings = _Kept(TimingRecord)
        for number, document in _documents(run / TIMINGS, notes):
            if not timings.take(number, document):
                notes.append(f"{TIMINGS}, line {number} is no whole record and was left out.")
        results = kinds["result"].in_order()
        return cls(
            steps=kinds["step"].in_order(),
            tables=kinds["tables"].in_order(),
            epochs=kinds["epoch"].in_order(),
            skips=kinds["skip"].in_order(),
            timings=timings.in_order(),
            result=results[-1] if results else None,
            notes=tuple(notes),
        )

    @property
    def last_step(self) -> int:
        """The last step that was written; 0 where none was."""
        return max((record.step for record in (*self.steps, *self.epochs, *self.tables)), default=0)

    @property
    def last_epoch(self) -> int:
        """The last epoch that had begun when a record was written; 0 where none was."""
        return max((record.epoch for record in (*self.steps, *self.epochs)), default=0)

    @property
    def best_epoch(self) -> EpochRecord | None:
        """The best of the epochs that ended."""
        best = [record for record in self.epochs if record.best]
        return best[-1] if best else None

    @property
    def rows_per_second(self) -> float | None:
        """Rows trained a second over the whole run; None where no time was written."""
        last = self.timings[-1] if self.timings else None
        return last.rows / last.seconds if last is not None and last.seconds > 0 else None


RecordT = TypeVar("RecordT", bound=_Record)


class _Kept(Generic[RecordT]):
    """The records of one kind: the last one of each step or epoch, or all lines."""

    def __init__(self, model: type[RecordT], *, by: Literal["step", "epoch", "line"] = "step") -> None:
        self._model = model
        self._by = by
        self._records: dict[int, RecordT] = {}

    def take(self, line: int, document: Mapping[str, Any]) -> bool:
        """Keep a record; return whether it was one."""
        try:
            record = self._model.model_validate(document)
        except ValidationError:
            return False
        key = {"step": record.step, "epoch": record.epoch, "line": line}[self._by]
        self._records[key] = record
        return True

    def in_order(self) -> tuple[RecordT, ...]:
        """Return the records by step."""
        return tuple(sorted(self._records.values(), key=lambda record: record.step))


def _documents(file: Path, notes: list[str]) -> list[tuple[int, dict[str, Any]]]:
    """Return the JSON objects of a file with their line numbers; what is no object is noted."""
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror}") from error
    documents: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except ValueError:
            document = None
        if isinstance(document, dict):
            documents.append((number, document))
        else:
            cut = "cut off" if number == len(lines) else "damaged"
            notes.append(f"{file.name}, line {number} is {cut} and was left out.")
    return documents
