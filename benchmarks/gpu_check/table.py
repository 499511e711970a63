"""The result as a table for a reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_FIGURES = {
    "samples_per_second": ("{:,.0f}", "rows/s"),
    "auc": ("{:.5f}", "AUC"),
    "true_auc": ("{:.5f}", "at best"),
    "seconds_per_epoch": ("{:.2f}", "s an epoch"),
    "projected_seconds": ("{:.1f}", "s for 10 epochs of Criteo Kaggle"),
    "loss_difference": ("{:.1e}", "loss apart from eager"),
    "auc_difference": ("{:.1e}", "AUC apart"),
    "wall_seconds": ("{:.1f}", "s"),
}


def lines_of(document: dict[str, Any]) -> Iterator[str]:
    """Give the lines: a section, its parts, and what is wrong."""
    for name, section in document["sections"].items():
        told = section["reason"] or _first_line(section["error"]) or ""
        yield f"{name:<12} {section['state']:<8} {section['seconds']:6.1f} s  {told}".rstrip()
        for part, values in section["parts"].items():
            yield f"    {part:<56} {values['state']:<8} {_summary(values)}".rstrip()
            for fault in values["faults"]:
                yield f"        WRONG: {_first_line(fault)}"
            if values.get("error"):
                yield f"        ERROR: {values['error'].splitlines()[-1]}"
    yield f"{'everything':<12} {'ok' if document['ok'] else 'failed':<8} {document['seconds']:6.1f} s"


def _summary(values: dict[str, Any]) -> str:
    words = []
    for mode in ("eager", "graph"):
        if isinstance(values.get(mode), dict):
            figures = values[mode]
            words.append(f"{mode} {figures['samples_per_second']:,.0f} rows/s")
            if "share_of_products" in figures:
                words[-1] += f" ({figures['share_of_products']:.2f} of its products)"
    if isinstance(values.get("test"), dict) and values["test"].get("auc") is not None:
        words.append(f"test AUC {values['test']['auc']:.5f}")
    for row in values.get("kernels", ()):
        if "microseconds" in row:
            words.append(f"{row['name']} {row['microseconds']:,.0f} us")
    for name, (form, unit) in _FIGURES.items():
        if isinstance(values.get(name), int | float):
            words.append(f"{form.format(values[name])} {unit}")
    return ", ".join(words) or str(values.get("gpu") or values.get("reason") or "")


def _first_line(text: str | None) -> str | None:
    return text.splitlines()[0] if text else None
