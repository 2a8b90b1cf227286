"""A code bundle on a node: it exists while a process uses it, and is removed after the last."""

import subprocess
import sys
import types
from pathlib import Path

import msgspec
import pytest

from paceline._engine.ray.code_bundle import PackedCode, find_user_modules, pack_code
from paceline._engine.ray.node_code import HeldDirectory, has_same_files
from processes import wait_until

HOLDER = """
import sys
from pathlib import Path
import msgspec
from paceline._engine.ray.code_bundle import CodeManifest
from paceline._engine.ray.node_code import unpack_code
parcel = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=CodeManifest)
print(unpack_code(parcel, Path(sys.argv[2]).read_bytes(), Path(sys.argv[3])), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parcel(tmp_path: Path) -> PackedCode:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "alone.py").write_text("x = 1")
    module = types.ModuleType("alone")
    module.__file__ = str(tmp_path / "home" / "alone.py")
    return pack_code(find_user_modules({"alone": module}, [tmp_path / "home"]))


@pytest.fixture
def hold(tmp_path: Path, parcel: PackedCode):
    (tmp_path / "parcel").write_bytes(msgspec.json.encode(parcel.manifest))
    (tmp_path / "data").write_bytes(parcel.data)
    holders = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, *(str(tmp_path / name) for name in ("parcel", "data", "node"))]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        holders.append(holder)
        return holder

    yield start
    for holder in holders:
        holder.kill()
        holder.communicate()


def test_unpacked_code_exists_until_its_last_holder_is_killed(tmp_path: Path, hold) -> None:
    holders = [hold() for _ in range(3)]
    places = {holder.stdout.readline().strip() for holder in holders}
    assert len(places) == 1
    (place,) = map(Path, places)
    assert (place / "0" / "alone.py").read_text() == "x = 1"
    for holder in holders[:2]:
        holder.kill()
        holder.wait()
    late = hold()
    assert late.stdout.readline().strip() == str(place)
    holders[2].kill()
    holders[2].wait()
    assert (place / "0" / "alone.py").exists()
    late.kill()
    late.wait()
    wait_until(lambda: not [*(tmp_path / "node").iterdir()])


def test_a_directory_that_its_process_releases_is_removed_while_the_process_lives(tmp_path: Path) -> None:
    first, second = (HeldDirectory(tmp_path / "held") for _ in range(2))
    first.release()
    assert (tmp_path / "held").is_dir()
    second.release()
    wait_until(lambda: not [*tmp_path.iterdir()])


def test_does_not_use_a_half_unpacked_directory(tmp_path: Path, hold, parcel: PackedCode) -> None:
    half = tmp_path / "node" / f"{parcel.manifest.digest}.half"
    half.mkdir(parents=True)
    half.parent.chmod(0o700)
    (half / "wrong").touch()
    place = Path(hold().stdout.readline().strip())
    assert [path.name for path in place.iterdir()] == ["0"]


def test_refuses_to_unpack_where_others_may_write(tmp_path: Path, hold) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "node").chmod(0o777)
    holder = hold()
    assert holder.stdout.readline() == ""
    assert holder.wait() != 0
    assert [*(tmp_path / "node").iterdir()] == []


def test_a_node_with_identical_files_needs_none(tmp_path: Path, parcel: PackedCode) -> None:
    (tree,) = parcel.manifest.trees
    assert has_same_files(tree)
    (tmp_path / "home" / "alone.py").write_text("x = 2")
    assert not has_same_files(tree)
    (tmp_path / "home" / "alone.py").unlink()
    assert not has_same_files(tree)
