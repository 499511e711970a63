"""The page of a study: what it shows, and that a browser draws it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stampede.training.scaling import Rule
from stampede.workflows.page import Chart, Page, render
from stampede.workflows.sweep.grid import Point, Series
from stampede.workflows.sweep.output import write_outputs
from stampede.workflows.sweep.page import study_page
from stampede.workflows.sweep.study import Study
from stampede.workflows.sweep.table import tabulate

COWCLIP = Series("deepfm", Rule.COWCLIP, "cowclip")
LINEAR = Series("deepfm", Rule.LINEAR, "none")

STEP = {"kind": "step", "step": 5, "epoch": 1, "clipped_share": 0.02}
TABLES = {
    "kind": "tables",
    "step": 5,
    "epoch": 1,
    "frequency": [
        {"from": 1, "to": 3, "rows": 90, "clipped": 9, "mean_factor": 0.9},
        {"from": 4, "to": None, "rows": 10, "clipped": 1, "mean_factor": 1.0},
    ],
}


@pytest.fixture
def study(begin_study: Callable[..., Study], write_run: Callable[..., None]) -> Study:
    study = begin_study(batch_sizes="1024,2048,8192")
    for seed in (0, 1):
        for size, auc in ((1024, 0.70), (2048, 0.71), (8192, 0.709)):
            auc += seed / 1000
            point, records = Point(COWCLIP, size, seed), [STEP, TABLES]
            write_run(study, point, aucs=[auc], test=auc, seconds=size / 100, records=records)
        write_run(study, Point(LINEAR, 1024, seed), aucs=[0.7], test=0.7)
        write_run(study, Point(LINEAR, 2048, seed), aucs=[0.5], test=0.5)
        write_run(study, Point(LINEAR, 8192, seed), status="diverged", reason="not finite")
    return study


def chart(page: Page, title: str) -> Chart:
    blocks = [block for section in page.sections for block in section.blocks]
    (found,) = [block for block in blocks if isinstance(block, Chart) and block.title == title]
    return found


def test_a_line_for_each_rule_over_batch_sizes_on_a_log_scale(study: Study) -> None:
    figure = chart(study_page(tabulate(study)), "AUC by batch size").figure

    cowclip = figure.data[0]
    assert figure.layout.xaxis.type == "log"
    assert cowclip.name == "cowclip"
    assert list(cowclip.x) == [1024, 2048, 8192]
    assert list(cowclip.y) == pytest.approx([0.7005, 0.7105, 0.7095])
    assert list(cowclip.error_y.array) == pytest.approx([0.001 / 2**0.5] * 3)


def test_what_is_far_worse_stands_at_the_edge_and_what_diverged_is_crossed(study: Study) -> None:
    drawn = chart(study_page(tabulate(study)), "AUC by batch size")

    linear, lost = drawn.figure.data[1], drawn.figure.data[2]
    assert list(linear.y) == pytest.approx([0.70, 0.70 - 0.03])
    assert list(linear.marker.symbol) == ["circle", "triangle-down"]
    assert "AUC 0.50000" in linear.customdata[1]
    assert list(lost.x) == [8192]
    assert "2 of 2 seeds diverged" in lost.customdata[0]
    assert "Triangles" in drawn.caption
    assert "diverged" in drawn.caption


def test_differences_time_and_clipping(study: Study) -> None:
    page = study_page(tabulate(study))

    differences = chart(page, "AUC against batch 1,024").figure.data[0]
    assert list(differences.y) == pytest.approx([0.01, 0.009])
    assert list(chart(page, "Time to the target AUC").figure.data[0].y) == pytest.approx(
        [10.24, 20.48, 81.92]
    )
    assert list(chart(page, "How much is clipped").figure.data[0].y) == pytest.approx([2.0] * 3)
    frequency = chart(page, "What is clipped, by frequency").figure
    assert [line.name for line in frequency.data] == ["1,024", "2,048", "8,192"]
    assert list(frequency.data[0].x) == ["1-3", "4+"]
    assert list(frequency.data[0].y) == pytest.approx([10.0, 10.0])


def test_an_empty_study_has_a_page(begin_study: Callable[..., Study]) -> None:
    assert "not trained yet" in render(study_page(tabulate(begin_study())))


def test_a_browser_draws_it_without_errors(study: Study) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    browser_path = (
        shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    )
    if browser_path is None:
        pytest.skip("there is no Chromium")
    write_outputs(tabulate(study))
    errors: list[str] = []

    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for width, scheme in ((1200, "light"), (390, "dark")):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
            page.on(
                "request", lambda request: errors.append(request.url) if "http" in request.url[:4] else None
            )
            page.goto(Path(study.path / "study.html").absolute().as_uri())
            page.wait_for_selector(".main-svg")
            for place in page.locator(".drawing").all():
                place.scroll_into_view_if_needed()
            page.wait_for_timeout(500)
            drawn = page.locator(".js-plotly-plot").count()
            assert drawn == 7, f"{drawn} charts are drawn"
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        browser.close()

    assert errors == []
