"""Runs side by side, where a process fails, dies or never begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from stampede import ConfigError
from stampede.workflows.sweep.devices import slots_of
from stampede.workflows.sweep.pool import Event, Pool, Slot
from stampede.workflows.sweep.worker import Job


def jobs(tmp_path: Path, *names: str) -> dict[str, Job]:
    return {name: Job(str(tmp_path / "none"), str(tmp_path / name), "small", {}) for name in names}


def ends(pool: Pool) -> dict[str, Event]:
    return {event.name: event for event in pool.events() if event.outcome is not None}


def test_what_fails_says_why_and_does_not_stop_the_others(tmp_path: Path) -> None:
    pool = Pool(jobs(tmp_path, "a", "b"), [Slot(), Slot()], log=lambda name: tmp_path / f"{name}.log")

    found = ends(pool)

    assert set(found) == {"a", "b"}
    for name, event in found.items():
        assert event.outcome is not None
        assert event.outcome["status"] == "failed"
        assert str(tmp_path / "none") in event.outcome["reason"]
        assert str(tmp_path / "none") in (tmp_path / f"{name}.log").read_text()


def test_a_process_that_dies_is_told_by_its_exit_code(tmp_path: Path) -> None:
    nowhere = Slot({"PYTHONHOME": str(tmp_path)})  # where Python finds no library of its own

    (event,) = ends(Pool(jobs(tmp_path, "a"), [nowhere], log=lambda name: tmp_path / name)).values()

    assert event.outcome is not None
    assert event.outcome["status"] == "failed"
    assert "exit code 1" in event.outcome["reason"]


def test_the_cores_are_divided_over_the_runs_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(8)))

    together = slots_of("cpu", devices=None, jobs=3, threads=None)
    asked = slots_of("cpu", devices=None, jobs=2, threads=1)

    assert [slot.environment["OMP_NUM_THREADS"] for slot in together] == ["2"] * 3
    assert [slot.environment["NUMBA_NUM_THREADS"] for slot in asked] == ["1", "1"]
    assert slots_of("cpu", devices=None, jobs=None, threads=None) == [Slot({})]


def test_gpus_are_named_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-7")

    every = slots_of("cuda", devices=None, jobs=None, threads=None)
    chosen = slots_of("auto", devices=[2], jobs=2, threads=None)

    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in every] == ["4", "5", "GPU-7"]
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in chosen] == ["GPU-7", "GPU-7"]
    with pytest.raises(ConfigError, match="--devices names GPUs"):
        slots_of("cpu", devices=[0], jobs=None, threads=None)
