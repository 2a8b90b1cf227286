"""What the page shows of a run besides its metrics: who was killed and why, what was printed, where the time went."""

import re

import pytest
from browser_runs import HOSTILE, NEEDLE, make_events


@pytest.fixture(scope="module")
def shown(serving, tmp_path_factory):
    root = tmp_path_factory.mktemp("seen")
    make_events(root)
    return serving(root)


def is_untouched(page):
    """Nothing that a run says has become a part of the page."""
    assert page.locator("main img, main script, main b").count() == 0
    assert "taken over" not in page.title()


def test_a_worker_that_was_killed_shows_as_such_with_its_cause(shown, look):
    page = look(shown.at("#/run/killed/workers?attempt=1"))
    row = page.locator('tr[data-rank="1"]')
    row.locator(".sign", has_text="killed").wait_for()
    row.get_by_text("killed by SIGKILL").wait_for()
    row.get_by_text("first cause").wait_for()
    # Whoever failed stands first.
    assert page.locator("table.ranks tbody tr").first.get_attribute("data-rank") == "1"
    page.get_by_role("heading", name="Resource usage").wait_for()
    page.get_by_label("Attempt").select_option("2")
    page.locator('tr[data-rank="1"]').get_by_text("returned").wait_for()
    assert page.get_by_text("killed by SIGKILL").count() == 0


def test_the_timeline_shows_attempts_with_what_ended_them(shown, look):
    page = look(shown.at("#/run/killed/timeline"))
    cause = page.locator('[data-attempt="1"] .failure.is-cause')
    cause.get_by_text("killed by SIGKILL").wait_for()
    assert "rank 1" in cause.inner_text()
    assert page.locator('[data-attempt="2"] .failure').count() == 0
    assert "finished" in page.locator('[data-attempt="2"]').inner_text()
    lanes = page.locator("[data-lane]")
    assert lanes.evaluate_all("all => all.map((lane) => lane.dataset.lane)")[:2] == ["1", "2"]
    assert lanes.nth(0).locator(".mark-failure").count() == 1
    assert page.locator(".mark-checkpoint").count() > 1  # One is in the legend.
    # The attempts follow one another.
    first, second = (lanes.nth(index).locator(".attempt-bar").bounding_box() for index in range(2))
    assert second["x"] >= first["x"] + first["width"] - 2
    lanes.nth(0).locator(".mark-place").last.hover()
    page.locator(".timeline-details", has_text=re.compile("rank 1|SIGKILL")).wait_for()
    page.get_by_text("All events").click()
    page.locator(".event-failure").wait_for()  # Exactly one, or this raises.


def test_logs_are_found_by_search_and_shown_with_what_is_around_them(shown, look):
    page = look(shown.at("#/run/killed/logs?attempt=1"))
    # Of a failed attempt, that of the rank that failed first.
    page.get_by_text("the last words of rank 1").wait_for()
    assert page.locator(".log-line").count() == 500
    page.get_by_label("Search this log").fill("NEEDLE")
    found = page.locator(".log-line mark")
    found.wait_for()
    assert found.inner_text() == "needle"
    assert page.locator(".log-text").all_inner_texts() == [f"rank 1, line 600: {NEEDLE}"]
    page.locator("button.log-at").click()
    page.locator(".log-line.found", has_text=NEEDLE).wait_for()
    shown_now = page.locator(".log-text").all_inner_texts()
    at = shown_now.index(f"rank 1, line 600: {NEEDLE}")
    assert shown_now[at - 1 : at + 2 : 2] == ["rank 1, line 599", "rank 1, line 601"]
    page.get_by_label("Search this log").fill("no such text")
    page.get_by_text("no line contains “no such text”").wait_for()


