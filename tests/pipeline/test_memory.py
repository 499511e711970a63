"""The budget of memory: it changes how a dataset is made, not what it holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pipeline.logs import EVERY_ROW, SMALL, assert_same_dataset, memory_folder, write

from stampede import ConfigError
from stampede.pipeline import PrepareOptions, memory, plan, prepare
from stampede.pipeline.vocabulary import count_plan


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(0, 1), st.text("abcé ", max_size=3), st.integers(0, 40)), min_size=12),
    st.sampled_from([100, 700, 3000]),
    st.sampled_from([0, 4]),
    st.sampled_from([1, 2]),
)
def test_a_dataset_does_not_depend_on_the_memory(
    rows: Any, working: int, buckets: int, min_count: int
) -> None:
    lines = [f"{y}\t1\t2\t{a}\tb{b}" for y, a, b in rows]
    chosen = PrepareOptions(
        min_count=min_count,
        hash_buckets=buckets,
        crosses=(("a", "b"),),
        count_features=True,
        target_encode=("b",),
        split=EVERY_ROW,
    )
    with memory_folder() as folder, pytest.MonkeyPatch.context() as patch:
        log = write(folder / "log.txt", lines)
        plenty = prepare(SMALL, [log], folder / "plenty", options=chosen)
        patch.setattr(plan, "working_memory", lambda limit: working)
        little = prepare(SMALL, [log], folder / "little", options=chosen)
        assert_same_dataset(plenty, little)


def test_large_fields_are_counted_and_looked_up_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[tuple[int, int]] = []

    def counting(rows: Any, value: Any, *, part: int = 0, parts: int = 1) -> Any:
        counted.append((part, parts))
        return count_plan(rows, value, part=part, parts=parts)

    monkeypatch.setattr("stampede.pipeline.fit.count_plan", counting)
    monkeypatch.setattr(plan, "working_memory", lambda limit: 100_000)
    log = write(tmp_path / "log.txt", [f"{i % 2}\t1\t2\ta{i % 3}\tb{i}" for i in range(3000)])
    stages: list[str] = []

    class Stages:
        def start(self, stage: str, total: int | None) -> None:
            stages.append(stage)

        def advance(self, rows: int) -> None:
            pass

    prepare(SMALL, [log], tmp_path / "out", options=PrepareOptions(min_count=1), progress=Stages())
    assert (0, 1) in counted  # a has three values
    assert {parts for _, parts in counted} > {1}
    assert stages == ["read", "fit", "encode b", "encode"]


@pytest.mark.parametrize(
    ("text", "expected"), [("1GB", 10**9), ("500MB", 5 * 10**8), ("1.5GiB", 3 << 29), ("2gb", 2 * 10**9)]
)
def test_a_size_is_read_as_people_write_it(text: str, expected: int) -> None:
    assert memory.parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "much", "-1GB", "1 XB"])
def test_what_is_no_size_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match="it must be a size such as 4GB"):
        memory.parse_bytes(text)


def test_too_little_is_a_config_error_that_says_how_much_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"--memory-limit 100MB: give \d+MB or more"):
        memory.working_memory(100_000_000)
    assert memory.working_memory(64 << 30) < 64 << 30


def test_polars_reads_little_ahead_while_a_dataset_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(memory.PREFETCH_VARIABLE, raising=False)
    with memory.reading_little_ahead():
        assert os.environ[memory.PREFETCH_VARIABLE] == "2"
    assert memory.PREFETCH_VARIABLE not in os.environ
    monkeypatch.setenv(memory.PREFETCH_VARIABLE, "5")
    with memory.reading_little_ahead():
        assert os.environ[memory.PREFETCH_VARIABLE] == "5"
    assert os.environ[memory.PREFETCH_VARIABLE] == "5"
