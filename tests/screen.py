"""A terminal: runs a program on a pseudo-terminal, and plays what it wrote to a screen."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

# By the program itself: a function between fork and exec would run in a copy of all threads that tests have left here.
_TAKES_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); del fcntl, termios;"
HIDE, SHOW, OTHER_SCREEN = "\x1b[?25l", "\x1b[?25h", "\x1b[?1049h"


def run_on_terminal(script, *args, cwd, width=80, height=24, timeout=240, env=None, act=None, **streams):
    """How the program ended, and everything that came out of its terminal.

    `act(text, keys)` is called whenever more came out, with all of it and where to type to the program; the terminal is
    the program's own then, and Ctrl-C an interrupt. Where it returns "leave", the terminal is closed.
    """
    ours, its = pty.openpty()
    resize(its, width, height)
    source = cwd / "on_terminal.py"
    source.write_text(script if act is None else _TAKES_TERMINAL + script)
    env = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", **(env or {})}
    options = {"stdin": its, "stdout": its, "stderr": its, "start_new_session": act is not None, **streams}
    process = subprocess.Popen([sys.executable, str(source), *args], cwd=cwd, env=env, **options)
    os.close(its)
    data = b""
    try:
        try:
            while read := _read(ours):
                data += read
                if act is not None and act(data.decode(errors="ignore"), ours) == "leave":
                    break
        finally:
            os.close(ours)
        return process.wait(timeout), data.decode()
    finally:
        process.kill()
        process.wait()


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # How Linux tells that nobody has the other end any more.
        return b""


def resize(terminal, width, height):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))


def render_screen(text, width=80):
    """The lines that are on the screen, and above it, in the end."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", text):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part[0] != "\x1b":
            while part:
                if column == width:
                    row, column = row + 1, 0
                    lines += [""] * (row + 1 - len(lines))
                now, part = part[: width - column], part[width - column :]
                lines[row] = lines[row].ljust(column)[:column] + now + lines[row][column + len(now) :]
                column += len(now)
        elif part[-1] == "A":
            row -= int(part[2:-1] or 1)
            assert row >= 0, "it went up beyond what it had written"
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part[-1] not in "mhl":
            raise AssertionError(f"{part!r} is not known to this terminal")
    return [line.rstrip() for line in lines]
