"""When a store retries, how long it waits and when it gives up, with fake clocks."""

import errno
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from paceline._core.checkpoint_records import FileEntry
from paceline._core.errors import StorageError
from paceline._storage.address import open_store_at
from paceline._storage.arrow_store import ArrowStore
from paceline._storage.object_store import ObjectStore
from paceline._storage.retrying_store import DEFAULT_RETRY_POLICY, PROBE_INTERVAL_S, RetryingStore, StoreRetryPolicy
from paceline._storage.run_location import RunLocation, is_remote, join_storage_path
from paceline._storage.store import download_all, ignore_progress, run_in_parallel, upload_all
from paceline._storage.store_errors import http_status, is_transient, summarize_error
from paceline.testing import FakeClock


class Failing(ArrowStore):
    """A store in memory whose calls raise what they are told, in turn, before they work."""

    def __init__(self, *failures):
        from fsspec.implementations.memory import MemoryFileSystem
        from pyarrow.fs import FSSpecHandler, PyFileSystem

        super().__init__(PyFileSystem(FSSpecHandler(MemoryFileSystem())), "/failing", "memory://failing")
        self.failures = list(failures)

    def write(self, key, data):
        if self.failures:
            raise self.failures.pop(0)
        super().write(key, data)


def _retrying(store, patience=DEFAULT_RETRY_POLICY):
    clock = FakeClock(1000.0)

    def sleep(seconds):
        retrying.pauses.append(seconds)
        clock.advance(seconds)

    retrying = RetryingStore(store, patience, clock=clock, sleep=sleep, chance=lambda: 1.0)
    retrying.pauses = []
    return retrying


def test_pauses_grow_to_a_limit():
    store = _retrying(Failing(*[TimeoutError("late")] * 6), StoreRetryPolicy(first_pause_s=1, longest_pause_s=8))
    store.write("key", b"x")
    assert store.pauses == [1, 2, 4, 8, 8, 8]


@given(num_failed=st.integers(1, 200), chance=st.floats(0, 1))
def test_a_pause_is_scattered_and_bounded(num_failed, chance):
    patience = StoreRetryPolicy()
    full_pause_s = patience.backoff_s(num_failed, 1.0)
    assert full_pause_s / 2 <= patience.backoff_s(num_failed, chance) <= full_pause_s <= patience.longest_pause_s


def test_the_error_counts_the_tries_and_quotes_the_last():
    store = _retrying(Failing(*[OSError(errno.EIO, "the disk is on fire")] * 99), StoreRetryPolicy(num_tries=3))
    with pytest.raises(StorageError, match=r"cannot write memory://failing/key: 3 tries in .*on fire"):
        store.write("key", b"x")
    assert len(store.pauses) == 2
    # The deadline ends tries that move nothing, though some were left.
    patience = StoreRetryPolicy(num_tries=99, first_pause_s=10, longest_pause_s=10, stall_timeout_s=35)
    with pytest.raises(StorageError, match="5 tries in 35 s"):
        _retrying(Failing(*[TimeoutError("late")] * 99), patience).write("key", b"x")


def test_after_one_call_gave_up_the_next_fail_at_once_until_the_store_answers():
    broken = Failing(*[ConnectionRefusedError("gone")] * 11)
    store = _retrying(broken, StoreRetryPolicy(num_tries=8, first_pause_s=1, longest_pause_s=1))
    for key in "abc":
        with pytest.raises(StorageError, match=f"cannot write memory://failing/{key}: .*gone") as raised:
            store.write(key, b"x")
        assert len(store.pauses) == 7, "the first has used up the budget of all"
    assert "not tried" in str(raised.value)
    assert "cannot write memory://failing/a: 8 tries in 7 s" in str(raised.value.__cause__)
    # Now and then one is let through, for one try: the tenth failure, then an answer.
    for failure in ("1 try", "not tried"):
        store._clock.advance(PROBE_INTERVAL_S * (failure == "1 try"))
        with pytest.raises(StorageError, match=failure):
            store.write("d", b"x")
    store.retry_anew()  # As for a new attempt: all tries again.
    store.write("e", b"x")
    assert len(store.pauses) == 8
    store.write("f", b"x")


