"""What a page is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Chart:
    """A chart and what it says.

    Attributes
    ----------
    title:
        Heading above it; the figure itself needs none.
    figure:
        A plotly figure, best begun with :func:`stampede.workflows.page.new_figure`. Its template is replaced
        by the page's, and colours such as ``var(--series-1)`` follow the theme.
    caption:
        One or two plain sentences: what is seen, and how to read it. It is the text for who cannot see it.
    height:
        In pixels.
    wide:
        Whether it takes the whole width of the page, where two charts stand beside each other otherwise.
    """

    title: str
    figure: go.Figure
    caption: str
    height: int = 320
    wide: bool = False


@dataclass(frozen=True)
class Choice:
    """One of several charts, chosen by the reader from a list.

    Attributes
    ----------
    title:
        Heading above it, in place of the charts' own.
    label:
        What is chosen, such as ``Field``.
    charts:
        They are listed by their titles; the first one is shown at the beginning. All have one height.
    """

    title: str
    label: str
    charts: Sequence[Chart]
    wide: bool = False


@dataclass(frozen=True)
class Table:
    """A table; the first column stands to the left and names the row, numbers stand to the right.

    Attributes
    ----------
    marked:
        Indices of rows to be set off.
    title:
        Heading above it.
    folded:
        Whether only the title is shown until the reader opens it.
    wide:
        Whether it takes the whole width of the page.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    marked: Sequence[int] = ()
    title: str = ""
    folded: bool = False
    wide: bool = True


@dataclass(frozen=True)
class Facts:
    """Key figures as tiles: (label, value) or (label, value, remark)."""

    pairs: Sequence[tuple[str, str] | tuple[str, str, str]]


@dataclass(frozen=True)
class Note:
    """A line that is set off: what is missing and why."""

    text: str


Block: TypeAlias = Chart | Choice | Table | Facts | Note


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading; empty lines divide the text into paragraphs."""

    title: str
    text: str = ""
    blocks: Sequence[Block] = ()


@dataclass(frozen=True)
class Page:
    """A page; the first section stands under the title without a heading of its own where it has none."""

    title: str
    subtitle: str
    sections: Sequence[Section]
