"""Plots in a browser: hands and keys on them, and what they are saved as."""

import csv
import io
import math
import re
import urllib.parse

import pytest
from in_browser import wait_described

from paceline._control.flame_graph import render_flame_page


@pytest.fixture
def plotted(shown, look):
    page = look(shown.at("#/run/long/metrics"))
    wait_described(page, "loss", "at 120.")
    return page


def range_of(page):
    """What part is zoomed into, as the address tells it."""
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(page.url).fragment.partition("?")[2])
    return (float(query["from"][0]), float(query["to"][0])) if "from" in query else None


def wait_range(page, is_some=True):
    page.wait_for_function("(some) => location.hash.includes('from=') === some", arg=is_some)
    return range_of(page)


def wait_range_that(page, holds):
    page.wait_for_function(
        "() => { const query = new URLSearchParams(location.hash.split('?')[1]);"
        " const [begin, end] = [Number(query.get('from')), Number(query.get('to'))];"
        f" return query.has('from') && {holds}; }}"
    )
    return range_of(page)


def area(page, title="loss"):
    found = page.locator(f'[data-plot="{title}"] .plot-area')
    found.scroll_into_view_if_needed()
    return found, found.bounding_box()


def drag(page, box, begin, end):
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * begin, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, y, steps=4)
    page.mouse.up()


def test_dragging_zooms_into_all_plots_shift_pans_and_a_double_click_shows_all_again(plotted):
    _, box = area(plotted)
    drag(plotted, box, 0.4, 0.6)
    begin, end = wait_range(plotted)
    assert 30 < begin < 60 < end < 90
    # The others follow: what they tell is of this part.
    plotted.wait_for_function(
        "() => !document.querySelector('[data-plot=\"eval/zero or less\"] .plot-area p').textContent"
        ".includes('from -117')"
    )
    plotted.keyboard.down("Shift")
    drag(plotted, box, 0.6, 0.4)
    plotted.keyboard.up("Shift")
    panned = wait_range_that(plotted, f"begin > {begin + 2}")
    assert panned[1] - panned[0] == pytest.approx(end - begin, rel=0.01)
    plotted.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert wait_range(plotted, False) is None


@pytest.mark.slow
def test_keys_and_the_wheel_zoom_and_pan_a_plot_that_has_the_focus(plotted):
    found, box = area(plotted)
    found.focus()
    plotted.keyboard.press("+")
    wide = wait_range(plotted)
    assert wide[1] - wide[0] == pytest.approx(119 * 0.7)
    before = plotted.url
    plotted.keyboard.press("ArrowRight")
    plotted.wait_for_function("(before) => location.href !== before", arg=before)
    assert range_of(plotted)[0] > wide[0]
    before = plotted.url
    plotted.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    plotted.mouse.wheel(0, -100)
    plotted.wait_for_function("(before) => location.href !== before", arg=before)
    narrow = range_of(plotted)
    assert narrow[1] - narrow[0] < wide[1] - wide[0] - 5
    plotted.keyboard.press("0")
    assert wait_range(plotted, False) is None


@pytest.mark.slow
def test_a_crosshair_tells_the_values_of_all_plots(plotted):
    _, box = area(plotted)
    plotted.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40)
    at = plotted.locator('[data-plot="loss"] .plot-at')
    other = plotted.locator('[data-plot="train/accuracy"] .plot-at')
    plotted.wait_for_function(
        "() => document.querySelector('[data-plot=loss] .plot-at').textContent.startsWith('step ')"
    )
    step = int(re.match(r"step (\d+)", at.inner_text())[1])
    assert 40 < step < 80
    assert other.inner_text().startswith(f"step {step} ")
    plotted.mouse.move(box["x"] + box["width"] * 0.5, box["y"] - 200)
    plotted.wait_for_function("() => document.querySelector('[data-plot=loss] .plot-at').textContent === ''")


@pytest.mark.slow
def test_choices_are_kept_in_the_address(plotted):
    plotted.get_by_label("Smoothing").fill("0.6")
    plotted.get_by_text("log scale").click()
    plotted.get_by_label("x axis").select_option("time")
    plotted.get_by_label("Filter metrics").fill("loss")
    plotted.wait_for_function("() => document.querySelectorAll('[data-plot]').length === 2")
    assert all(each in plotted.url for each in ("smooth=0.6", "log=1", "x=time", "f=loss"))
    plotted.reload()
    plotted.locator('[data-plot="eval/loss"]').wait_for()
    assert plotted.locator("[data-plot]").count() == 2
    assert plotted.get_by_label("Smoothing").input_value() == "0.6"
    wait_described(plotted, "loss", "last")
    assert plotted.get_by_label("log scale").is_checked()


