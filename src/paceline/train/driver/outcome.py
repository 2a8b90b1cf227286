"""What a run that has ended returns or raises, and the sentence about it."""

from __future__ import annotations

from paceline._control.extensions import Interrupts
from paceline._control.run import Finished, Run
from paceline._core.errors import PreemptionError
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import RunStore
from paceline._view.formatting import format_count
from paceline.train.display.terminal import Terminal
from paceline.train.driver.failures import ResultCollector, make_training_error
from paceline.train.result import Result, build_result, finalize_metrics


def conclude_run(
    store: RunStore, run: Run, collector: ResultCollector, terminal: Terminal, interrupts: Interrupts
) -> Result:
    assert isinstance(run.phase, Finished)
    layout = store.layout
    result = build_result(store, run, ())
    result.metrics = finalize_metrics(collector.metrics, run)
    result.return_value = collector.return_value
    if run.phase.ending == "failed":
        error = make_training_error(store, run, collector.failures, result)
        result.error = error
        raise error
    if interrupts.count > 1:
        raise KeyboardInterrupt
    if run.phase.ending == "preempted" or (run.preempted and run.pending_validations):
        result.error = PreemptionError(_format_preemption(layout, run), result)
        terminal.say(str(result.error), error=True)
        raise result.error
    if run.pending_validations and run.is_trained:
        validations = format_count(len(run.pending_validations), "validation")
        terminal.say(f"training is complete; run the script again with the same name for the remaining {validations}")
    elif run.phase.ending == "interrupted":
        terminal.say(f"stopped after report {run.num_reports}; run the script again with the same name to continue")
    else:
        terminal.say(f"run {layout.root.name} is complete after {format_count(run.num_reports, 'report')}")
    return result


def _format_preemption(layout: RunLayout, run: Run) -> str:
    lost = run.num_reports - (run.latest.seq if run.latest is not None else 0)
    since = f"{run.latest.name} (report {run.latest.seq})" if run.latest is not None else "the beginning"
    behind = f"; {format_count(lost, 'report')} after it will be repeated" if lost else ""
    return (
        f"run {layout.root.name} was preempted after {format_count(run.num_reports, 'report')}\n\n"
        "hint: run the script again with the same RunConfig(storage_path=..., name=...) "
        f"to continue from {since}{behind}"
    )
