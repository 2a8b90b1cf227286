"""Metrics to MLflow, through its tracking client.

The client lives in a thread of its own: the first that a database file hears of it takes seconds, and a server that
does not answer is asked for minutes. Meanwhile the driver goes on, and what it gives is sent together afterwards.
"""

from __future__ import annotations

import hashlib
import math
import os
import posixpath
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from paceline.train.backend import require
from paceline.train.callbacks import LoggedCheckpoint, LoggedReport, LoggedRun, LoggerCallback
from paceline.train.result import flat

_TAG = "paceline.run"
"""By which a run is found again."""
_MOST_AT_ONCE = 1000
"""Metrics in one request, as the server allows."""
_PARAM_LENGTH = 6000
_NAME_LENGTH = 250
_PARAMS_AT_ONCE = 100
_PATIENCE_S = 30.0
"""How long the driver waits for an answer, where it has to."""
_MAKING = threading.Lock()
"""Of trials that begin at once, one makes the database and the experiment."""


class MLflowLoggerCallback(LoggerCallback):
    """Logs every metric that is a number to an MLflow run, at the step of its report, and the config as parameters.

    Of a checkpoint, a small JSON file among the artifacts tells where it is; its files stay there. The arguments are
    those of MLflow's client; `tracking_uri` may be a file of this machine, such as
    `sqlite:///mlflow.db`. A run of ours that continues goes on with the same MLflow run. MLflow keeps every point:
    reports that restarted workers make again follow those from before, at the same steps.

    Training does not wait for MLflow. At the end, and when a run continues, the driver waits until it has everything,
    unless it answers nothing for 30 s: what is missing then is logged when the script is run again.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        registry_uri: str | None = None,
        experiment_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
        tracking_token: str | None = None,
        save_artifact: bool = False,
    ) -> None:
        require("MLflowLoggerCallback", ("mlflow",), "mlflow")
        self._tracking_uri = tracking_uri
        self._registry_uri = registry_uri
        self._experiment_name = experiment_name
        self._tags = {str(name): str(value) for name, value in (tags or {}).items()}
        self._tracking_token = tracking_token
        self._save_artifact = save_artifact
        self._client: Any = None
        self._run_id = ""
        self._directory = ""
        self._sender: _Sender | None = None

    def for_trial(self, search: str, run: str) -> Self:
        """Trials are runs of one experiment, which has the name of the search where no other is given."""
        copied = super().for_trial(search, run)
        copied._experiment_name = self._experiment_name or search
        return copied

    def log_start(self, run: LoggedRun) -> None:
        self._directory = str(run.directory)
        sender = self._sender = _Sender(self._send)
        sender.give(lambda: self._begin(run))
        if run.continues:
            # Before the journal grows: what this driver adds to it is not past.
            sender.wait(_PATIENCE_S)

    def log_report(self, report: LoggedReport) -> None:
        assert self._sender is not None
        self._sender.give(report)

    def log_checkpoint(self, checkpoint: LoggedCheckpoint) -> None:
        assert self._sender is not None
        about = {
            "uri": checkpoint.uri,
            "step": checkpoint.number,
            "num_bytes": checkpoint.num_bytes,
            "metrics": {name: _told(value) for name, value in flat(checkpoint.metrics).items()},
        }
        file = f"checkpoints/{checkpoint.name}.json"
        self._sender.give(lambda: self._client.log_dict(self._run_id, about, file))

    def log_end(self, failed: bool) -> None:
        if self._sender is not None:
            self._sender.give(lambda: self._end(failed))
            # How long files take, nobody can say.
            self._sender.wait(math.inf if self._save_artifact else _PATIENCE_S)
            self._sender.close()
        self._client, self._sender, self._run_id = None, None, ""

    # These run in the sender's thread.

    def _begin(self, run: LoggedRun) -> None:
        from mlflow.tracking import MlflowClient

        if self._tracking_token is not None:
            os.environ["MLFLOW_TRACKING_TOKEN"] = self._tracking_token
        with _MAKING:
            client = self._client = MlflowClient(tracking_uri=self._tracking_uri, registry_uri=self._registry_uri)
            experiment = self._experiment_id(self._experiment_name or run.context.run_id)
        mark = hashlib.sha256(run.uri.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        known = self._found(experiment, mark) if run.continues else None
        if known is None:
            tags = {**self._tags, _TAG: mark}
            self._run_id = client.create_run(experiment, tags=tags, run_name=run.context.run_id).info.run_id
            self._log_params(run.context.train_loop_config)
            self._log(self._metrics(report) for report in run.past)
        else:
            self._run_id = known
            client.update_run(known, status="RUNNING")
            self._log_missing(run.past)

    def _send(self, reports: list[LoggedReport]) -> None:
        self._log(self._metrics(report) for report in reports)

    def _end(self, failed: bool) -> None:
        if self._save_artifact:
            self._client.log_artifacts(self._run_id, self._directory)
        self._client.set_terminated(self._run_id, status="FAILED" if failed else "FINISHED")

    def _experiment_id(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        experiment: str = found.experiment_id if found is not None else self._client.create_experiment(name)
        return experiment

    def _found(self, experiment: str, mark: str) -> str | None:
        found = self._client.search_runs(
            [experiment], f"tags.`{_TAG}` = '{mark}'", max_results=1, order_by=["attributes.start_time DESC"]
        )
        return found[0].info.run_id if found else None

    def _log_params(self, config: Any) -> None:
        from mlflow.entities import Param

        if not isinstance(config, Mapping):
            return
        known = {_key(name): value for name, value in flat({str(k): v for k, v in config.items()}).items()}
        params = [Param(name, str(value)[:_PARAM_LENGTH]) for name, value in known.items()]
        for begin in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(self._run_id, params=params[begin : begin + _PARAMS_AT_ONCE])

    def _log_missing(self, past: Iterable[LoggedReport]) -> None:
        """Of what the journal tells, what the driver before had not come to log."""
        known: dict[str, set[tuple[int, int]]] = {}

        def is_missing(metric: Any) -> bool:
            if metric.key not in known:
                history = self._client.get_metric_history(self._run_id, metric.key)
                known[metric.key] = {(point.step, point.timestamp) for point in history}
            return (metric.step, metric.timestamp) not in known[metric.key]

        self._log([metric for metric in self._metrics(report) if is_missing(metric)] for report in past)

    def _metrics(self, report: LoggedReport) -> list[Any]:
        from mlflow.entities import Metric

        at = int(report.time * 1000)
        numbers = {_key(name): value for name, value in flat(report.metrics).items() if isinstance(value, int | float)}
        return [Metric(name, _number(value), at, report.number) for name, value in numbers.items()]

    def _log(self, reports: Iterable[list[Any]]) -> None:
        assert self._sender is not None
        waiting: list[Any] = []
        for metrics in reports:
            waiting += metrics
            while len(waiting) >= _MOST_AT_ONCE:
                self._client.log_batch(self._run_id, metrics=waiting[:_MOST_AT_ONCE])
                self._sender.heard()
                del waiting[:_MOST_AT_ONCE]
        if waiting:
            self._client.log_batch(self._run_id, metrics=waiting)


class _Sender:
    """A thread that does one thing after the other. The first that fails is its last, and who comes next is told."""

    def __init__(self, send: Callable[[list[LoggedReport]], object]) -> None:
        self._send = send
        self._changed = threading.Condition()
        """Protects all that follows."""
        self._ahead: deque[LoggedReport | Callable[[], object]] = deque()
        self._is_busy = False
        self._is_closed = False
        self._problem: BaseException | None = None
        self._answered_at = 0.0
        self._thread = threading.Thread(target=self._work, name="paceline-mlflow", daemon=True)
        self._thread.start()

    def give(self, what: LoggedReport | Callable[[], object]) -> None:
        """Reports that follow one another are sent together."""
        with self._changed:
            if self._problem is not None:
                raise self._problem
            self._ahead.append(what)
            self._changed.notify_all()

    def heard(self) -> None:
        """MLflow has answered."""
        with self._changed:
            self._answered_at = time.monotonic()

    def wait(self, patience_s: float) -> None:
        """Until all is done that was given, or MLflow has answered nothing for so long."""
        self.heard()
        with self._changed:
            while self._problem is None and (self._ahead or self._is_busy):
                left_s = self._answered_at + patience_s - time.monotonic()
                if left_s <= 0:
                    self._is_closed = True
                    raise TimeoutError(
                        f"MLflow has not answered for {patience_s:g} s\n\n"
                        "hint: when it answers again, run the script again: what it lacks is logged from the journal"
                    )
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
            if self._problem is not None:
                raise self._problem

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            problem = None
            try:
                job()
            except (Exception, SystemExit) as error:  # noqa: BLE001  raised again in the driver's thread
                problem = error
            with self._changed:
                self._is_busy, self._problem, self._answered_at = False, problem, time.monotonic()
                self._changed.notify_all()
            if problem is not None:
                return

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ahead or self._is_closed)
            if self._is_closed:
                return None
            self._is_busy = True
            first = self._ahead.popleft()
            if not isinstance(first, LoggedReport):
                return first
            together = [first]
            while self._ahead and len(together) < _MOST_AT_ONCE:
                if not isinstance(one := self._ahead[0], LoggedReport):
                    break
                together.append(one)
                self._ahead.popleft()
            return lambda: self._send(together)


def _key(name: str) -> str:
    """A name as MLflow allows it: few characters, and none that leads elsewhere where names are those of files."""
    plain = re.sub(r"[^\w\-. /]", "_", name)
    parts = ["_" * len(part) if part in (".", "..") else part for part in plain.split("/") if part]
    return posixpath.join("", *parts)[:_NAME_LENGTH].rstrip("/") or "_"


def _told(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value if isinstance(value, bool | int | float | None) else str(value)


def _number(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
