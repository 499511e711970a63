"""What is read of a run's own records, whole or not."""

from __future__ import annotations

import json
from pathlib import Path

from tests.workflows.run_records import tables_line, write_lines

from stampede.workflows.reporting.history import History

STEP = {
    "kind": "step",
    "step": 50,
    "epoch": 1,
    "cross_entropy": 0.5,
    "regulariser": 0.1,
    "clipped_share": None,
    "learning_rates": {"dense": 1e-3},
}
EPOCH = {
    "kind": "epoch",
    "step": 60,
    "epoch": 1,
    "valid": {"auc": 0.7, "logloss": 0.5, "rows": 9},
    "best": True,
}


def test_a_run_without_records_has_an_empty_history(tmp_path: Path) -> None:
    history = History.read(tmp_path)

    assert (history.steps, history.result, history.notes) == ((), None, ())
    assert (history.last_step, history.last_epoch) == (0, 0)
    assert history.rows_per_second is None


def test_a_line_that_is_cut_off_at_the_end_is_left_out_with_a_note(tmp_path: Path) -> None:
    whole = json.dumps(STEP) + "\n" + json.dumps(EPOCH) + "\n"
    (tmp_path / "metrics.jsonl").write_text(whole + '{"kind": "step", "step": 100, "cross_en', "utf-8")

    history = History.read(tmp_path)

    assert [record.step for record in history.steps] == [50]
    assert history.notes == ("metrics.jsonl, line 3 is cut off and was left out.",)


def test_a_damaged_line_and_one_without_its_keys_are_noted_and_the_rest_is_read(tmp_path: Path) -> None:
    lines = [
        b"\xff\xfe{",
        b'{"kind": "step", "step": 5}',
        json.dumps(STEP).encode(),
        b"",
        b"[1]",
        b"3",
        b"{}",
    ]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))

    history = History.read(tmp_path)

    assert [record.step for record in history.steps] == [50]
    assert [note.split(" is ")[0] for note in history.notes] == [
        "metrics.jsonl, line 1", "metrics.jsonl, line 5", "metrics.jsonl, line 6", "metrics.jsonl, line 2",
    ]  # fmt: skip


def test_of_a_step_that_was_trained_twice_the_later_line_counts(tmp_path: Path) -> None:
    again = {**STEP, "cross_entropy": 0.25}
    write_lines(tmp_path / "metrics.jsonl", [STEP, {**STEP, "step": 100}, again])

    history = History.read(tmp_path)

    assert [(record.step, record.cross_entropy) for record in history.steps] == [(50, 0.25), (100, 0.5)]


def test_every_batch_that_was_left_out_counts_also_at_one_step(tmp_path: Path) -> None:
    skip = {"kind": "skip", "step": 7, "epoch": 1, "reason": "not finite"}
    write_lines(tmp_path / "metrics.jsonl", [skip, skip])

    assert len(History.read(tmp_path).skips) == 2


def test_kinds_and_keys_that_it_does_not_know_are_passed_over(tmp_path: Path) -> None:
    write_lines(tmp_path / "metrics.jsonl", [{**STEP, "new": 1}, {"kind": "later", "step": 1}])

    history = History.read(tmp_path)

    assert len(history.steps) == 1
    assert history.notes == ()


def test_tables_bins_and_timings(tmp_path: Path) -> None:
    write_lines(tmp_path / "metrics.jsonl", [tables_line(50, 1, ["C1", "C2"]), EPOCH])
    write_lines(tmp_path / "timings.jsonl", [{"step": 50, "epoch": 1, "rows": 51200, "seconds": 2.0}])

    history = History.read(tmp_path)

    (tables,) = history.tables
    assert list(tables.fields) == ["C1", "C2"]
    assert tables.frequency is not None
    assert [(part.lower, part.upper) for part in tables.frequency][:2] == [(1, 3), (4, 15)]
    assert tables.frequency[-1].upper is None
    assert history.rows_per_second == 25600
    assert history.best_epoch is not None
    assert history.best_epoch.epoch == 1
