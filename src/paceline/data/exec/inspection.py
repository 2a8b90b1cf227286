"""Says what a data process is doing, from a thread of its own: the main thread may be stuck in a user's function."""

from __future__ import annotations

import contextlib
import socket
import threading

from paceline._core.frames import capture_stack
from paceline._engine.stacks import sample_stacks
from paceline.data.exec import messages as m
from paceline.data.exec.message_socket import MessageSocket
from paceline.data.planning.plan import Transform
from paceline.data.transforms.user_calls import UnitCalls

_PROCESS = "paceline.data.exec.process"


def start_inspection() -> socket.socket:
    """Start the thread; return the end of its connection that is for the service."""
    ours, theirs = socket.socketpair()
    wire = MessageSocket(ours, m.SampleProcess)
    threading.Thread(target=_answer_requests, args=(wire,), name="paceline-inspection", daemon=True).start()
    return theirs


def _answer_requests(wire: MessageSocket) -> None:
    with contextlib.suppress(ConnectionError):  # the service is gone, and this process will be
        while (request := wire.take_message()) is not None:
            sample = sample_stacks(0, 0, request.number)
            wire.send_message(m.ProcessSampled(sample, *_find_stage()))


def _find_stage() -> tuple[str, bool]:
    """The transform that the main thread is in, empty if none; and whether it waits for the service."""
    is_waiting = False
    for frame in capture_stack(threading.main_thread().ident or 0):
        owner = frame.f_locals.get("self")
        if frame.f_globals.get("__name__") == _PROCESS and frame.f_code.co_name == "_receive_next":
            is_waiting = True
        elif isinstance(owner, UnitCalls):
            return owner.transform.name, is_waiting
        elif isinstance(owner, Transform):
            return owner.name, is_waiting
        elif frame.f_code.co_name == "read" and hasattr(owner, "num_rows"):
            return "", is_waiting  # a unit, from which a transform takes rows
    return "", is_waiting
