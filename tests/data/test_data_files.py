"""From paths to files: what is found, in which order, under which name, and what is said when nothing is."""

import os
import pickle
import re
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import fs

from paceline.data.sources.files import InputFile, explain_read_errors, list_files


@pytest.fixture
def tree(tmp_path):
    """Some files, and the working directory's own name in none of them."""
    for name in (
        "a/x.csv",
        "a/y.csv.gz",
        "a/_hidden.csv",
        "a/.hidden.csv",
        "b/year=2024/part=x%2Fy/p.csv",
        "b/year=2025/part=__HIVE_DEFAULT_PARTITION__/p.csv",
        "b/_delta_log/0.csv",
        "top.CSV",
        "we[i]rd.csv",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a\n1\n")
    return tmp_path


def names(*args, **kwargs):
    return [file.name for file in list_files(*args, **kwargs)]


A, B = ["x.csv", "y.csv.gz"], ["year=2024/part=x%2Fy/p.csv", "year=2025/part=__HIVE_DEFAULT_PARTITION__/p.csv"]
ALL = [*(f"a/{name}" for name in A), *(f"b/{name}" for name in B), "top.CSV", "we[i]rd.csv"]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a/", A),
        ("", ALL),
        ("a/x.csv", ["x.csv"]),
        ("a/*.csv", ["x.csv"]),
        ("a/_*.csv", ["_hidden.csv"]),
        ("*/?.csv*", ["a/x.csv", "a/y.csv.gz"]),
        ("**/*.csv", ["a/x.csv", *(f"b/{name}" for name in B), "we[i]rd.csv"]),
        ("b/year=2024/*/p.csv", ["part=x%2Fy/p.csv"]),
        ("b/year=*", B),
        ("we[i]rd.csv", ["we[i]rd.csv"]),
        ("[ab]/x*", ["a/x.csv"]),
    ],
)
def test_a_path_is_a_file_a_directory_or_a_pattern(tree, path, found):
    assert names(f"{tree}/{path}") == found
    assert names(f"file://{quote(f'{tree}/{path}')}") == found


def test_paths_keep_their_order_and_may_begin_anywhere(tree, monkeypatch):
    assert names([tree / "we[i]rd.csv", tree / "a"]) == ["we[i]rd.csv", *A]
    same_names = [str(tree / "b" / name) for name in B]
    assert names(same_names) == same_names, "files of one name are told apart by their paths"
    monkeypatch.setenv("HOME", str(tree))
    assert list_files("~/a/x.csv")[0].path == f"{tree}/a/x.csv"
    monkeypatch.chdir(tree)
    assert [file.path for file in list_files("a")] == [f"{tree}/a/x.csv", f"{tree}/a/y.csv.gz"]


def test_extensions_leave_out_other_files_of_directories_but_not_one_that_is_named(tree):
    assert names(tree / "a", file_extensions=["csv"]) == ["x.csv"]
    assert names(tree, file_extensions=[".CSV.gz"]) == ["a/y.csv.gz"]
    assert names(tree / "a/x.csv", file_extensions=["parquet"]) == ["x.csv"]
    with pytest.raises(FileNotFoundError, match=r"no file ending in .parquet in the directory .*, only 2 .* as x.csv"):
        list_files(tree / "a", file_extensions=["parquet"])


def test_directories_of_partitions_give_columns(tree):
    first, second = list_files(tree / "b")
    assert first.partition == (("year", 2024), ("part", "x/y"))
    assert second.partition == (("year", 2025), ("part", None))
    assert list_files(tree)[0].partition == (("year", None), ("part", None))
    assert list_files(tree / "b", partitioning=None)[0].partition == ()


@pytest.mark.parametrize(
    ("values", "typed"),
    [("-1 02", [-1, 2]), ("1 x", ["1", "x"]), ("² 2", ["²", "2"]), (f"{2**63} 1", [str(2**63), "1"])],
)
def test_a_partition_is_a_number_where_all_its_values_are(tmp_path, values, typed):
    paths = [tmp_path / f"k={value}" / "f" for value in values.split()]
    for path in paths:
        path.parent.mkdir()
        path.write_text("")
    assert [dict(file.partition)["k"] for file in list_files(paths)] == typed


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a/nowhere.csv", "nowhere.csv': no file or directory"),
        ("*.parquet", "no file matches the pattern"),
        ("nowhere/*.csv", "no file matches the pattern"),
        ("empty", "no file in the directory"),
    ],
)
def test_a_path_that_leads_nowhere_is_named(tree, path, message):
    (tree / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=re.escape(message)):
        list_files(f"{tree}/{path}")


