"""clip_rows gives the numbers of the reference program."""

from typing import Any

import pytest
import torch

from stampede.kernels import clip_rows, count_rows

KINDS = ["zipf", "mono", "underflow", "overflow"]


@pytest.fixture(scope="module")
def golden(load_golden: Any) -> Any:
    return load_golden("clip_cases")


def compare(golden: Any, kind: str, suffix: str, dtype: torch.dtype) -> int:
    tolerance = golden.facts["tolerance"][f"{suffix} dense path"]
    compared = 0
    for group in golden.facts["groups"]:
        if group["kind"] != kind:
            continue
        name = group["group"]
        counts = count_rows(golden.tensor(f"{name}_ids"), group["rows"])
        assert torch.equal(counts, golden.tensor(f"{name}_counts"))
        for case in group["cases"]:
            clipped, _ = clip_rows(
                golden.tensor(f"{name}_grad", dtype=dtype),
                golden.tensor(f"{name}_w", dtype=dtype),
                counts=counts,
                ratio=case["r"],
                zeta=case["zeta"],
            )
            expected = golden.tensor(f"{case['prefix']}_out_{suffix}")
            torch.testing.assert_close(clipped, expected, **tolerance, msg=f"{case['prefix']} differs")
            compared += 1
    return compared


@pytest.mark.parametrize("kind", KINDS)
def test_the_clipped_gradient_is_the_references_in_float64(golden: Any, kind: str) -> None:
    assert compare(golden, kind, "f64", torch.float64) >= 9


@pytest.mark.parametrize("kind", ["zipf", "mono"])
def test_the_clipped_gradient_is_the_references_in_float32(golden: Any, kind: str) -> None:
    assert compare(golden, kind, "f32", torch.float32) >= 18
