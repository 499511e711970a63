"""One self-contained HTML page of charts, tables and key figures, for a report or a comparison.

The file needs nothing beside it and asks the network for nothing: plotly.js is in it, once.
"""

from __future__ import annotations

from stampede.workflows.page.blocks import Block, Chart, Choice, Facts, Note, Page, Section, Table
from stampede.workflows.page.figures import (
    INK,
    MUTED,
    SERIES,
    SURFACE,
    color,
    names_on_y,
    new_figure,
    sequential,
)
from stampede.workflows.page.render import render, write

__all__ = [
    "INK",
    "MUTED",
    "SERIES",
    "SURFACE",
    "Block",
    "Chart",
    "Choice",
    "Facts",
    "Note",
    "Page",
    "Section",
    "Table",
    "color",
    "names_on_y",
    "new_figure",
    "render",
    "sequential",
    "write",
]
