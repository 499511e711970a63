"""A page as HTML, and into a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import jinja2
from markupsafe import Markup

from stampede import __version__
from stampede.workflows.files import working_folder
from stampede.workflows.page.blocks import Block, Chart, Page


@dataclass(frozen=True)
class _Drawing:
    """A chart as the template sees it: the figure is JSON that may stand in a script element."""

    id: str
    title: str
    caption: str
    height: int
    figure: Markup


def render(page: Page) -> str:
    """Return the page as one HTML document that needs nothing beside it."""
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = count(1)
    environment.filters["drawing"] = lambda chart: _drawing(chart, next(numbers))
    environment.filters["kind"] = lambda block: type(block).__name__
    has_charts = any(True for block in _blocks(page) if isinstance(block, Chart) or hasattr(block, "charts"))
    return environment.get_template("page.html").render(
        page=page,
        plotly=Markup(get_plotlyjs()) if has_charts else "",
        version=__version__,
    )


def write(page: Page, path: Path) -> None:
    """Write a page; it appears whole or not at all, and replaces a file that is there.

    Raises
    ------
    StampedeError
        The place cannot be written, or its disk is full.
    """
    document = render(page)
    with working_folder(path) as folder:
        file = folder / "page.html"
        file.write_text(document, "utf-8")
        file.replace(path)


def _blocks(page: Page) -> Iterator[Block]:
    for section in page.sections:
        yield from section.blocks


def _drawing(chart: Chart, number: int) -> _Drawing:
    document = json.loads(chart.figure.to_json())
    document["layout"].pop("template", None)
    document["layout"].pop("title", None)
    # "<" would let a text in the figure end the script element
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return _Drawing(f"chart-{number}", chart.title, chart.caption, chart.height, Markup(text))
