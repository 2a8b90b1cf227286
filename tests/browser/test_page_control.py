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


def test_stacks_a_profile_and_a_stop_are_asked_for_from_the_page(serve, look, run, tmp_path):
    page = opened(look, serve(tmp_path / "runs", control=True), "working")
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
    with page.expect_response("**/api/profile*") as made:
        page.get_by_role("button", name="Start").click()
    assert "flame" in {file["kind"] for file in made.value.json()["files"]}
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
