"""Log metrics to MLflow, through its tracking client.

The client runs in a thread of its own: the first access to a database file takes seconds, and the client retries an
unresponsive server for minutes. Meanwhile the driver continues, and its reports are sent together afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import posixpath
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

from paceline._core.arguments import flatten_dict
from paceline._worker import context as worker_context
from paceline.train import session
from paceline.train.backend import require
from paceline.train.callbacks import LoggedCheckpoint, LoggedReport, LoggedRun, LoggerCallback

_RUN_TAG = "paceline.run"
"""The tag by which a run is found again."""
_MAX_METRICS_PER_REQUEST = 1000
"""The server's limit."""
_MAX_PARAM_LENGTH = 6000
_DEFAULT_EXPERIMENT = "0"
_MAX_NAME_LENGTH = 250
_MAX_PARAMS_PER_REQUEST = 100
_ANSWER_TIMEOUT_S = 30.0
"""How long the driver waits for an answer when it must."""
_SETUP_LOCK = threading.Lock()
"""Lets only one of several starting trials create the database and the experiment."""


@dataclass(eq=False, repr=False)
class MLflowLoggerCallback(LoggerCallback):
    """Logs every numeric metric to an MLflow run, at the step of its report, and the config as parameters.

    For each checkpoint, a small JSON artifact contains its location; its files are not uploaded. The arguments are
    those of MLflow's client; `tracking_uri` may be a file on this machine, such as `sqlite:///mlflow.db`. A resumed run
    continues the same MLflow run. MLflow keeps every point: reports that restarted workers repeat follow the earlier
    ones, at the same steps.

    Training does not wait for MLflow. At the end, and when a run resumes, the driver waits until MLflow has everything,
    unless it does not respond for 30 s: the missing reports are then logged when the script is run again.
    """

    tracking_uri: str | None = None
    _: KW_ONLY
    registry_uri: str | None = None
    experiment_name: str | None = None
    tags: Mapping[str, Any] | None = None
    tracking_token: str | None = None
    save_artifact: bool = False
    log_params_on_trial_end: bool = False
    """Log the config when the run ends, for a server that counts runs by their parameters."""

    def __post_init__(self) -> None:
        require("MLflowLoggerCallback", ("mlflow",), "mlflow")
        self._client: Any = None
        self._run_id = ""
        self._directory = ""
        self._config: Any = None
        self._sender: _Sender | None = None

    def for_trial(self, search: str, run: str) -> Self:
        """Trials are runs of one experiment, by default named after the search."""
        copied = super().for_trial(search, run)
        copied.experiment_name = self.experiment_name or search
        return copied

    def log_start(self, run: LoggedRun) -> None:
        self._directory, self._config = str(run.directory), run.context.train_loop_config
        sender = self._sender = _Sender(lambda reports: self._log_metrics(map(_to_mlflow_metrics, reports)))
        sender.submit(lambda: self._start_run(run))
        if run.continues:
            # Wait before the journal grows: reports that this driver adds are not past.
            sender.wait(_ANSWER_TIMEOUT_S)

    def log_report(self, report: LoggedReport) -> None:
        assert self._sender is not None
        self._sender.submit(report)

    def log_checkpoint(self, checkpoint: LoggedCheckpoint) -> None:
        assert self._sender is not None
        content = {
            "uri": checkpoint.uri,
            "step": checkpoint.number,
            "num_bytes": checkpoint.num_bytes,
            "metrics": {name: _to_json_value(value) for name, value in flatten_dict(checkpoint.metrics).items()},
        }
        file = f"checkpoints/{checkpoint.name}.json"
        self._sender.submit(lambda: self._client.log_dict(self._run_id, content, file))

    def log_end(self, failed: bool) -> None:
        if self._sender is not None:
            self._sender.submit(lambda: self._end_run(failed))
            # There is no bound on the upload time of files.
            self._sender.wait(math.inf if self.save_artifact else _ANSWER_TIMEOUT_S)
            self._sender.close()
        self._client, self._sender, self._run_id = None, None, ""

    # These run in the sender's thread.

    def _start_run(self, run: LoggedRun) -> None:
        from mlflow.tracking import MlflowClient

        if self.tracking_token is not None:
            os.environ["MLFLOW_TRACKING_TOKEN"] = self.tracking_token
        with _SETUP_LOCK:
            client = self._client = MlflowClient(tracking_uri=self.tracking_uri, registry_uri=self.registry_uri)
            name = self.experiment_name or run.context.run_id
            existing = client.get_experiment_by_name(name)
            experiment = str(existing.experiment_id if existing is not None else client.create_experiment(name))
        mark = hashlib.sha256(run.uri.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        query, newest_first = f"tags.`{_RUN_TAG}` = '{mark}'", ["attributes.start_time DESC"]
        if run.continues and (runs := client.search_runs([experiment], query, max_results=1, order_by=newest_first)):
            self._run_id = runs[0].info.run_id
            client.update_run(self._run_id, status="RUNNING")
            self._log_missing(run.past)
        else:
            tags = {**{str(name): str(value) for name, value in (self.tags or {}).items()}, _RUN_TAG: mark}
            self._run_id = client.create_run(experiment, tags=tags, run_name=run.context.run_id).info.run_id
            if not self.log_params_on_trial_end:
                self._log_params(run.context.train_loop_config)
            self._log_metrics(map(_to_mlflow_metrics, run.past))

    def _end_run(self, failed: bool) -> None:
        if self.save_artifact:
            self._client.log_artifacts(self._run_id, self._directory)
        if self.log_params_on_trial_end:
            self._log_params(self._config)
        self._client.set_terminated(self._run_id, status="FAILED" if failed else "FINISHED")

    def _log_params(self, config: Any) -> None:
        from mlflow.entities import Param

        if not isinstance(config, Mapping):
            return
        # By key first: two names may have the same one.
        values = {_sanitize_key(name): value for name, value in flatten_dict(config).items()}
        params = [Param(name, str(value)[:_MAX_PARAM_LENGTH]) for name, value in values.items()]
        for begin in range(0, len(params), _MAX_PARAMS_PER_REQUEST):
            self._client.log_batch(self._run_id, params=params[begin : begin + _MAX_PARAMS_PER_REQUEST])

    def _log_missing(self, past: Iterable[LoggedReport]) -> None:
        """Log the journal's reports that the previous driver did not log."""
        logged: dict[str, set[tuple[int, int]]] = {}

        def is_missing(metric: Any) -> bool:
            if metric.key not in logged:
                history = self._client.get_metric_history(self._run_id, metric.key)
                logged[metric.key] = {(point.step, point.timestamp) for point in history}
            return (metric.step, metric.timestamp) not in logged[metric.key]

        self._log_metrics(filter(is_missing, _to_mlflow_metrics(report)) for report in past)

    def _log_metrics(self, reports: Iterable[Iterable[Any]]) -> None:
        assert self._sender is not None
        waiting: list[Any] = []
        for metrics in reports:
            waiting += metrics
            while len(waiting) >= _MAX_METRICS_PER_REQUEST:
                self._client.log_batch(self._run_id, metrics=waiting[:_MAX_METRICS_PER_REQUEST])
                self._sender.mark_answered()
                del waiting[:_MAX_METRICS_PER_REQUEST]
        if waiting:
            self._client.log_batch(self._run_id, metrics=waiting)


def setup_mlflow(
    config: Mapping[str, Any] | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
    experiment_id: str | None = None,
    experiment_name: str | None = None,
    tracking_token: str | None = None,
    artifact_location: str | None = None,
    run_name: str | None = None,
    create_experiment_if_not_exists: bool = False,
    tags: Mapping[str, Any] | None = None,
    rank_zero_only: bool = True,
) -> Any:
    """Start an MLflow run in a train function or trial, log the config, and return the module `mlflow`.

    By default its name is that of the trial. Restarted workers continue the same MLflow run. On ranks other than 0 the
    return value does nothing, whatever is called, unless `rank_zero_only=False`.
    """
    context = worker_context.current()
    if context is not None and rank_zero_only and context.begin.rank > 0:
        return _Nothing()
    require("setup_mlflow", ("mlflow",), "mlflow")
    import mlflow

    if tracking_token is not None:
        os.environ["MLFLOW_TRACKING_TOKEN"] = tracking_token
    if tracking_uri is not None:
        mlflow.set_tracking_uri(tracking_uri)
    if registry_uri is not None:
        mlflow.set_registry_uri(registry_uri)
    experiment = _find_experiment(experiment_id, experiment_name, artifact_location, create_experiment_if_not_exists)
    all_tags = {str(name): str(value) for name, value in (tags or {}).items()}
    known = None
    if context is not None:
        trial = session.TrainContext(context)
        run_name = run_name if run_name is not None else trial.get_trial_name()
        all_tags[_RUN_TAG] = f"{trial.get_trial_id()}-{context.begin.rank}"
        if context.begin.attempt > 1:
            query = f"tags.`{_RUN_TAG}` = '{all_tags[_RUN_TAG]}'"
            known = mlflow.MlflowClient().search_runs([experiment or _DEFAULT_EXPERIMENT], query, max_results=1)
    if known:
        mlflow.start_run(run_id=known[0].info.run_id)
    else:
        mlflow.start_run(experiment_id=experiment, run_name=run_name, tags=all_tags)
        if config:
            params = {_sanitize_key(name): str(value) for name, value in flatten_dict(config).items()}
            mlflow.log_params({name: value[:_MAX_PARAM_LENGTH] for name, value in params.items()})
    return mlflow


def _find_experiment(
    experiment_id: str | None, name: str | None, artifact_location: str | None, creates: bool
) -> str | None:
    """Return the id of an experiment; None for MLflow's default."""
    if experiment_id is None and name is None:
        return None
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    client, found = MlflowClient(), None
    if experiment_id is not None:
        with contextlib.suppress(MlflowException):
            found = client.get_experiment(experiment_id)
    if found is None and name is not None:
        found = client.get_experiment_by_name(name)
        if found is None and creates:
            return str(client.create_experiment(name, artifact_location=artifact_location))
    if found is None:
        raise ValueError(
            f"MLflow has no experiment with experiment_id={experiment_id!r} or experiment_name={name!r}\n\n"
            "hint: pass an experiment_name and create_experiment_if_not_exists=True"
        )
    return str(found.experiment_id)


class _Nothing:
    """Stands for `mlflow` where nothing is to be logged: every attribute and every call gives this object again."""

    def __getattr__(self, name: str) -> _Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> _Nothing:
        return self

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""


class _Sender:
    """A thread that runs one call after another. It stops at the first failure, which the next caller receives."""

    def __init__(self, send: Callable[[list[LoggedReport]], object]) -> None:
        self._send = send
        self._changed = threading.Condition()
        """Protects all attributes below."""
        self._queue: deque[LoggedReport | Callable[[], object]] = deque()
        self._is_busy = False
        self._is_closed = False
        self._problem: BaseException | None = None
        self._answered_at = 0.0
        self._thread = threading.Thread(target=self._run_jobs, name="paceline-mlflow", daemon=True)
        self._thread.start()

    def submit(self, job: LoggedReport | Callable[[], object]) -> None:
        """Queue a report or a call."""
        with self._changed:
            if self._problem is not None:
                raise self._problem
            self._queue.append(job)
            self._changed.notify_all()

    def mark_answered(self) -> None:
        """Note that MLflow has responded."""
        with self._changed:
            self._answered_at = time.monotonic()

    def wait(self, patience_s: float) -> None:
        """Wait until the queue is empty, or MLflow has not responded for `patience_s`."""
        self.mark_answered()
        with self._changed:
            while self._problem is None and (self._queue or self._is_busy):
                left_s = self._answered_at + patience_s - time.monotonic()
                if left_s <= 0:
                    self._is_closed = True
                    raise TimeoutError(
                        f"MLflow did not respond for {patience_s:g} s\n\n"
                        "hint: run the script again once MLflow responds; missing reports are logged from the journal"
                    )
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
            if self._problem is not None:
                raise self._problem

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run_jobs(self) -> None:
        while (job := self._next_job()) is not None:
            problem = None
            try:
                job()
            except (Exception, SystemExit) as error:  # noqa: BLE001
                problem = error
            with self._changed:
                self._is_busy, self._problem, self._answered_at = False, problem, time.monotonic()
                self._changed.notify_all()
            if problem is not None:
                return

    def _next_job(self) -> Callable[[], object] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closed)
            if self._is_closed:
                return None
            self._is_busy = True
            reports: list[LoggedReport] = []
            while self._queue and len(reports) < _MAX_METRICS_PER_REQUEST:
                if not isinstance(job := self._queue[0], LoggedReport):
                    break
                reports.append(job)
                self._queue.popleft()
            if reports:
                return lambda: self._send(reports)
            job = self._queue.popleft()
            assert not isinstance(job, LoggedReport)
            return job


def _to_mlflow_metrics(report: LoggedReport) -> list[Any]:
    from mlflow.entities import Metric

    flat = flatten_dict(report.metrics)
    numbers = {_sanitize_key(name): value for name, value in flat.items() if isinstance(value, int | float)}
    return [Metric(name, _to_float(value), int(report.time * 1000), report.number) for name, value in numbers.items()]


def _sanitize_key(name: str) -> str:
    """Make a name valid for MLflow: few characters, and no path elements, since names may become file names."""
    plain = re.sub(r"[^\w\-. /]", "_", name)
    parts = ["_" * len(part) if part in (".", "..") else part for part in plain.split("/") if part]
    return posixpath.join("", *parts)[:_MAX_NAME_LENGTH].rstrip("/") or "_"


def _to_json_value(value: Any) -> Any:
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value if isinstance(value, bool | int | float | None) else str(value)


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
