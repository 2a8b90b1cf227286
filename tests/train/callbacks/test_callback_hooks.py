"""What callbacks are told, in which order; and training continues without one that raises, wherever it does."""

import sys
import traceback

import pytest

from paceline import train
from paceline.train import Checkpoint
from paceline.train.callbacks import PrintCallback
from paceline.train.loggers import LoggerCallback, MLflowLoggerCallback, OpenTelemetryCallback, WandbLoggerCallback


class Everything(train.UserCallback, train.TrainingCallback, LoggerCallback):
    """Of all kinds at once."""

    def __init__(self):
        self.heard = []

    def after_report(self, run_context, metrics, checkpoint):
        assert run_context.run_id == "run"
        assert run_context.dataset_config == train.DataConfig()
        self.heard.append(("after_report", metrics, checkpoint.to_dict() if checkpoint else None))

    def after_exception(self, run_context, worker_exceptions):
        self.heard.append(("after_exception", {rank: str(error) for rank, error in worker_exceptions.items()}))

    def start_training(self, logdir, config, **info):
        self.heard.append(("start_training", logdir, config))

    def handle_result(self, results, **info):
        self.heard.append(("handle_result", results))

    def finish_training(self, error=False, **info):
        self.heard.append(("finish_training", error))

    def log_start(self, run):
        self.heard.append(("log_start", str(run.directory), run.continues, len(list(run.past))))

    def log_report(self, report):
        self.heard.append(("log_report", report.number, report.attempt, report.metrics))

    def log_end(self, failed):
        self.heard.append(("log_end", failed))

    def of(self, *hooks):
        return [call for call in self.heard if call[0] in hooks]


def fail_once(config):
    rank = train.get_context().get_world_rank()
    last = train.get_checkpoint()
    if last is None:
        checkpoint = Checkpoint.from_dict({"a": 1})
        train.report({"loss": train.mean(rank), "rank": rank}, checkpoint=checkpoint if rank == 0 else None)
        train.collective.barrier()  # The checkpoint is committed, or rank 0 would not be here.
        if rank == 1:
            raise ValueError("planted")
        train.collective.barrier()
    train.report({"loss": train.mean(10 + rank)})


def test_every_hook_is_called_in_its_turn_with_own_and_with_reduced_values(tmp_path, fit, capsys):
    watch = Everything()
    fit(fail_once, callbacks=[watch, PrintCallback()], config={"lr": 1}, max_failures=1)
    assert "[{'loss': 10}, {'loss': 11}]" in capsys.readouterr().out
    directory = str(tmp_path / "run")
    first = [{"loss": 0, "rank": 0}, {"loss": 1, "rank": 1}]
    assert watch.of("start_training", "handle_result", "finish_training") == [
        ("start_training", directory, {"lr": 1}),
        ("handle_result", first),
        ("handle_result", [{"loss": 10}, {"loss": 11}]),
        ("finish_training", False),
    ]
    assert watch.of("after_report", "after_exception") == [
        ("after_report", first, {"a": 1}),
        ("after_exception", {1: "planted"}),
        ("after_report", [{"loss": 10}, {"loss": 11}], None),
    ]
    assert watch.of("log_start", "log_report", "log_end") == [
        ("log_start", directory, False, 0),
        ("log_report", 1, 1, {"loss": 0.5, "rank": 0}),
        ("log_report", 2, 2, {"loss": 10.5}),
        ("log_end", False),
    ]


HOOKS = ["after_report", "after_exception", "start_training", "handle_result", "finish_training"]
HOOKS += ["log_start", "log_report", "log_end"]


def broken(hook, error):
    """A callback that raises in one of its hooks, and keeps what it was called with before and after."""

    def planted(self, *args, **kwargs):
        self.heard.append(("raised",))
        raise error(f"planted in {hook}")

    return type(f"Broken_{hook}_{error.__name__}", (Everything,), {hook: planted})()


def test_a_callback_that_raises_in_any_hook_is_dropped_with_its_traceback(fit, caplog):
    planted = [(hook, RuntimeError) for hook in HOOKS] + [("after_report", SystemExit), ("log_end", SystemExit)]
    callbacks = [broken(hook, error) for hook, error in planted]
    healthy = Everything()
    result = fit(fail_once, callbacks=[*callbacks, healthy], config={}, max_failures=1)
    assert result.metrics == {"loss": 10.5}, "training went on"
    assert healthy.heard[-2:] == [("finish_training", False), ("log_end", False)], "the others are called on"
    assert len(healthy.of("after_report")) == 2
    for (hook, error), callback in zip(planted, callbacks, strict=True):
        after = [call[0] for call in callback.heard[callback.heard.index(("raised",)) :]]
        assert [called for called in after if called.startswith("log_") == hook.startswith("log_")] == (
            [] if hook.startswith("log_") else ["raised"]
        ), f"{hook} is called once, and then no other of its kind"
        assert after.count("raised") == 1
        name = type(callback).__name__
        (record,) = (record for record in caplog.records if f"{name} raised" in record.getMessage())
        text = "".join(traceback.format_exception(*record.exc_info))
        assert f"{error.__name__}: planted in {hook}" in text
        assert "in planted" in text, "with the line that raised"


def test_the_older_hooks_may_be_written_without_info(fit):
    heard = []

    class Older(train.TrainingCallback):
        def start_training(self, logdir, config):
            heard.append(config)

        def handle_result(self, results):
            heard.append(results)

        def finish_training(self, error=False):
            heard.append(error)

    fit(lambda: train.report({"i": 1}), callbacks=[Older()])
    assert heard == [{}, [{"i": 1}, {"i": 1}], False]


@pytest.mark.parametrize(
    ("module", "logger", "extra"),
    [
        ("mlflow", MLflowLoggerCallback, "mlflow"),
        ("opentelemetry.trace", OpenTelemetryCallback, "opentelemetry"),
        ("wandb", WandbLoggerCallback, "wandb"),
    ],
)
def test_without_its_package_the_extra_of_a_logger_is_named(module, logger, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf'(?s)needs {module}.*\n\nhint: pip install "paceline\[{extra}\]"'):
        logger()
