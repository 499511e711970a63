"""Days of a world that drifts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from stampede import ConfigError
from stampede.pipeline.synth import synthesise, true_logits
from stampede.pipeline.synth.drift import Day

ROWS = 20_000


def day_of(
    folder: Path, number: int, *, drift: float, rows: int = ROWS, seed: int = 0, block: int = 16_384
) -> bytes:
    out = folder / "log.tsv"
    synthesise("criteo", out, rows=rows, seed=seed, day=Day(number, drift), block_rows=block)
    return out.read_bytes()


def columns(raw: bytes) -> list[tuple[str, ...]]:
    return list(zip(*(line.split("\t") for line in raw.decode().splitlines()), strict=True))


def test_without_drift_the_days_are_one_file_cut_in_pieces(tmp_path: Path) -> None:
    days = [day_of(tmp_path, number, drift=0, rows=700) for number in (1, 2, 3)]
    synthesise("criteo", tmp_path / "log.tsv", rows=2100)
    assert b"".join(days) == (tmp_path / "log.tsv").read_bytes()


def test_the_first_day_is_the_same_whatever_the_drift(tmp_path: Path) -> None:
    assert day_of(tmp_path, 1, drift=5, rows=500) == day_of(tmp_path, 1, drift=0, rows=500)


def test_a_day_is_the_same_alone_and_in_any_blocks(tmp_path: Path) -> None:
    alone = day_of(tmp_path, 4, drift=1, rows=3000)
    for number in (1, 2, 3, 5, 6):
        day_of(tmp_path, number, drift=1, rows=10)
    assert day_of(tmp_path, 4, drift=1, rows=3000, block=177) == alone
    assert day_of(tmp_path, 4, drift=1, rows=3000, seed=1) != alone


def test_age_is_drift_times_days(tmp_path: Path) -> None:
    one, other = (columns(day_of(tmp_path, number, drift=drift)) for number, drift in ((5, 1.0), (3, 2.0)))
    # other rows of the same world: the frequent values are the same
    for column in (16, 20, 23, 37):
        top = [{value for value, _ in Counter(rows[column]).most_common(30)} for rows in (one, other)]
        assert len(top[0] & top[1]) >= 24


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[tuple[str, ...]]]:
    folder = tmp_path_factory.mktemp("days")
    return {number: columns(day_of(folder, number, drift=1)) for number in (1, 2, 8)}


def share_of_known(days: dict[int, list[tuple[str, ...]]], number: int, column: int) -> float:
    known = set(days[1][column])
    return sum(value in known for value in days[number][column]) / ROWS


def test_new_values_enter_day_by_day_where_there_are_many(days: dict[int, list[tuple[str, ...]]]) -> None:
    for column in (20, 23, 28):  # C7, C10, C15
        assert share_of_known(days, 2, column) > share_of_known(days, 8, column) + 0.08
    for column in (19, 22, 27):  # C6, C9, C14: 24, 3 and 27 values
        assert set(days[8][column]) <= set(days[1][column]) | set(days[2][column])


def test_popularity_drifts(days: dict[int, list[tuple[str, ...]]]) -> None:
    def shares(number: int) -> np.ndarray:
        counts = Counter(days[number][27])
        return np.array([counts[value] / ROWS for value, _ in Counter(days[1][27]).most_common(15)])

    assert float(np.abs(shares(2) - shares(1)).sum()) < 0.04
    assert float(np.abs(shares(8) - shares(1)).sum()) > 0.08


def test_rows_stay_criteos(days: dict[int, list[tuple[str, ...]]]) -> None:
    for rows in days.values():
        assert len(rows) == 40
        labels = Counter(rows[0])
        assert set(labels) == {"0", "1"}
        assert labels["1"] / ROWS == pytest.approx(0.2562, abs=0.05)
    empty = [[sum(value == "" for value in column) / ROWS for column in rows] for rows in days.values()]
    assert np.allclose(empty[0], empty[2], atol=0.02)


SMALL_FIELDS = {"C5": 18, "C6": 19, "C8": 21, "C14": 27, "C17": 30, "C20": 33, "C23": 36, "C25": 38}


def test_what_was_true_on_the_first_day_is_less_so_later(days: dict[int, list[tuple[str, ...]]]) -> None:
    """Click rates of the values of small fields as day 1 has them rank the rows of later days worse."""

    def log_odds(number: int, column: int) -> dict[str, float]:
        clicks: Counter[str] = Counter()
        rows: Counter[str] = Counter()
        for label, value in zip(days[number][0], days[number][column], strict=True):
            rows[value] += 1
            clicks[value] += int(label)
        return {v: float(np.log((clicks[v] + 10) / (rows[v] - clicks[v] + 30))) for v in rows}

    def area(number: int, of: int) -> float:
        scores = np.zeros(ROWS)
        for column in SMALL_FIELDS.values():
            known = log_odds(of, column)
            scores += [known.get(value, float(np.log(1 / 3))) for value in days[number][column]]
        return float(roc_auc_score([int(label) for label in days[number][0]], scores))

    assert area(2, of=1) > area(8, of=1) + 0.02
    assert area(8, of=8) > area(8, of=1) + 0.04


def test_the_truth_stays_as_good(days: dict[int, list[tuple[str, ...]]]) -> None:
    for number in (1, 8):
        labels = [int(label) for label in days[number][0]]
        bayes = roc_auc_score(labels, true_logits("criteo", rows=ROWS, day=Day(number, 1.0)))
        assert bayes == pytest.approx(0.80, abs=0.025)


@pytest.mark.parametrize(
    ("number", "drift", "message"),
    [
        (0, 1.0, "days are numbered from 1"),
        (2, -0.1, "--drift -0.1: it must be"),
        (1, float("nan"), "--drift nan"),
    ],
)
def test_days_that_cannot_be(number: int, drift: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Day(number, drift)


def test_avazu_has_no_days(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="days that drift are of criteo"):
        synthesise("avazu", tmp_path / "log.csv", rows=10, day=Day(2, 1.0))
