"""An object store that stops answering: reported in time, and the script, run again, ends as an undisturbed one."""

import random
import time
import uuid
from pathlib import Path

import oracle
import pytest

from paceline.train import DataParallelTrainer, StorageError, UserCallback, WorkerGroupError
from servers import BUCKET, s3_variables

BOUND_S = 60.0


class StoreBreaker(UserCallback):
    """Breaks the store after a report, and tells the workers, which wait for it."""

    def __init__(self, proxy, step, broken):
        self._proxy, self._step, self._broken = proxy, step, broken
        self.broke_at = None

    def after_report(self, run_context, metrics, checkpoint):
        if metrics[0]["step"] == self._step:
            self._proxy.plant("reset", times=10**9)
            self.broke_at = time.time()
            self._broken.touch()


def storing(config):
    """`small`, which continues after one of its reports once the store is broken."""
    model = oracle.Descent(config)
    while model.step < config["steps"]:
        if model.step == config["after"]:
            while not Path(config["broken"]).exists():
                time.sleep(0.005)
        loss = model.advance()
        oracle.report(model.step, loss, model.state)
    return model.weights


@pytest.mark.slow
@pytest.mark.seeds(100)
def test_a_store_that_is_gone_is_reported_and_the_run_resumes_once_it_is_back(
    tmp_path, temporary, seed, s3_proxy, undisturbed, fault_table, monkeypatch
):
    expected = undisturbed(DataParallelTrainer, oracle.small)
    patience = {"PACELINE_STORAGE_PATIENCE_S": "1", "PACELINE_SPOOL_PATH": str(tmp_path / "spool")}
    for name, value in {**s3_variables(s3_proxy.authority), **patience}.items():
        monkeypatch.setenv(name, value)
    after = random.Random(f"store {seed}").randint(1, oracle.STEPS - 1)
    broken, path = tmp_path / "broken", f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"
    breaker = StoreBreaker(s3_proxy, after, broken)
    config = {"after": after, "broken": str(broken)}
    with fault_table.trying("object store unreachable until retries are exhausted, then back") as trial:
        trainer = oracle.trainer_of(
            DataParallelTrainer, storing, path, max_failures=0, config=config, callbacks=[breaker]
        )
        with pytest.raises((StorageError, WorkerGroupError), match=r"StorageError|cannot \w+ s3://"):
            trainer.fit()
        trial.told_s = time.time() - breaker.broke_at
        assert trial.told_s < BOUND_S
        s3_proxy.clear()
        result = oracle.trainer_of(DataParallelTrainer, storing, path, config=config).fit()
        assert result.return_value == expected.weights, "bit for bit"
        assert result.checkpoint.to_dict()["step"] == oracle.STEPS
        losses = [metrics["loss"] for _, metrics in expected.reports[0]]
        assert list(result.metrics_dataframe["loss"]) == losses, "contiguous, each once, the same values"
