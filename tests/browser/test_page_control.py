"""A running run on the page, and requests to it from the page."""

import re

import pytest
from browser_runs import HOSTILE


@pytest.fixture
def run(tmp_path, going):
    (tmp_path / "runs").mkdir()
    return going(tmp_path / "runs", "working").process


def opened(look, shown, name):
    """The page of a run that may not have begun yet."""
    page = look(shown.at())
    page.get_by_role("link", name=name, exact=True).click()
    return page


@pytest.mark.slow
def test_without_being_allowed_to_the_page_only_looks_on_while_a_log_grows(serve, look, run, tmp_path):
    page = opened(look, serve(tmp_path / "runs"), "working")
    page.locator("#tab-logs").click()
    page.get_by_text(re.compile("step 3 of the work")).wait_for()
    assert page.get_by_role("group", name="Control of this run").count() == 0
    # What is printed from now on is shown without doing anything, at the end of what was.
    count = page.locator(".log-line").count()
    page.wait_for_function("(count) => document.querySelectorAll('.log-line').length > count + 5", arg=count)
    texts = page.locator(".log-text").all_text_contents()
    assert texts == [f"step {step} of the work" for step in range(1, len(texts) + 1)]


def test_stacks_a_profile_and_a_stop_are_asked_for_from_the_page(serve, look, run, tmp_path):
    page = opened(look, serve(tmp_path / "runs", "--allow-control"), "working")
    page.locator("#tab-files").click()
    page.get_by_text("No profiles. Profile, above, makes one").wait_for()
    control = page.get_by_role("group", name="Control of this run")
    control.get_by_role("button", name="Stacks").click()
    stacks = page.locator("pre.stacks")
    stacks.wait_for()
    assert "work" in stacks.inner_text()
    assert page.locator("img").count() == 0
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")

    control.get_by_role("button", name="Profile").click()
    page.get_by_label("Seconds").fill("0.5")
    page.get_by_role("button", name="Start").click()
    flame = page.get_by_label("Created files").get_by_role("link", name=re.compile("Flame graph"))
    flame.wait_for()
    with page.context.expect_page() as another:
        flame.click()
    graph = another.value
    graph.wait_for_load_state()
    assert HOSTILE[:10] in graph.content().replace("&lt;", "<")
    assert graph.locator("img").count() == 0
    assert "taken over" not in graph.title()
    page.keyboard.press("Escape")
    page.locator('tr[data-kind="flame"]').wait_for()

    control.get_by_role("button", name="Stop").click()
    # Nothing is stopped without being asked for twice.
    page.get_by_role("button", name="Stop now…").click()
    page.get_by_text("Their work since the last checkpoint is lost").wait_for()
    assert run.poll() is None
    page.get_by_role("button", name="Stop at the next report").click()
    page.locator(".head .badge", has_text="stopped").wait_for()
    assert page.get_by_role("group", name="Control of this run").count() == 0
    run.wait(60)


@pytest.mark.slow
def test_a_search_that_goes_on_is_shown_as_it_does(serve, look, going, tmp_path):
    root = tmp_path / "runs"
    root.mkdir()
    search = going(root, "searching")
    search.step()
    page = opened(look, serve(root), "searching")
    rows = page.locator("table.trials tbody tr")
    best = "(value) => document.querySelector('table.trials tbody tr:first-child td.num')?.textContent === value"
    page.wait_for_function(best, arg="0.6")
    assert rows.count() == 2
    page.evaluate("() => { window.same = true; }")
    search.step()
    page.wait_for_function(best, arg="0.3")
    search.step()
    page.wait_for_function(best, arg="0.2")
    page.locator(".counts", has_text="2 complete").wait_for()
    assert page.evaluate("() => window.same") is True