@pytest.mark.slow
def test_two_fingers_zoom_and_pan(shown, look):
    page = look(shown.at("#/run/long/metrics?f=accuracy"), touch=True)
    wait_described(page, "train/accuracy", "at 120.")
    _, box = area(page, "train/accuracy")
    y = box["y"] + box["height"] / 2
    session = page.context.new_cdp_session(page)

    def touch(kind, *parts):
        points = [{"x": box["x"] + box["width"] * part, "y": y, "id": at} for at, part in enumerate(parts)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 0.45, 0.55)
    for apart in (0.1, 0.15, 0.2, 0.25):
        touch("touchMove", 0.5 - apart, 0.5 + apart)
    touch("touchEnd")
    # A fifth of what was seen. What is told on the way there may be more.
    begin, end = wait_range_that(page, "end - begin < 25")
    assert 40 < begin < 60 < end < 80
    touch("touchStart", 0.5, 0.7)
    for moved in (0.05, 0.1, 0.15):
        touch("touchMove", 0.5 - moved, 0.7 - moved)
    touch("touchEnd")
    panned = wait_range_that(page, f"begin > {begin + 3}")
    assert panned[1] - panned[0] == pytest.approx(end - begin, rel=0.05)


def saved(page, click):
    with page.expect_download() as download:
        click()
    return download.value.suggested_filename, download.value.path().read_bytes()


def test_plots_and_their_points_are_saved_as_png_and_csv(plotted):
    plotted.locator("[data-plot=loss]").hover()
    name, one = saved(plotted, plotted.get_by_label("loss: save as PNG", exact=True).click)
    assert name == "loss.png"
    assert one.startswith(b"\x89PNG")
    name, whole = saved(plotted, plotted.get_by_role("button", name="Save PNG").click)
    assert name == "long.png"
    assert int.from_bytes(whole[16:20]) > int.from_bytes(one[16:20]) > 1000
    plotted.locator("[data-plot=loss]").hover()
    name, data = saved(plotted, plotted.get_by_label("loss: save points as CSV", exact=True).click)
    rows = list(csv.DictReader(io.StringIO(data.decode())))
    assert name == "loss.csv"
    assert [int(row["step"]) for row in rows] == list(range(1, 121))
    assert float(rows[0]["value"]) == pytest.approx(2 / 1.01)
    _, data = saved(plotted, plotted.get_by_role("button", name="Save CSV").click)
    assert {"loss", "eval/loss", "train/lr"} <= {row["plot"] for row in csv.DictReader(io.StringIO(data.decode()))}
    name, data = saved(plotted, plotted.get_by_role("link", name="CSV").click)
    assert len(data.splitlines()) == 121


@pytest.mark.slow
def test_a_part_that_is_zoomed_into_is_asked_for_again_and_finer(shown, look):
    asked = []

    def asked_of(url):
        return urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)

    def is_finer(response):
        begin = float(asked_of(response.url).get("from", ["0"])[0])
        return "/api/metrics" in response.url and math.isclose(begin, 15_000, rel_tol=0.01)

    def answer(route):
        query = asked_of(route.request.url)
        asked.append(query)
        begin, end = float(query.get("from", ["1"])[0]), float(query.get("to", ["100000"])[0])
        xs = [begin + (end - begin) * i / 999 for i in range(1000)]
        values = {"x": xs, "y": xs, "low": [x - 1 for x in xs], "high": [x + 1 for x in xs]}
        series = [{"name": name, **values, "num_points": 100_000, "whole": False} for name in query["name"]]
        route.fulfill(json={"series": series, "first": 1, "last": 100_000})

    page = look("about:blank")
    page.route("**/api/metrics?*", answer)
    page.goto(shown.at("#/run/long/metrics?f=accuracy"))
    wait_described(page, "train/accuracy", "at 100,000.")
    assert [("from" in query, query["name"]) for query in asked] == [(False, ["train/accuracy"])]
    page.locator(".plot-area").focus()
    # The picture follows at once; what is finer is asked for when the range has stood still for a moment.
    with page.expect_response(is_finer):
        page.keyboard.press("+")
    wait_range(page)
    # 15,000.85 less one, the least that the first of the finer points stands for: no coarse point is as near to it.
    page.wait_for_function("() => document.querySelector('.plot-area p').textContent.includes('from 14,999.9')")


@pytest.mark.slow
def test_a_flame_graph_zooms_is_searched_and_runs_nothing_of_a_name(look, tmp_path):
    alert = "</script><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
    stacks = f"main;train;step 90\nmain;train;{alert} 10\nmain;load 100\n"
    (tmp_path / "flame.html").write_text(render_flame_page(stacks, "a run, rank 0"))
    page = look((tmp_path / "flame.html").as_uri())
    boxes = page.locator("#graph button")
    assert boxes.count() == 6
    assert page.title() == "a run, rank 0"
    assert page.locator("#graph button", has_text="<img src=x").count() == 1
    page.get_by_text("train", exact=True).click()
    assert page.locator("#details").inner_text().startswith("train - 50.0 %")
    assert page.get_by_text("load", exact=True).count() == 0
    page.keyboard.press("Escape")
    assert page.get_by_text("load", exact=True).count() == 1
    page.keyboard.press("/")
    page.keyboard.type("STEP")
    assert page.locator("#matched").inner_text() == "found in 45.0 % of the samples"
    assert page.locator("#graph button.found").count() == 1