def test_ignores_missing_paths_on_request_unless_all_are_missing(tree):
    assert names([tree / "nowhere", tree / "a", f"{tree}/nor/*.csv"], ignore_missing_paths=True) == A
    with pytest.raises(FileNotFoundError, match="no files found in "):
        list_files([tree / "nowhere", tree / "nor/here"], ignore_missing_paths=True)
    (tree / "a/dangling.csv").symlink_to(tree / "gone.csv")
    with pytest.raises(OSError, match=r"dangling\.csv"):
        list_files(tree / "a")


def _memory(tree):
    filesystem = MemoryFileSystem()
    filesystem.put(str(tree / "a"), f"{tree}/a", recursive=True)
    return filesystem, f"{tree}/a"


FILESYSTEMS = {
    "pyarrow": lambda tree: (fs.LocalFileSystem(), f"{tree}/a"),
    "pyarrow, a subtree": lambda tree: (fs.SubTreeFileSystem(str(tree / "a"), fs.LocalFileSystem()), "/"),
    "fsspec, in memory": _memory,
    "fsspec, a directory": lambda tree: (DirFileSystem(str(tree / "a"), LocalFileSystem()), "/"),
}


@pytest.mark.parametrize("make", FILESYSTEMS.values(), ids=FILESYSTEMS.keys())
def test_any_filesystem_will_do(tree, make):
    filesystem, root = make(tree)
    assert names(root, filesystem=filesystem) == A
    at = root.rstrip("/") and f"{root}/"
    assert names(f"{at}*.gz", filesystem=filesystem) == ["y.csv.gz"]
    (file,) = list_files(f"{at}x.csv", filesystem=filesystem)
    copies = [pickle.loads(pickle.dumps(file)) for _ in range(2)]
    assert copies[0].read() == b"a\n1\n"
    assert copies[0].fs_handle is copies[1].fs_handle, "copies share a filesystem"
    assert file.size == 4
    with pytest.raises(FileNotFoundError, match=r"nowhere"):
        list_files(f"{at}nowhere", filesystem=filesystem)


def test_a_directory_that_fsspec_cannot_list_is_named_not_passed_over(tree):
    class Closed(LocalFileSystem):
        cachable = False

        def ls(self, path, detail=False, **kwargs):
            if path.endswith("/a"):
                raise PermissionError(13, "not for you", path)
            return super().ls(path, detail, **kwargs)

    with pytest.raises(PermissionError, match=r"cannot access \S*/a: "):
        list_files(str(tree), filesystem=Closed())


def test_http_goes_through_fsspec(tree):
    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, *args): ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(tree))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/a/x.csv"
        filesystem = fsspec.filesystem("http", skip_instance_cache=True)
        (file,) = list_files(url, filesystem=filesystem)
        assert (file.name, str(file), file.read()) == ("x.csv", url, b"a\n1\n")
        server.shutdown()
        thread.join()
        session = filesystem._session
        fsspec.asyn.sync(filesystem.loop, session.close)


def test_what_goes_wrong_while_reading_is_said_with_the_file(tree):
    (file,) = list_files(tree / "a/x.csv")
    os.remove(tree / "a/x.csv")
    with pytest.raises(FileNotFoundError, match=r"a/x\.csv no longer exists"):
        file.read()
    with pytest.raises(ValueError, match=r"x\.csv as a poem: it does not rhyme"), explain_read_errors(file, "a poem"):
        raise ValueError("it does not rhyme")
    with pytest.raises(PermissionError, match=r"cannot read \S*a/x\.csv"), explain_read_errors(file, "a poem"):
        raise PermissionError(13, "no")


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_packed_files_are_unpacked_and_a_truncated_one_is_named(tmp_path, suffix):
    path = tmp_path / f"x.txt.{suffix}"
    content = os.urandom(5000)
    with pa.output_stream(str(path), compression={"gz": "gzip", "zst": "zstd"}.get(suffix, suffix)) as stream:
        stream.write(content)
    (file,) = list_files(path)
    assert isinstance(file, InputFile)
    assert file.read() == content
    path.write_bytes(path.read_bytes()[:2500])
    with pytest.raises(OSError, match=rf"cannot read \S*x\.txt\.{suffix}"):
        list_files(path)[0].read()
