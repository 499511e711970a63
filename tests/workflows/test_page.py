"""Pages: one file that is complete, whatever texts it is given."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from stampede import StampedeError
from stampede.workflows.page import (
    SERIES,
    Block,
    Chart,
    Choice,
    Facts,
    Note,
    Page,
    Section,
    Table,
    new_figure,
    render,
    write,
)

HOSTILE = '</script><script>alert("x")</script>'


def chart(title: str = "Loss", *, name: str = "a line") -> Chart:
    figure = new_figure(x="step", y="loss")
    figure.add_scatter(x=[1, 2], y=[0.5, 0.25], name=name, line={"color": SERIES[1]})
    return Chart(title, figure, "It falls.")


def page(*blocks: Block) -> Page:
    return Page("A run", "on some data", [Section("Training", "One.\n\nTwo.", blocks)])


def figures(document: str) -> list[dict[str, dict[str, object]]]:
    found = re.findall(
        r'<script type="application/json" id="chart-\d+-figure">(.*?)</script>', document, re.S
    )
    return [json.loads(text) for text in found]


def without_plotly(document: str) -> str:
    return re.sub(r"<script>/\*\*.*?</script>", "", document, flags=re.S)


def test_plotly_is_in_it_once_and_not_at_all_where_there_is_no_chart() -> None:
    with_charts = render(page(chart(), chart(), Choice("Both", "Which", [chart(), chart()])))
    without = render(page(Note("nothing to draw")))

    assert with_charts.count("plotly.js v") == 1
    assert "plotly.js v" not in without
    assert len(without) < 30_000


def test_it_names_no_other_file_and_no_address() -> None:
    document = without_plotly(render(page(chart(), Table(["a"], [["b"]]))))

    assert "default-src 'none'" in document  # a browser refuses what was overlooked
    assert not re.search(r"https?://", document)
    assert not re.search(r"<(script|img|iframe)[^>]* src=|@import|url\(", document)


def test_texts_stand_as_they_are_and_are_never_markup() -> None:
    blocks: list[Block] = [
        chart(HOSTILE, name=HOSTILE),
        Choice(HOSTILE, HOSTILE, [chart(HOSTILE)]),
        Table([HOSTILE], [[HOSTILE]], caption=HOSTILE, title=HOSTILE),
        Facts([(HOSTILE, HOSTILE, HOSTILE)]),
        Note(HOSTILE),
    ]

    document = render(Page(HOSTILE, HOSTILE, [Section(HOSTILE, HOSTILE, blocks)]))

    assert "<script>alert" not in document
    assert figures(document)[0]["data"][0]["name"] == HOSTILE  # type: ignore[index]


def test_colours_are_names_that_the_theme_resolves() -> None:
    document = render(page(chart()))

    (figure,) = figures(document)
    assert figure["data"][0]["line"] == {"color": "var(--series-2)"}  # type: ignore[index]
    assert "template" not in figure["layout"]
    assert document.count("--series-2: #") >= 4  # light, dark by the system, both by the button, print


def test_every_chart_has_a_text_for_who_cannot_see_it() -> None:
    document = render(page(chart("Loss")))

    assert 'role="img" aria-label="Loss. It falls."' in document
    assert "<figcaption>It falls.</figcaption>" in document


def test_sections_have_anchors_where_there_are_several() -> None:
    sections = [Section("", "", [Note("head")]), Section("One"), Section("Two")]

    document = render(Page("A run", "", sections))

    assert '<a href="#section-1">One</a>' in document
    assert '<section id="section-2" aria-labelledby="title-2">' in document


def test_values_without_a_number_are_gaps() -> None:
    figure = new_figure(x="step", y="loss")
    figure.add_scatter(x=[1, 2], y=[float("nan"), float("inf")])

    (drawn,) = figures(render(page(Chart("Loss", figure, "Gaps."))))

    assert drawn["data"][0]["y"] == [None, None]  # type: ignore[index]


class TestWrite:
    def test_it_replaces_a_file_whole_and_leaves_nothing_beside_it(self, tmp_path: Path) -> None:
        out = tmp_path / "new" / "page.html"
        write(page(Note("first")), out)

        write(page(Note("second")), out)

        assert "second" in out.read_text("utf-8")
        assert [file.name for file in out.parent.iterdir()] == ["page.html"]

    def test_a_place_that_cannot_be_written_is_named_in_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("no folder")

        with pytest.raises(StampedeError, match=r"cannot write .*page\.html: ") as raised:
            write(page(Note("text")), tmp_path / "file" / "page.html")

        assert "\n" not in str(raised.value)
