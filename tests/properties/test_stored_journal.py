"""The journal in a store, for drivers that take over from each other and puts that arrive when they want to."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import event, given
from hypothesis import strategies as st

from paceline._storage.files import LocalFiles
from paceline._storage.journal_segments import open_stored_journal, read_stored_journal
from paceline._storage.lease import NoFence
from paceline._storage.store import StoreEntry
from paceline._view.journal.tail import RemoteJournalTail


class LateStore:
    """Puts may fail and arrive later, in any order; without conditional puts they replace what they find."""

    uri = "late://run"

    def __init__(self, has_conditional_puts):
        self.has_conditional_puts = has_conditional_puts
        self.objects, self.late = {}, []
        self.is_late = False

    def create(self, key, data):
        if key in self.objects:
            return False
        if self.is_late:
            self.late.append((key, data))
            raise TimeoutError
        self.objects[key] = data
        return True

    def let_arrive(self, index):
        key, data = self.late.pop(index % len(self.late))
        if not self.has_conditional_puts or key not in self.objects:
            self.objects[key] = data

    def read(self, key):
        return self.objects[key]

    def list_entries(self, prefix=""):
        return [StoreEntry(key, len(self.objects[key])) for key in sorted(self.objects) if key.startswith(prefix)]


class Fence(NoFence):
    """Of a driver that never learns that it lost the run."""

    def __init__(self, number):
        self.number = number


class Driver:
    def __init__(self, store, number, folder):
        self.store, self.number, self.path = store, number, folder / f"{number}.jsonl"
        self.path.touch()
        self.uploader = open_stored_journal(store, LocalFiles(), self.path, Fence(number))
        self.num_written = 0

    @property
    def journal(self):
        return self.path.read_bytes()

    def upload(self, num_lines, is_late):
        with self.path.open("ab") as file:
            for _ in range(num_lines):
                self.num_written += 1
                file.write(b"%d:%d\n" % (self.number, self.num_written))
        self.store.is_late = is_late
        try:
            self.uploader.upload_new()
        except TimeoutError:
            return False
        return True


def read_on(tail, followed, is_torn=False):
    if tail.reset_if_replaced():
        event("what was followed gave way to the lines of a later driver")
        followed = b""
    while data := tail.read_new():
        # A torn line is read again, with those behind it.
        end = data.rfind(b"\n", 0, -1) + 1 if is_torn else len(data)
        followed += data[:end]
        tail.mark_read(data, end)
        if is_torn:
            break
    return followed


steps = st.lists(
    st.one_of(
        st.just(("take over",)),
        st.tuples(st.just("upload"), st.integers(0, 3), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("arrive"), st.integers(0, 9)),
        st.tuples(st.just("follow"), st.booleans()),
    ),
    max_size=25,
)


@given(st.booleans(), steps)
def test_readers_see_one_journal_with_all_that_holders_know_to_be_stored(has_conditional_puts, steps):
    with TemporaryDirectory() as folder:
        store = LateStore(has_conditional_puts)
        drivers = [Driver(store, 1, Path(folder))]
        tail, followed, acknowledged = RemoteJournalTail(store), b"", b""
        for step in steps:
            match step:
                case ("take over",):
                    drivers.append(Driver(store, len(drivers) + 1, Path(folder)))
                case ("upload", age, num_lines, is_late):
                    driver = drivers[max(0, len(drivers) - 1 - age)]
                    is_stored = driver.upload(num_lines, is_late)
                    if is_stored and driver.num_written and driver is drivers[-1]:
                        acknowledged = driver.journal
                case ("arrive", index) if store.late:
                    store.let_arrive(index)
                case ("follow", is_torn):
                    followed = read_on(tail, followed, is_torn)
            journal = read_stored_journal(store)
            assert journal.startswith(acknowledged), "the holder knew these lines to be stored"
            assert any(driver.journal.startswith(journal) for driver in drivers), "nobody wrote this journal"
        while store.late:
            store.let_arrive(0)
        assert read_on(tail, followed) == read_stored_journal(store)
