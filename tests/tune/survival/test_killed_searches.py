"""A search whose driver is killed comes to what it would have come to: the same trials, the same decisions, and no step
that was committed made twice.
"""

import random
import signal
import time

import pytest
from searching import Script, committed, finished, num_lines, survived, told

KINDS = ("grid", "tpe", "asha", "hyperband")
_NUM_KILLS = 50


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """What a search comes to when nothing happens, and how many lines it writes; computed once for each."""
    known = {}

    def get(kind):
        if kind not in known:
            script = Script(tmp_path_factory.mktemp(f"undisturbed_{kind}"), kind)
            script.lived()
            known[kind] = finished(script.path), num_lines(script.path)
        return known[kind]

    return get


def moments(kind, seed, num_lines, num_kills):
    """After how many further lines each driver is killed; a continued one has fewer left to write."""
    dice = random.Random(f"{kind} {seed}")
    return [dice.randint(1, max(2, 2 * num_lines // (num_kills + 2))) for _ in range(num_kills)]


def kill(tmp_path, kind, seed, num_kills, undisturbed, processes_in):
    expected, lines = undisturbed(kind)
    script = Script(tmp_path, kind, processes_in)
    num_killed = survived(script, moments(kind, seed, lines, num_kills))
    assert finished(script.path) == expected
    assert told(script.path).is_complete
    return num_killed


def test_a_search_whose_driver_is_killed_twice_ends_as_one_that_nothing_happened_to(
    tmp_path, undisturbed, processes_in
):
    assert kill(tmp_path, "grid", 0, 2, undisturbed, processes_in) == 2


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_search_killed_at_random_moments_ends_as_one_that_nothing_happened_to(
    tmp_path, kind, seed, undisturbed, processes_in, fault_table
):
    """50 kills of each kind: ten of each of five searches."""
    with fault_table.trying(f"driver of a search killed ({kind})") as trial:
        trial.times = kill(tmp_path, kind, seed, _NUM_KILLS // 5, undisturbed, processes_in)
        assert trial.times >= 8, "the search was over too soon for this to tell much"


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(3))
def test_a_driver_that_was_paused_and_followed_does_no_harm_when_it_wakes(tmp_path, seed, undisturbed):
    expected, lines = undisturbed("grid")
    script = Script(tmp_path, "grid", env={"PACELINE_LEASE_TTL_S": "1"})
    first = script.started()
    try:
        line = random.Random(f"paused {seed}").randint(2, lines - 20)
        while num_lines(script.path) < line:
            assert first.poll() is None, script.said
            time.sleep(0.001)
        first.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 30
        while script.started().wait(100) != 0:
            assert "is being written by" in script.said
            assert time.monotonic() < deadline, "its lease never lapsed"
        assert finished(script.path) == expected
    finally:
        first.send_signal(signal.SIGCONT)
    assert first.wait(60) == 1, script.said
    assert "was taken over by process" in script.said
    assert finished(script.path) == expected


def test_what_the_log_of_steps_would_show(tmp_path):
    """The check itself: a step that was committed is found among those that were run since."""
    script = Script(tmp_path, "grid")
    (tmp_path / "steps").write_text("00000 1\n00000 2\n00000 2\n")
    from searching import assert_not_run_again

    with pytest.raises(AssertionError, match="was committed was run again"):
        assert_not_run_again(script, 2, {("00000", "2")}, set())
    with pytest.raises(AssertionError, match="was over was run again"):
        assert_not_run_again(script, 2, set(), {"00000"})
    assert committed(script.path) == set()
