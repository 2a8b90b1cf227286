"""What detached work tells those who follow it, and what they ask of it: the bookkeeping, without an actor."""

import threading

from paceline._engine.ray import detached
from paceline._engine.ray.detached import Followers


def test_followers_get_all_that_is_said_from_where_they_stood():
    followers = Followers("id", again=False)
    followers.tell(1, "a\n")
    first = followers.since(0)
    assert (first.pieces, first.until, first.over) == (((1, "a\n"),), 1, False)
    followers.tell(2, "b\n")
    followers.end()
    second = followers.since(first.until)
    assert (second.pieces, second.until, second.over) == (((2, "b\n"),), 2, True)


def test_what_was_said_long_ago_is_dropped_and_numbers_stay(monkeypatch):
    monkeypatch.setattr(detached, "_MAX_KEPT", 10)
    followers = Followers("id", again=False)
    for number in range(20):
        followers.tell(1, f"{number:04d}")
    kept = followers.since(0)
    assert kept.pieces == ((1, "0018"), (1, "0019"))
    assert kept.until == 20
    assert followers.since(19).pieces == ((1, "0019"),)
    assert followers.since(20).pieces == ()


def test_a_request_to_stop_reaches_work_that_listens_later():
    followers = Followers("id", again=False)
    followers.stop(False)
    asked = []
    followers.heard_by(asked.append)
    followers.stop(True)
    assert asked == [False, True]
    followers.heard_by(None)
    followers.stop(True)
    followers.heard_by(asked.append)
    assert asked == [False, True, True]


def test_nothing_said_while_followers_take_is_lost_or_doubled():
    followers = Followers("id", again=False)
    talking = threading.Thread(target=lambda: [followers.tell(1, str(n)) for n in range(5000)])
    woken = threading.Event()
    heard, number = [], 0
    with followers.waking(woken.set):
        talking.start()
        while len(heard) < 5000:
            assert woken.wait(60)
            woken.clear()
            said = followers.since(number)
            number = said.until
            heard += [text for _, text in said.pieces]
    talking.join()
    assert heard == [str(n) for n in range(5000)]
