"""The report as a browser shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stampede.workflows.report import run_report

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def page_file(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "report.html"
    run_report(small_run, out=out, force=False, say=lambda _line: None)
    return out


class Tab:
    """A tab of the browser with the report open, and all that the page complained of or asked for."""

    def __init__(self, browser: Any, file: Path, *, size: str = "desktop", theme: str = "light") -> None:
        width, height = SIZES[size]
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, offline=True
        )
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.wait()

    def wait(self) -> None:
        """Wait until every chart that is shown is drawn."""
        self.page.wait_for_selector("html[data-drawn]")

    def evaluate(self, script: str) -> Any:
        return self.page.evaluate(script)

    @property
    def background(self) -> str:
        return str(self.evaluate("getComputedStyle(document.body).backgroundColor"))

    @property
    def first_line(self) -> str:
        """The colour of the first chart's last line."""
        script = "[...document.querySelectorAll('#chart-1 .js-line')].at(-1).style.stroke"
        return str(self.evaluate(script))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
def test_it_draws_every_chart_without_complaint_network_or_sideways_scrolling(
    browser: Any, page_file: Path, size: str, theme: str
) -> None:
    tab = Tab(browser, page_file, size=size, theme=theme)

    assert tab.complaints == []
    assert tab.requests == [page_file.as_uri()]
    assert tab.evaluate("document.documentElement.scrollWidth") == SIZES[size][0]
    shown = "[...document.querySelectorAll('.drawing')].filter((place) => place.offsetParent)"
    assert tab.evaluate(f"{shown}.length") >= 15
    empty = f"{shown}.filter((place) => !place.querySelector('.trace, .hm'))"
    assert tab.evaluate(f"{empty}.map((place) => place.ariaLabel)") == []
    wider = (
        "[...document.querySelectorAll('.drawing svg')]"
        ".filter((svg) => svg.getBoundingClientRect().right > innerWidth)"
    )
    assert tab.evaluate(f"{wider}.length") == 0


def test_the_button_changes_the_theme_of_page_and_charts_and_it_is_remembered(
    browser: Any, page_file: Path
) -> None:
    tab = Tab(browser, page_file, theme="light")
    before = tab.background, tab.first_line

    tab.page.click("#theme")
    after = tab.background, tab.first_line
    tab.page.reload()
    tab.wait()

    assert before[0] != after[0]
    assert before[1] != after[1]
    assert (tab.background, tab.first_line) == after
    assert tab.page.inner_text("#theme") == "Light theme"
    assert tab.complaints == []


def test_it_follows_the_system_while_nothing_is_chosen(browser: Any, page_file: Path) -> None:
    tab = Tab(browser, page_file, theme="light")
    before = tab.background, tab.first_line

    tab.page.emulate_media(color_scheme="dark")
    tab.wait()

    assert tab.background != before[0]
    assert tab.first_line != before[1]


def test_another_field_is_shown_when_it_is_chosen(browser: Any, page_file: Path) -> None:
    tab = Tab(browser, page_file)
    shown = "[...document.querySelectorAll('.choice figure')].map((figure) => !figure.hidden)"

    tab.page.select_option(".choice select", index=3)

    assert [index for index, is_shown in enumerate(tab.evaluate(shown)) if is_shown] == [3]
    tab.wait()
    assert tab.page.locator(".choice figure:not([hidden]) svg .trace").count() > 0
    assert tab.complaints == []


def test_on_paper_it_is_light_and_no_chart_is_wider_than_the_sheet(browser: Any, page_file: Path) -> None:
    tab = Tab(browser, page_file, theme="dark")
    dark = tab.first_line

    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    on_paper = tab.first_line
    widest = tab.evaluate(
        "Math.max(...[...document.querySelectorAll('.main-svg')].map((svg) => svg.clientWidth))"
    )
    tab.evaluate("dispatchEvent(new Event('afterprint'))")

    assert on_paper != dark
    assert widest <= 660
    assert tab.first_line == dark
    assert tab.evaluate("document.querySelectorAll('details[open]').length") == 0
