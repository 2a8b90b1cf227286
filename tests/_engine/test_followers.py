"""What detached work tells those who follow it, and what they ask of it: the bookkeeping, without an actor."""

import threading

from paceline._engine.ray import detached_actor
from paceline._engine.ray.detached_actor import FollowerHub


def test_followers_get_all_that_is_said_from_where_they_stood():
    followers = FollowerHub("id", is_restarted=False)
    followers.publish(1, "a\n")
    first = followers.read_since(0)
    assert (first.pieces, first.next_number, first.is_over) == (((1, "a\n"),), 1, False)
    followers.publish(2, "b\n")
    followers.finish()
    second = followers.read_since(first.next_number)
    assert (second.pieces, second.next_number, second.is_over) == (((2, "b\n"),), 2, True)


def test_what_was_said_long_ago_is_dropped_and_numbers_stay(monkeypatch):
    monkeypatch.setattr(detached_actor, "_MAX_KEPT_CHARS", 10)
    followers = FollowerHub("id", is_restarted=False)
    for number in range(20):
        followers.publish(1, f"{number:04d}")
    kept = followers.read_since(0)
    assert kept.pieces == ((1, "0018"), (1, "0019"))
    assert kept.next_number == 20
    assert followers.read_since(19).pieces == ((1, "0019"),)
    assert followers.read_since(20).pieces == ()


def test_a_request_to_stop_reaches_work_that_listens_later():
    followers = FollowerHub("id", is_restarted=False)
    followers.request_stop(False)
    asked = []
    followers.set_stop_handler(asked.append)
    followers.request_stop(True)
    assert asked == [False, True]
    followers.set_stop_handler(None)
    followers.request_stop(True)
    followers.set_stop_handler(asked.append)
    assert asked == [False, True, True]


def test_nothing_said_while_followers_take_is_lost_or_doubled():
    followers = FollowerHub("id", is_restarted=False)
    talking = threading.Thread(target=lambda: [followers.publish(1, str(n)) for n in range(5000)])
    woken = threading.Event()
    heard, number = [], 0
    with followers.wake_on_output(woken.set):
        talking.start()
        while len(heard) < 5000:
            assert woken.wait(60)
            woken.clear()
            said = followers.read_since(number)
            number = said.next_number
            heard += [text for _, text in said.pieces]
    talking.join()
    assert heard == [str(n) for n in range(5000)]
