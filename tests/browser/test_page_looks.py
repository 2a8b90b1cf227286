"""The page in a browser: wide and narrow, light and dark, by keyboard, and as a report in one file."""

import subprocess
import sys

import pytest
from in_browser import described, wait_described, wait_rows

PLACES = ["#/", "#/run/long/metrics", "#/run/broken/metrics", "#/compare?run=short&run=long"]


@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.slow), 400])
def test_nothing_is_wider_than_the_window(shown, look, width):
    page = look(shown.at(), width)
    wait_rows(page, 3)
    for place in PLACES:
        page.goto(shown.at(place))
        page.locator("tbody tr, [role=tabpanel], [data-plot]").first.wait_for()
        assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0, place
    page.goto(shown.at("#/run/long"))
    page.locator("[role=tab]").first.wait_for()
    for tab in page.locator("[role=tab]").all():
        tab.click()
        page.locator("#tab-panel .guarded > *").first.wait_for()
        assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0, tab.inner_text()


def paper(page):
    return page.evaluate("() => getComputedStyle(document.querySelector('.card')).backgroundColor")


@pytest.mark.slow
def test_dark_as_the_system_has_it_or_as_a_person_says_which_is_remembered(shown, look):
    page = look(shown.at(), dark=True)
    wait_rows(page, 3)
    dark = paper(page)
    page.keyboard.press("t")
    light = paper(page)
    assert sum(map(int, light[4:-1].split(","))) > 600 > 200 > sum(map(int, dark[4:-1].split(",")))
    page.reload()
    wait_rows(page, 3)
    assert paper(page) == light
    page.keyboard.press("t")
    assert paper(page) == dark
    page.keyboard.press("t")
    assert page.evaluate("() => localStorage.length") == 0


@pytest.mark.slow
def test_plots_change_their_colours_with_the_theme(shown, look):
    page = look(shown.at("#/run/long/metrics?f=accuracy"))
    wait_described(page, "train/accuracy", "at 120.")
    pixels = "() => document.querySelector('.plot-area canvas').toDataURL()"
    page.wait_for_function(f"() => ({pixels})().length > 3000")
    before = page.evaluate(pixels)
    page.keyboard.press("t")
    page.keyboard.press("t")
    page.wait_for_function(f"(before) => ({pixels})() !== before", arg=before)


def wait_tab(page, title, is_it):
    """Until the tab that is shown is this one, or another."""
    page.wait_for_function(
        "([title, is]) => (document.querySelector('[role=tab][aria-selected=true]').innerText === title) === is",
        arg=[title, is_it],
    )


def test_all_of_it_can_be_reached_by_keys(shown, look):
    page = look(shown.at("#/?sort=name"))
    wait_rows(page, 3)
    page.keyboard.press("/")
    page.keyboard.type("short")
    wait_rows(page, 1)
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.activeElement.tagName === 'BODY'")
    assert page.get_by_label("Search runs").input_value() == "short"
    page.get_by_label("Search runs").fill("")
    page.get_by_label("Search runs").blur()
    wait_rows(page, 3)
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("() => document.activeElement.ariaLabel === 'long, finished'")
    page.keyboard.press("x")
    page.get_by_text("1 run picked").wait_for()
    page.keyboard.press("k")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="long").wait_for()
    first = page.locator("[role=tab][aria-selected=true]").inner_text()
    page.keyboard.press("]")
    wait_tab(page, first, False)
    page.keyboard.press("[")
    wait_tab(page, first, True)
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    page.keyboard.press("g")
    page.keyboard.press("r")
    wait_rows(page, 3)


@pytest.mark.slow
def test_what_has_the_focus_is_seen_and_every_control_has_a_name(shown, look):
    page = look(shown.at())
    wait_rows(page, 3)
    seen = set()
    for _ in range(14):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            "() => [document.activeElement.outerHTML.slice(0, 60),"
            " getComputedStyle(document.activeElement).outlineStyle]"
        )
        assert outline != "none", name
        seen.add(name)
    assert len(seen) > 8
    page.goto(shown.at("#/run/long/metrics"))
    wait_described(page, "loss", "at 120.")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, a, input, select, [role=tab], [tabindex='0']")].filter((each) =>
          !(each.getAttribute("aria-label") || each.innerText?.trim() || each.labels?.length || each.title)
        ).map((each) => each.outerHTML.slice(0, 120))"""
    )
    assert nameless == []


def test_a_report_opens_from_a_disk_without_a_server(shown, look, tmp_path):
    file = tmp_path / "report.html"
    command = [sys.executable, "-m", "paceline", "report", str(shown.root / "long"), "--output", str(file)]
    subprocess.run(command, check=True, timeout=240, capture_output=True)
    page = look(file.as_uri())
    page.get_by_role("heading", name="long").wait_for()
    wait_described(page, "loss", "at 120.")
    assert described(page, "loss").startswith("long: from ")
    assert page.locator(".plot-title", has_text="<img src=x").count() == 1
    assert page.locator("main img").count() == 0
    page.locator("[data-plot=loss] .plot-area").focus()
    page.keyboard.press("+")
    page.wait_for_function("() => location.hash.includes('from=')")
    page.keyboard.press("t")
    for tab in page.locator("[role=tab]").all():
        tab.click()
        page.locator("#tab-panel .guarded > *").first.wait_for()
    assert "cannot be shown" not in page.inner_text("main")
    assert page.evaluate("() => performance.getEntriesByType('resource').map((each) => each.name)") == []
