"""Requests to a run in a store: on the driver's machine through its spool, from elsewhere through the store."""

import time
import uuid

import pytest
from live_runs import Live, counting

from paceline._control import request_inbox, requests
from paceline._control.requests import ProfileRequest, StacksRequest, StopRequest
from paceline._storage.run_location import RunLocation
from paceline.train import DataParallelTrainer, RunConfig
from servers import BUCKET


@pytest.mark.parametrize(
    "near",
    [
        pytest.param(True, id="on the driver's machine"),
        pytest.param(False, id="from elsewhere", marks=pytest.mark.slow),
    ],
)
def test_a_run_in_a_store_is_asked(tmp_path, s3_environment, monkeypatch, near):
    monkeypatch.setattr(request_inbox, "LOOK_FAR_EVERY_S", 0.3)
    monkeypatch.setattr(requests, "_POLL_STORE_S", 0.2)
    if not near:
        monkeypatch.setattr(requests, "is_holder_alive", lambda holder: None)
    path = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    trainer = DataParallelTrainer(
        counting,
        train_loop_config={"until": 100_000, "hurry": str(tmp_path / "hurry")},
        run_config=RunConfig(name="run", storage_path=path),
    )
    home = RunLocation.from_path(f"{path}/run")
    live = Live(trainer.fit, home)
    try:
        live.until_reported(2)
        if near:
            live.until(home.layout.requests.is_dir)
        assert live.ask(StacksRequest()).ok
        answer = live.ask(ProfileRequest(seconds=0.3))
        assert answer.ok, answer
        store = home.open_store()
        for file in answer.files:
            assert len(store.read(file.path)) == file.num_bytes
        answer = live.ask(StopRequest())
        assert (answer.state, answer.ending) == ("done", "interrupted"), answer
    finally:
        (tmp_path / "hurry").touch()
        if not live.outcome:
            live.ask(StopRequest(now=True))
        live.ended()
    end = time.monotonic() + 60
    while left := store.list_entries(".requests"):
        assert time.monotonic() < end, left
        time.sleep(0.05)
    assert live.outcome.checkpoint.to_dict()["n"] > 1
