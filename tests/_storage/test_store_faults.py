"""A store behind a faulty proxy: transient faults are outlasted, others are reported."""

import uuid

import pytest

from paceline._core.errors import StorageError
from paceline._core.system import SystemClock
from paceline._storage import address
from paceline._storage.address import open_store_at
from paceline._storage.retrying_store import RetryingStore, StoreRetryPolicy
from paceline._storage.store import CHUNK
from servers import BUCKET, s3_variables

QUICK = StoreRetryPolicy(first_pause_s=0.01, longest_pause_s=0.05, stall_timeout_s=30)


@pytest.fixture(params=["obstore", "pyarrow"])
def client(request, monkeypatch):
    if request.param == "pyarrow":
        monkeypatch.setattr(address, "find_spec", lambda name: None)
    return str(request.param)


@pytest.fixture
def proxied(s3_proxy, monkeypatch):
    for name, value in s3_variables(s3_proxy.authority).items():
        monkeypatch.setenv(name, value)

    def opened(patience=QUICK, bucket=BUCKET):
        return open_store_at(f"s3://{bucket}/faults/{uuid.uuid4().hex[:8]}", retry_policy=patience)

    return opened


@pytest.fixture
def store(client, proxied):
    return proxied()


@pytest.mark.parametrize(
    "fault", ["503", "lost reply", *(pytest.param(fault, marks=pytest.mark.slow) for fault in ("500", "429", "reset"))]
)
def test_every_call_outlasts_a_fault_that_passes(store, s3_proxy, tmp_path, fault):
    (tmp_path / "source").write_bytes(b"file")

    def faced(call, num_faults=2):
        s3_proxy.plant(fault, times=num_faults)
        answer = call()
        assert s3_proxy.left() == 0
        return answer

    faced(lambda: store.write("written", b"data"))
    assert faced(lambda: store.read("written")) == b"data"
    assert faced(lambda: store.create("created", b"own"))
    tag = store.read_tagged("created")[1]
    newer = faced(lambda: store.replace("created", b"newer", tag))
    assert newer == store.read_tagged("created")[1]
    entry = faced(lambda: store.upload(tmp_path / "source", "uploaded"))
    assert faced(lambda: store.download("uploaded", tmp_path / "target")) == entry
    assert (tmp_path / "target").read_bytes() == b"file"
    sizes = [(entry.key, entry.size) for entry in faced(lambda: store.list_entries())]
    assert sizes == [("created", 5), ("uploaded", 4), ("written", 4)]
    faced(lambda: store.delete("written"))
    faced(lambda: store.delete_all(""))
    assert store.list_entries() == []


@pytest.mark.parametrize("fault", [pytest.param("500", marks=pytest.mark.slow), "reset"])
def test_one_part_of_a_large_file_is_sent_again(store, s3_proxy, tmp_path, fault):
    (tmp_path / "source").write_bytes(bytes(2 * CHUNK))
    s3_proxy.plant(fault, method="PUT", path="partNumber=2")
    entry = store.upload(tmp_path / "source", "large")
    assert s3_proxy.left() == 0
    assert store.download("large", tmp_path / "target") == entry


def test_a_create_whose_reply_was_lost_is_our_own_unless_it_had_lost(store, s3_proxy):
    s3_proxy.plant("lost reply", method="PUT" if store.has_conditional_puts else "POST")
    assert store.create("journal/0", b"ours")
    assert store.read("journal/0") == b"ours"
    store.write("journal/1", b"theirs")
    s3_proxy.plant("lost reply", path="journal/1")
    assert not store.create("journal/1", b"ours")
    assert store.read("journal/1") == b"theirs"


@pytest.mark.parametrize("fault", ["cut", "short", "500", "reset"])
def test_a_listing_that_failed_is_repeated_and_one_that_always_fails_is_an_error_and_not_an_empty_store(
    store, s3_proxy, fault
):
    for number in range(3):
        store.write(f"journal/{number}", b"x")
    s3_proxy.plant(fault, method="GET", path="list-type=2")
    assert [entry.key for entry in store.list_entries()] == ["journal/0", "journal/1", "journal/2"]
    assert s3_proxy.left() == 0
    s3_proxy.plant(fault, path="list-type=2", times=1000)
    with pytest.raises(StorageError, match=r"cannot list .*: 8 tries"):
        store.list_entries("journal")