def test_a_call_that_is_stuck_or_pauses_ends_with_the_first_that_gives_up():
    clock, both_wait, stuck = FakeClock(), threading.Barrier(3), threading.Event()

    class Gone(Failing):
        def write(self, key, data):
            if key == "stuck":
                both_wait.wait(60)
                stuck.wait(60)
            raise ConnectionRefusedError("gone")

    policy = StoreRetryPolicy(num_tries=2, first_pause_s=600)
    store = RetryingStore(Gone(), policy, clock=clock)
    errors: list[OSError] = []

    def write(key):
        with pytest.raises(StorageError) as raised:
            store.write(key, b"x")
        errors.append(raised.value)

    def wait_before_the_pause():
        both_wait.wait(60)
        return 1.0

    store._chance = wait_before_the_pause
    threads = [threading.Thread(target=write, args=(key,)) for key in ("stuck", "pauses")]
    for thread in threads:
        thread.start()
    both_wait.wait(60)
    store._sleep, store._chance = clock.advance, lambda: 1.0
    write("first")
    for thread in threads:
        thread.join(60)
    stuck.set()
    assert "2 tries" in str(errors[0])
    assert all("the store is gone: cannot write memory://failing/first" in str(e) for e in errors[1:])
    assert len(errors) == 3


def test_a_store_that_never_answered_is_given_up_early_with_what_to_check():
    broken = Failing(*[ConnectionRefusedError("refused")] * 99)
    broken.uri = "s3://bucket/runs"
    policy = StoreRetryPolicy(num_tries=99, contact_timeout_s=10)
    with pytest.raises(StorageError, match=r"tries in 10 s; .*refused(.|\n)*hint: .*credentials.*endpoint.*region"):
        _retrying(broken, policy).write("key", b"x")
    del broken.failures[3:]
    store = _retrying(broken, policy)
    store.write("key", b"x")
    broken.failures = [ConnectionRefusedError("refused")] * 99
    with pytest.raises(StorageError, match="hint: check the network") as raised:
        store.write("key", b"x")
    assert "tries in 120 s" in str(raised.value), "one that has answered gets all of its time"


@pytest.mark.parametrize(("silent_s", "is_given_up"), [(119.875, False), (120.0, True)])
def test_a_call_without_an_answer_is_given_up_when_nothing_has_moved_for_the_deadline(silent_s, is_given_up):
    clock, may_answer, waits = FakeClock(1000.0), threading.Event(), []

    class Stuck(Failing):
        def read(self, key):
            assert may_answer.wait(60)
            return b"x"

    def wait(ended, timeout_s):
        waits.append(timeout_s)
        if len(waits) == 1:
            clock.advance(silent_s)
        else:
            may_answer.set()
            assert ended.wait(60)

    store = RetryingStore(Stuck(), StoreRetryPolicy(num_tries=1, stall_timeout_s=120), clock=clock)
    store._breaker.wait = wait
    if is_given_up:
        with pytest.raises(StorageError, match=r"no progress for 120 s, after 0 bytes"):
            store.read("key")
    else:
        assert store.read("key") == b"x"
    may_answer.set()
    assert waits == [120.0, 120.0 - silent_s][: 1 if is_given_up else 2]


def test_a_transfer_longer_than_the_deadline_is_left_alone_while_it_moves(tmp_path):
    clock = FakeClock()

    class Slow(Failing):
        def upload(self, source, key, moved=ignore_progress):
            for _ in range(10):
                clock.advance(100)
                moved(1)
            return FileEntry(key, 10, "")

    assert RetryingStore(Slow(), StoreRetryPolicy(stall_timeout_s=120), clock=clock).upload(tmp_path, "key").size == 10


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ENOSPC, "no space left"),
        PermissionError(errno.EACCES, "not yours"),
        ValueError("a mistake of ours"),
        OSError("AWS Error ACCESS_DENIED during PutObject operation: Access Denied"),
        OSError("AWS Error NO_SUCH_BUCKET during PutObject operation"),
        OSError("Server returned non-2xx status code: 412 Precondition Failed"),
        OSError("google::cloud::Status(PERMISSION_DENIED: Permanent error)"),
        OSError("UploadFrom failed for 'http://h/a/b'. Azure Error: [ContainerNotFound] 404 The specified container"),
    ],
    ids=lambda failure: str(failure)[:30],
)
def test_does_not_retry_permanent_errors(failure):
    store = _retrying(Failing(failure))
    with pytest.raises(StorageError):
        store.write("key", b"x")
    assert store.pauses == []


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.EIO, "input/output error"),
        OSError(errno.ESTALE, "stale file handle"),
        TimeoutError(),
        ConnectionResetError(),
        BrokenPipeError(),
        OSError("AWS Error SLOW_DOWN during PutObject operation: Please reduce your request rate"),
        OSError("AWS Error NETWORK_CONNECTION during PutObject operation: curlCode: 56"),
        OSError("AWS Error UNKNOWN (HTTP status 503) during HeadObject operation: No response body."),
        OSError("Server returned non-2xx status code: 429 Too Many Requests"),
        OSError("google::cloud::Status(UNAVAILABLE: Retry policy exhausted)"),
        OSError("UploadFrom failed for 'http://h/a/b'. Azure Error: [ServerBusy] 503 The server is busy"),
        OSError("Failed to acquire a lease on file 'b/r': h Azure Error: [LeaseAlreadyPresent] 409 There is already"),
    ],
    ids=lambda failure: repr(failure)[:40],
)
def test_retries_transient_errors(failure):
    assert is_transient(failure)


