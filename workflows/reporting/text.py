"""How numbers are written in a report."""

from __future__ import annotations

UNKNOWN = "–"


def metric(value: float | None, *, digits: int = 4) -> str:
    """Write an AUC or a log loss."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def share(value: float | None) -> str:
    """Write a share as a percentage."""
    if value is None:
        return UNKNOWN
    return "<0.01%" if 0 < value < 1e-4 else f"{100 * value:.2f}%"


def whole(value: float | None) -> str:
    """Write a whole number, thousands apart."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def bounds(lower: int, upper: int | None) -> str:
    """Write a range of counts, short enough for an axis: ``1–3``, ``1K–4K``, ``64K+``; K is 1,024."""
    if upper is None:
        return f"{_short(lower)}+"
    if lower == upper:
        return _short(lower)
    return f"{_short(lower)}–{_short(upper)}"


def _short(count: int) -> str:
    return f"{round(count / 1024):,}K" if count >= 1000 else str(count)
