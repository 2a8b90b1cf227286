"""The page in a browser: what is listed, what grows, who is let in."""

import re

import pytest
from in_browser import described, wait_described, wait_drawn, wait_rows

COLLECT_STATES = """() => {
  window.states = new Set();
  const listen = (event) => JSON.parse(event.data).runs.forEach((run) => window.states.add(run.state));
  new EventSource("api/events").addEventListener("runs", listen);
}"""


def test_a_run_that_begins_is_listed_and_its_curve_grows_while_one_looks(serve, look, going, tmp_path):
    root = tmp_path / "runs"
    root.mkdir()
    shown = serve(root)
    page = look(shown.at())
    page.get_by_text("No runs yet").wait_for()
    page.evaluate(COLLECT_STATES)
    run = going(root)
    run.step(3)
    page.locator("tr", has_text="live").get_by_text("running").wait_for()
    page.get_by_role("link", name="live").click()
    wait_described(page, "loss", "at 3.")
    page.evaluate("() => { window.same = true; }")
    run.step(4)
    wait_described(page, "loss", "at 7.")
    wait_drawn(page, "loss", (1, 7), {2: True, 4: True, 6.5: True})
    assert "last 0.1429 at 7." in described(page, "loss")
    assert page.get_by_role("group", name="Control of this run").count() == 0, "it only looks on"
    assert run.end() == 0
    page.locator(".head .badge", has_text="finished").wait_for()
    assert page.evaluate("() => window.same") is True
    assert set(page.evaluate("() => [...window.states]")) <= {"starting", "running", "finished"}, "never lost"


def test_runs_are_found_sorted_and_filtered(shown, look):
    page = look(shown.at())
    rows = page.locator("tbody tr")
    page.locator("tr", has_text="broken").get_by_text("the loss is <b>nan</b>").wait_for()
    assert rows.count() == 3
    page.get_by_role("button", name="Run", exact=True).click()
    names = rows.evaluate_all("all => all.map((row) => row.ariaLabel.split(',')[0])")
    assert names == ["broken", "long", "short"]
    page.get_by_role("button", name=re.compile("^finished")).click()
    wait_rows(page, 2)
    page.get_by_label("Search runs").fill("ong")
    wait_rows(page, 1)
    # The address holds all of it.
    page.reload()
    wait_rows(page, 1)
    assert page.get_by_label("Search runs").input_value() == "ong"
    page.get_by_label("Search runs").fill("no such run")
    page.get_by_role("button", name="Show all 3").click()
    wait_rows(page, 3)


def test_two_runs_are_compared_one_over_the_other(shown, look):
    page = look(shown.at())
    page.get_by_label("Pick short to compare").check()
    page.get_by_label("Pick long to compare").check()
    page.get_by_role("button", name="Compare").click()
    plot = page.locator("[data-plot=loss]")
    plot.locator(".legend-name", has_text="short").wait_for()
    assert plot.locator(".legend-name").all_inner_texts() == ["short", "long"]
    assert re.match(r"short: from .* at 40\. long: from .* at 120\.", described(page, "loss"))
    colors = plot.locator(".swatch").evaluate_all("all => all.map(e => getComputedStyle(e).color)")
    assert len(set(colors)) == 2
    page.get_by_role("heading", name="What differs").wait_for()
    page.get_by_label("Leave out short").click()
    page.wait_for_function("() => !document.querySelector('[data-plot=loss] .legend')")
    assert described(page, "loss").startswith("long: ")


@pytest.mark.slow
def test_a_page_says_when_the_server_is_gone(serve, look, tmp_path):
    shown = serve(tmp_path)
    page = look(shown.at())
    page.locator(".live.is-on").wait_for()
    page.route("**/api/events*", lambda route: route.abort())
    page.reload()
    page.locator(".live.is-off").wait_for()
    look.complaints.clear()  # The browser itself reports the request that failed.


@pytest.mark.slow
def test_an_unknown_run_and_a_view_that_does_not_exist_are_said_to_be_so(shown, look):
    page = look(shown.at("#/run/no-such-run/metrics"))
    page.get_by_text("Cannot show this run").wait_for()
    look.complaints.clear()  # The browser itself reports the 404.
    page.goto(shown.at("#/run/short/no-such-tab"))
    page.locator("[data-plot=loss]").wait_for()


@pytest.mark.slow
def test_hundreds_of_runs_are_listed_as_one_scrolls_and_searched(shown, look):
    page = look(shown.at())
    wait_rows(page, 3)
    run = page.evaluate("() => fetch('api/runs').then((answer) => answer.json())")["runs"][0]
    many = [{**run, "id": f"run-{i:03}", "name": f"run-{i:03}", "began_at": run["began_at"] - i} for i in range(800)]
    page.route("**/api/runs", lambda route: route.fulfill(json={"runs": many}))
    page.route("**/api/events*", lambda route: route.fulfill(body="retry: 60000\n\n", content_type="text/event-stream"))
    page.goto("about:blank")
    page.goto(shown.at())
    wait_rows(page, 150)
    page.get_by_text("650 more runs").scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length > 150")
    for text in ("r", "run-7", "run-777"):
        page.get_by_label("Search runs").fill(text)
    wait_rows(page, 1)
    page.get_by_role("link", name="run-777").wait_for()
