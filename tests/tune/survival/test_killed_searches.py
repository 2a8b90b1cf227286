"""A search whose driver is killed comes to what it would have come to: the same trials, the same decisions, and no step
that was committed made twice.
"""

import random
import signal
import time

import pytest
from searching import SCRIPT, Script, finished, load_search, num_lines, survive

KINDS = ("grid", "tpe", "asha", "hyperband")
NUM_KILLS = 10


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """What a search comes to when nothing happens, and how many lines it writes; computed once for each."""
    known = {}

    def get(kind):
        if kind not in known:
            script = Script(tmp_path_factory.mktemp(f"undisturbed_{kind}"), SCRIPT, kind)
            script.run()
            known[kind] = finished(script.path), num_lines(script.path)
        return known[kind]

    return get


def kill(tmp_path, kind, moments, undisturbed, processes_in):
    with Script(tmp_path, SCRIPT, kind, processes_in=processes_in) as script:
        num_killed = survive(script, moments)
    assert finished(script.path) == undisturbed(kind)[0]
    assert load_search(script.path).is_complete
    return num_killed


def test_a_search_whose_driver_is_killed_twice_ends_as_one_that_nothing_happened_to(
    tmp_path, undisturbed, processes_in
):
    assert kill(tmp_path, "grid", ["00001 2", "00003 1"], undisturbed, processes_in) == 2


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_search_killed_at_random_moments_ends_as_one_that_nothing_happened_to(
    tmp_path, kind, seed, undisturbed, processes_in, fault_table
):
    """50 kills of each kind: ten of each of five searches."""
    with fault_table.trying(f"search driver killed ({kind})") as trial:
        # A continued driver has fewer lines left to write before it is killed.
        dice, most = random.Random(f"{kind} {seed}"), 2 * undisturbed(kind)[1] // (NUM_KILLS + 2)
        moments = [dice.randint(1, max(2, most)) for _ in range(NUM_KILLS)]
        trial.times = kill(tmp_path, kind, moments, undisturbed, processes_in)
        assert trial.times >= 8, "the search was over too soon for this to tell much"


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(3))
def test_a_driver_that_was_paused_and_followed_does_no_harm_when_it_wakes(tmp_path, seed, undisturbed):
    expected, lines = undisturbed("grid")
    with Script(tmp_path, SCRIPT, "grid", env={"PACELINE_LEASE_TTL_S": "1"}) as script:
        first = script.start()
        line = random.Random(f"paused {seed}").randint(2, lines - 20)
        assert script.wait_until(first, lambda: num_lines(script.path) >= line), script.said
        first_said = script.directory / "first_stderr"
        (script.directory / "stderr").rename(first_said)
        first.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 90
        while script.start().wait(100) != 0:
            assert "is being written by" in script.said
            assert time.monotonic() < deadline, "its lease never lapsed"
        assert finished(script.path) == expected
        first.send_signal(signal.SIGCONT)
        assert first.wait(60) == 1, first_said.read_text()
    assert "was taken over by process" in first_said.read_text()
    assert finished(script.path) == expected