def test_a_denied_call_fails_at_once_with_a_hint(store, s3_proxy):
    s3_proxy.plant("403", times=1000)
    for call in (lambda: store.write("key", b"x"), lambda: store.list_entries(), lambda: store.create("key", b"x")):
        s3_proxy.requests.clear()
        with pytest.raises(StorageError, match="hint: check the credentials") as raised:
            call()
        assert store.uri in str(raised.value)
        assert len(s3_proxy.requests) == 1


def test_a_bucket_that_is_missing_is_not_an_empty_store(client, proxied, tmp_path):
    store = proxied(bucket="no-such-bucket")
    (tmp_path / "source").write_bytes(b"x")
    for call in (
        lambda: store.list_entries(),
        lambda: store.write("key", b"x"),
        lambda: store.create("key", b"x"),
        lambda: store.upload(tmp_path / "source", "key"),
    ):
        with pytest.raises(StorageError, match="bucket"):
            call()


def test_a_bucket_of_gcs_that_is_missing_is_not_an_empty_store(gcs_server):
    store = open_store_at(f"gs://anonymous@no-such-bucket/x?scheme=http&endpoint_override={gcs_server.authority}")
    with pytest.raises(StorageError, match="bucket 'no-such-bucket' does not exist"):
        store.list_entries()
    with pytest.raises(StorageError, match="no such bucket"):
        store.write("key", b"x")


def test_a_slow_answer_is_waited_for(store, s3_proxy, tmp_path):
    (tmp_path / "source").write_bytes(bytes(CHUNK))
    entry = store.upload(tmp_path / "source", "slow")
    s3_proxy.plant("slow", method="GET", times=10)
    assert store.download("slow", tmp_path / "target") == entry


def test_gives_up_on_a_stalled_call(client, proxied, s3_proxy):
    store = proxied(StoreRetryPolicy(stall_timeout_s=0.5))
    s3_proxy.plant("stall", times=1000)
    with pytest.raises(StorageError, match=r"cannot read .*/key: no progress for 0.5 s, after 0 bytes"):
        store.read("key")


def test_an_upload_that_stalls_half_way_says_how_far_it_came(client, proxied, s3_proxy, tmp_path):
    (tmp_path / "source").write_bytes(bytes(8 * CHUNK))
    for number in range(3, 9):
        s3_proxy.plant("stall", path=f"partNumber={number}", times=1000)
    moved: list[int] = []

    class FromTwoChunksOn(SystemClock):
        """Stands still before: however slow the machine is, so much is moved."""

        def now(self):
            return super().now() if sum(moved) >= 2 * CHUNK else 0.0

    store = RetryingStore(proxied()._store, StoreRetryPolicy(stall_timeout_s=0.5), clock=FromTwoChunksOn())
    with pytest.raises(StorageError, match=r"cannot upload .*large: no progress for 0.5 s") as raised:
        store.upload(tmp_path / "source", "large", moved.append)
    num_bytes = int(str(raised.value).partition("after ")[2].partition(" bytes")[0])
    assert 2 * CHUNK <= num_bytes < 8 * CHUNK
    assert store.list_entries() == []


def test_a_store_that_is_opened_without_a_policy_is_as_patient_as_the_settings_say(s3_proxy, monkeypatch):
    """As by whoever reads a checkpoint."""
    for name, value in {**s3_variables(s3_proxy.authority), "PACELINE_STORAGE_PATIENCE_S": "0.5"}.items():
        monkeypatch.setenv(name, value)
    s3_proxy.plant("stall", times=1000)
    with pytest.raises(StorageError, match=r"cannot read .*: no progress for 0.5 s"):
        open_store_at(f"s3://{BUCKET}/faults").read("key")


@pytest.mark.slow
def test_a_process_ends_though_a_call_of_its_own_is_stuck(client, s3_proxy, run_script):
    s3_proxy.plant("stall", times=1000)
    source = f"""
from paceline._storage import address
from paceline._storage.retrying_store import StoreRetryPolicy
if {client!r} == "pyarrow":
    address.find_spec = lambda name: None
store = address.open_store_at("s3://{BUCKET}/x", retry_policy=StoreRetryPolicy(stall_timeout_s=0.5))
try:
    store.write("key", b"x")
except OSError as error:
    print(error)
"""
    ended = run_script(source, env=s3_variables(s3_proxy.authority))
    assert "no progress for 0.5 s" in ended.stdout, ended.stderr
    assert ended.returncode == 0
