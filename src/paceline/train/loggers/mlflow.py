"""Metrics to MLflow, through its tracking client."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Self

from paceline.train.backend import require
from paceline.train.callbacks import LoggedCheckpoint, LoggedReport, LoggedRun, LoggerCallback
from paceline.train.result import flat

_TAG = "paceline.run"
"""By which a run is found again."""
_MOST_AT_ONCE = 1000
"""Metrics in one request, as the server allows."""
_PARAM_LENGTH = 500
_PARAMS_AT_ONCE = 100
_MAKING = threading.Lock()
"""Of trials that begin at once, one makes the experiment."""


class MLflowLoggerCallback(LoggerCallback):
    """Logs every metric that is a number to an MLflow run, at the step of its report, and the config as parameters.

    Of a checkpoint, a small JSON file among the artifacts tells where it is; its files stay there. The arguments are
    those of MLflow's client; `tracking_uri` may be a file of this machine, such as
    `sqlite:///mlflow.db`. A run of ours that continues goes on with the same MLflow run. MLflow keeps every point:
    reports that restarted workers make again follow those from before, at the same steps.
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

    def for_trial(self, search: str, run: str) -> Self:
        """Trials are runs of one experiment, which has the name of the search where no other is given."""
        copied = super().for_trial(search, run)
        copied._experiment_name = self._experiment_name or search
        return copied

    def log_start(self, run: LoggedRun) -> None:
        from mlflow.tracking import MlflowClient

        if self._tracking_token is not None:
            os.environ["MLFLOW_TRACKING_TOKEN"] = self._tracking_token
        client = self._client = MlflowClient(tracking_uri=self._tracking_uri, registry_uri=self._registry_uri)
        self._directory = str(run.directory)
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

    def log_report(self, report: LoggedReport) -> None:
        self._log([self._metrics(report)])

    def log_checkpoint(self, checkpoint: LoggedCheckpoint) -> None:
        about = {
            "uri": checkpoint.uri,
            "step": checkpoint.number,
            "num_bytes": checkpoint.num_bytes,
            "metrics": {name: _told(value) for name, value in flat(checkpoint.metrics).items()},
        }
        self._client.log_dict(self._run_id, about, f"checkpoints/{checkpoint.name}.json")

    def log_end(self, failed: bool) -> None:
        if self._client is not None and self._run_id:
            if self._save_artifact:
                self._client.log_artifacts(self._run_id, self._directory)
            self._client.set_terminated(self._run_id, status="FAILED" if failed else "FINISHED")
        self._client, self._run_id = None, ""

    def _experiment_id(self, name: str) -> str:
        with _MAKING:
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
        params = [
            Param(_key(str(name)), str(value)[:_PARAM_LENGTH])
            for name, value in flat({str(k): v for k, v in config.items()}).items()
        ]
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
        waiting: list[Any] = []
        for metrics in reports:
            waiting += metrics
            while len(waiting) >= _MOST_AT_ONCE:
                self._client.log_batch(self._run_id, metrics=waiting[:_MOST_AT_ONCE])
                del waiting[:_MOST_AT_ONCE]
        if waiting:
            self._client.log_batch(self._run_id, metrics=waiting)


def _key(name: str) -> str:
    """A name as MLflow allows it."""
    return re.sub(r"[^\w\-. /]", "_", name)


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
