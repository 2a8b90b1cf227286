"""Runs that are under way while a test asks them for something: driven by a thread, with real workers."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paceline import train
from paceline._control.events import Event, Reported, WorkerReady
from paceline._control.journal import JournalReader
from paceline._control.requests import Answer, StopRequest, UserRequest, send_request
from paceline._storage.run_location import RunLocation
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, TrainingInterrupt

WITHIN_S = 60.0


class Live:
    """A run that is being driven, and what came of it."""

    def __init__(self, fit: Callable[[], Any], home: RunLocation) -> None:
        self.home = home
        self.outcome: Any = None
        self.interrupt: TrainingInterrupt | None = None
        self._thread = threading.Thread(target=self._run, args=(fit,), name="a-driver")
        self._thread.start()

    @property
    def path(self) -> Path:
        return self.home.layout.root

    @property
    def events(self) -> list[Event]:
        return list(JournalReader(self.home.layout.journal)) if self.home.layout.journal.exists() else []

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < end, "it did not come to that in time"
            assert self._thread.is_alive() or holds(), f"the run has ended: {self.outcome}"
            time.sleep(0.02)

    def until_reported(self, number: int = 1, ranks: int = 1) -> None:
        self.until(lambda: len({(e.rank, e.seq) for e in self.of(Reported)}) >= number * ranks)

    def pids(self) -> dict[int, int]:
        return {event.rank: event.pid for event in self.of(WorkerReady)}

    def ask(self, want: UserRequest, timeout_s: float = WITHIN_S) -> Answer:
        return send_request(self.home, want, timeout_s)

    def ended(self) -> Any:
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive(), "the run goes on"
        return self.outcome

    def _run(self, fit: Callable[[], Any]) -> None:
        try:
            self.outcome = fit()
        except TrainingInterrupt as error:
            self.interrupt, self.outcome = error, error.result
        except BaseException as error:
            self.outcome = error


class PendingRequest:
    """A request that is under way while the test does something else."""

    def __init__(self, home: RunLocation, want: UserRequest) -> None:
        self._answers: list[Answer] = []
        self._accepted = threading.Event()
        self._thread = threading.Thread(target=self._ask, args=(home, want))
        self._thread.start()

    def wait_until_accepted(self) -> None:
        assert self._accepted.wait(WITHIN_S), self._answers

    def answer(self) -> Answer:
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive(), "nobody has answered"
        return self._answers[0]

    def _ask(self, home: RunLocation, want: UserRequest) -> None:
        self._answers.append(send_request(home, want, 2 * WITHIN_S, on_accepted=lambda answer: self._accepted.set()))


@contextlib.contextmanager
def live(
    function: Callable[..., Any],
    path: Path,
    *,
    config: dict[str, Any] | None = None,
    workers: int = 1,
    max_failures: int = 0,
    trainer: Callable[..., Any] = DataParallelTrainer,
    use_gpu: bool = False,
    on_stop: str = "raise",
) -> Iterator[Live]:
    """A run of this function; whatever the test does, it is over afterwards."""
    fitted = trainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=use_gpu),
        run_config=RunConfig(
            name=path.name,
            storage_path=str(path.parent),
            failure_config=FailureConfig(max_failures=max_failures),
            on_stop=on_stop,
        ),
    )
    run = Live(fitted.fit, RunLocation.from_path(str(path)))
    try:
        yield run
    finally:
        run.ask(StopRequest(now=True))
        run.ended()


def run_command(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "paceline", *arguments], capture_output=True, text=True, **options)


def counting(config: dict[str, Any]) -> None:
    """Counts, a report for each number, and saves where it stands when it is asked to stop."""
    begun = train.get_checkpoint()
    first = begun.to_dict()["n"] + 1 if begun else 1
    for n in range(first, config["until"] + 1):
        train.report({"n": n}, checkpoint_on_stop=lambda n=n: Checkpoint.from_dict({"n": n}))
        if not Path(config["hurry"]).exists():
            time.sleep(0.01)


def standing(config: dict[str, Any]) -> None:
    """Reports once, and then does nothing until it is let go."""
    train.report({"n": 1})
    Path(config["at"], f"stands_{train.get_context().get_world_rank()}").touch()
    while not Path(config["at"], "go").exists():
        time.sleep(0.01)