def test_a_status_is_found_where_libraries_put_it_and_an_error_is_shortened_to_what_a_person_can_use():
    class WithResponse(Exception):
        response = {"ResponseMetadata": {"HTTPStatusCode": 503}}  # noqa: RUF012

    class WithStatus(Exception):
        status = 429

    assert http_status(WithResponse()) == 503
    assert http_status(WithStatus()) == 429
    assert http_status(OSError("Received HTTP status code: 404")) == 404
    assert http_status(OSError("took 500 ms")) is None
    text = (
        "Error performing PUT http://h/b/x in 1ms - Server returned non-2xx status code: 404 Not Found: "
        '<?xml version="1.0"?>\n<Error><Code>NoSuchBucket</Code><Message>It does not exist</Message></Error>'
        "\n\nDebug source:\nNotFound { ... }"
    )
    shortened = summarize_error(OSError(text))
    assert shortened.endswith("404 Not Found: NoSuchBucket: It does not exist")
    assert "\n" not in shortened


def test_a_few_are_under_way_at_once_answers_keep_their_order_and_after_a_failure_nothing_more_begins():
    running, most = 0, 0
    lock = threading.Lock()
    full = threading.Barrier(4)

    def call(index):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        full.wait(timeout=240)
        with lock:
            running -= 1
        return index

    assert run_in_parallel([lambda i=i: call(i) for i in range(12)], num_at_once=4) == list(range(12))
    assert most == 4

    begun: list[int] = []

    def fail(index):
        begun.append(index)
        raise OSError(f"number {index}")

    with pytest.raises(OSError, match="number 0"):
        run_in_parallel([lambda i=i: fail(i) for i in range(50)], num_at_once=1)
    assert begun == [0]


def test_uploads_and_downloads_many_files(tmp_path):
    store = open_store_at("memory://many")
    names = [f"part_{number}/file_{number}" for number in range(9)]
    for name in names:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(name.encode())
    up = upload_all(store, [(tmp_path / name, name) for name in names])
    down = download_all(store, [(name, tmp_path / "down" / name) for name in names])
    assert up == down
    assert [entry.path for entry in up] == names


def test_directory_markers_are_no_entries_of_a_listing():
    client = MemoryStore()
    store = ObjectStore(lambda retry_config: client, filesystem=lambda: None, bucket="b", path="b/p", uri="s3://b/p")
    for key in ("run", "run/a", "run/a/b", "run/c", "run/cd", "runner"):
        store.write(key, b"")
    assert [entry.key for entry in store.list_entries()] == ["run/a/b", "run/c", "run/cd", "runner"]


@pytest.mark.parametrize(
    ("path", "remote"),
    [("/data/runs", False), ("runs", False), ("file:///data", False), ("s3://b/x", True), ("memory://x", True)],
)
def test_a_path_tells_whether_it_is_a_store(path, remote):
    assert is_remote(path) is remote


def test_a_location_with_an_open_store_equals_and_looks_like_one_without():
    location = RunLocation("memory://bucket/runs", "run")
    shared = location.share_store()
    assert shared.open_store() is shared.open_store()
    assert location.open_store() is not location.open_store()
    assert (shared, repr(shared)) == (location, repr(location))
    local = RunLocation("/runs", "run")
    assert local.share_store() is local


def test_options_of_an_address_stay_at_its_end_and_out_of_messages_and_wrong_ones_are_refused(monkeypatch):
    address = join_storage_path("s3://key:secret@bucket/runs/?region=eu-west-1", "alpha")
    assert address == "s3://key:secret@bucket/runs/alpha?region=eu-west-1"
    assert open_store_at(address).uri == "s3://bucket/runs/alpha"
    with pytest.raises(ValueError, match="unknown option 'regoin'") as raised:
        open_store_at("s3://key:secret@bucket/runs?regoin=eu")
    assert "secret" not in str(raised.value)
    with pytest.raises(ValueError, match="must be a filesystem of pyarrow or fsspec"):
        open_store_at("/x", object())
    with pytest.raises(ValueError, match="nosuch"):
        open_store_at("nosuch://x/y")
    monkeypatch.setattr("paceline._storage.address.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'pip install "paceline\[cloud\]"'):
        open_store_at("memory://x")