def test_checkpoints_say_which_are_kept_and_where(shown, look):
    page = look(shown.at("#/run/killed/checkpoints"))
    kept = page.locator("tr[data-checkpoint]", has_text="kept")
    kept.first.wait_for()
    assert kept.count() == 1
    assert "latest" in kept.inner_text()
    assert page.locator("tr[data-checkpoint]", has_text="gone").count() >= 1
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name=re.compile("Copy the path of")).click()
    page.get_by_text("copied").wait_for()
    path = page.evaluate("() => navigator.clipboard.readText()")
    assert path.startswith(str(shown.root / "killed"))
    page.get_by_label("only kept").check()
    page.wait_for_function("() => document.querySelectorAll('tr[data-checkpoint]').length === 1")


def test_configuration_environment_and_code_are_shown_and_filtered(shown, look):
    page = look(shown.at("#/run/killed/config"))
    page.locator(".leaf", has_text="kill_at").get_by_text("5").wait_for()
    page.locator(".leaf", has_text="num_workers").get_by_text("2").first.wait_for()
    page.get_by_label("Filter keys and values").fill("python")
    page.wait_for_function("() => !document.body.textContent.includes('kill_at')")
    assert page.locator(".leaf-key", has_text="python").count() >= 1
    page.get_by_label("Filter keys and values").fill("")
    source = page.locator("details.source").first
    source.locator("summary").click()
    source.get_by_text("def _train").wait_for()
    is_untouched(page)


def test_a_search_is_shown_with_its_trials(shown, look):
    page = look(shown.at("#/run/sweep"))
    rows = page.locator("table.trials tbody tr")
    rows.first.wait_for()
    assert rows.count() == 12
    assert page.locator(".trial-lines path[data-trial]").count() == 12
    axes = page.locator("[data-axis]").evaluate_all("all => all.map((axis) => axis.dataset.axis)")
    assert axes == ["lr", "act", "loss"]
    assert page.locator("[data-parameter]").first.get_attribute("data-parameter") == "lr"
    page.locator("[data-plot=loss] .plot-area").wait_for()
    # The best stands first, until one sorts by something else.
    assert "best" in rows.first.inner_text()
    assert "0.03" in rows.first.inner_text()
    assert "gelu" in rows.first.inner_text()
    rows.first.hover()
    page.locator(".trial-details", has_text=HOSTILE).wait_for()
    page.get_by_role("button", name=re.compile("^lr")).click()
    page.get_by_role("button", name=re.compile("^lr")).click()
    page.wait_for_function("() => document.querySelector('table.trials tbody tr').textContent.includes('0.3')")
    is_untouched(page)
    page.set_viewport_size({"width": 400, "height": 800})
    page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
    rows.first.get_by_role("link").click()
    page.locator(".head .badge", has_text="finished").wait_for()
    page.locator("[data-plot=loss]").wait_for()


@pytest.mark.slow
def test_dragging_along_an_axis_keeps_the_trials_that_cross_it_there(shown, look):
    page = look(shown.at("#/run/sweep"))
    rows = page.locator("table.trials tbody tr")
    rows.first.wait_for()
    axis = page.locator('[data-axis="lr"] .axis-area').bounding_box()
    middle = axis["x"] + axis["width"] / 2
    page.mouse.move(middle, axis["y"] + axis["height"] - 2)
    page.mouse.down()
    page.mouse.move(middle, axis["y"] + axis["height"] * 0.85, steps=4)
    page.mouse.up()
    page.wait_for_function("() => document.querySelectorAll('table.trials tbody tr').length === 2")
    assert all("0.001" in text for text in rows.all_inner_texts())
    page.get_by_role("button", name="2 of 12 trials: show all").click()
    page.wait_for_function("() => document.querySelectorAll('table.trials tbody tr').length === 12")
    # The same with the keyboard alone.
    page.locator('[data-axis="lr"] .axis-area').focus()
    page.keyboard.press("ArrowUp")
    page.wait_for_function("() => document.querySelectorAll('table.trials tbody tr').length === 4")
    assert all("0.1" in text or "0.3" in text for text in rows.all_inner_texts())
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.querySelectorAll('table.trials tbody tr').length === 12")
