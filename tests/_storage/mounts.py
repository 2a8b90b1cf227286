"""Filesystems of other kinds, mounted where only one thread, and what it starts, sees them."""

import contextlib
import ctypes
import os
import shutil
import subprocess
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

_CLONE_NEWNS = 0x20000
_libc = ctypes.CDLL(None, use_errno=True)


def run_with_mounts(call):
    """The result of a call in a thread of its own, whose mounts nobody else sees and which vanish with it."""
    outcome = Future()

    def work():
        try:
            if _libc.unshare(_CLONE_NEWNS):
                pytest.skip(f"private mounts need more rights ({os.strerror(ctypes.get_errno())})")
            _run("mount", "--make-rprivate", "/", what="private mounts")
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return outcome.result()


@contextlib.contextmanager
def mount_tmpfs(below, size):
    root = below / "tmpfs"
    root.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", root, what="private mounts of tmpfs")
    with _unmounted(root):
        yield root


@contextlib.contextmanager
def mount_overlay(below):
    lower, upper, work, root = (below / name for name in ("lower", "upper", "work", "overlay"))
    for path in (lower, upper, work, root):
        path.mkdir(exist_ok=True)
    layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
    _run("mount", "-t", "overlay", "-o", layers, "overlay", root, what="private mounts of overlay")
    with _unmounted(root):
        yield root


@contextlib.contextmanager
def mount_fuse(below):
    """The same files once more, through a process: whatever it does not know, the filesystem does not know."""
    source, root = below / "source", below / "fuse"
    source.mkdir()
    root.mkdir()
    if shutil.which("bindfs") is None:
        pytest.skip("FUSE needs Debian's package bindfs")
    # In the foreground, so that it is a child; and ended with this thread, however that ends.
    command = ["setpriv", "--pdeathsig", "KILL", "bindfs", "-f", str(source), str(root)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        # It does not say when it serves: asked for until it does, or has ended.
        while not os.path.ismount(root):
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, problem = process.communicate(timeout=0.02)
                pytest.skip(f"FUSE cannot be mounted here ({problem.decode().strip()})")
        with _unmounted(root):
            yield root


@contextlib.contextmanager
def _unmounted(root):
    try:
        yield
    finally:
        subprocess.run(["umount", str(root)], check=True)


def _run(*command, what):
    mounted = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"{what} need more rights ({mounted.stderr.strip()})")


def is_written_directly(directory: Path) -> bool:
    """Whether the filesystem takes a page past the page cache."""
    import mmap

    path = directory / "probe"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    except OSError:
        return False
    try:
        return os.pwrite(fd, mmap.mmap(-1, 4096), 0) == 4096
    except OSError:
        return False
    finally:
        os.close(fd)
        path.unlink()
