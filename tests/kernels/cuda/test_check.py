"""The check that runs on GPUs, run on the CPU for its own sake; only graphs and clocks are stood in for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stampede import DeviceError
from stampede.kernels.cuda import check as check_module
from stampede.kernels.cuda.cases import Case, Shape
from stampede.kernels.cuda.check import check_on_device
from stampede.kernels.cuda.update import update_table

SHAPES = (Shape(700, (30, 2, 500), 10, hot=0.7), Shape(3, (4,), 33))


@pytest.fixture
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "_captured", lambda run: run)
    monkeypatch.setattr(check_module, "_microseconds", lambda replay: 2.0)


@pytest.mark.usefixtures("on_cpu", "_no_clock")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernels_pass_on_the_cpu(shape: Shape) -> None:
    case = Case(shape, torch.device("cpu"))
    rows = [check_module._row(check, shape, 10.0) for check in check_module._cuda_c_checks(case)]
    assert [row["faults"] for row in rows] == [[]] * 7
    assert all(row["ok"] and row["max_rel_error"] < 1e-5 for row in rows)
    assert rows[0]["name"] == "gather"
    assert rows[0]["gb_per_second"] == rows[0]["share_of_copy"] * 10.0 > 0


@pytest.mark.usefixtures("on_cpu", "_no_clock")
def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    update = update_table

    def wrong(weights: Tensor, *arguments: object, **options: object) -> Tensor:
        clipped: Tensor = update(weights, *arguments, **options)  # type: ignore[arg-type]
        weights[-1] += 1e-3
        return clipped

    monkeypatch.setattr(check_module, "update_table", wrong)
    monkeypatch.setattr(wrong, "__name__", "update_table")
    rows = [
        check_module._row(check, SHAPES[0], 10.0)
        for check in check_module._cuda_c_checks(Case(SHAPES[0], torch.device("cpu")))
    ]
    assert {row["name"] for row in rows if not row["ok"]} == {
        "update_table, clip",
        "update_table, no clip",
    }


def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(DeviceError, match="cpu is no GPU"):
        check_on_device("cpu")
