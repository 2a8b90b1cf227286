"""Output and stop requests between detached work and its followers, without an actor."""

import threading

from paceline._engine.ray import detached
from paceline._engine.ray.detached import FollowerHub


def test_drops_old_output_and_keeps_numbers(monkeypatch):
    monkeypatch.setattr(detached, "_MAX_KEPT_CHARS", 10)
    followers = FollowerHub("id", is_restarted=False)
    for number in range(20):
        followers.publish(1, f"{number:04d}")
    output = followers.read_since(0)
    assert output.pieces == ((1, "0018"), (1, "0019"))
    assert output.next_number == 20
    assert followers.read_since(19).pieces == ((1, "0019"),)
    assert followers.read_since(20).pieces == ()


def test_a_stop_request_reaches_a_handler_that_is_set_later():
    followers = FollowerHub("id", is_restarted=False)
    followers.request_stop(False)
    stop_requests = []
    followers.set_stop_handler(stop_requests.append)
    followers.request_stop(True)
    assert stop_requests == [False, True]
    followers.set_stop_handler(None)
    followers.request_stop(True)
    followers.set_stop_handler(stop_requests.append)
    assert stop_requests == [False, True, True]


def test_no_output_is_lost_or_repeated_while_followers_read():
    followers = FollowerHub("id", is_restarted=False)
    publisher = threading.Thread(target=lambda: [followers.publish(1, str(n)) for n in range(5000)])
    is_woken = threading.Event()
    texts, number = [], 0
    with followers.wake_on_output(is_woken.set):
        publisher.start()
        while len(texts) < 5000:
            assert is_woken.wait(60)
            is_woken.clear()
            output = followers.read_since(number)
            number = output.next_number
            texts += [text for _, text in output.pieces]
            assert not output.is_over
    publisher.join()
    followers.publish(2, "the end")
    followers.finish()
    last = followers.read_since(number)
    assert (last.pieces, last.next_number, last.is_over) == (((2, "the end"),), 5001, True)
    assert texts == [str(n) for n in range(5000)]
