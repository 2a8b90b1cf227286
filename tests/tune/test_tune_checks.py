"""Checks that users call, and the registry."""

import threading

import pytest
from tuners import Counts

from paceline import tune
from paceline._engine.messages import GpuUsage
from paceline.tune import checks, registry


class Forgets(Counts):
    load_checkpoint = tune.Trainable.load_checkpoint


def test_a_class_is_saved_and_restored():
    tune.register_trainable("counts", Counts)
    assert checks.validate_save_restore("counts", config={"to": 3})
    with pytest.raises(NotImplementedError, match=r"Forgets must implement load_checkpoint\(\)"):
        checks.validate_save_restore(Forgets)
    assert not registry.is_function_trainable("counts")
    assert registry.is_function_trainable(print)
    with pytest.warns(UserWarning, match="'counts' is registered again"):
        tune.register_trainable("counts", Forgets)
    tune.register_env("world", dict)
    assert registry.get_env_creator("world")(size=2) == {"size": 2}


def test_what_cannot_be_pickled_is_named(caplog):
    lock, number = threading.Lock(), 3

    def train(config):
        with lock:
            return {"loss": number}

    assert checks.diagnose_serialization(train) == {"lock"}
    assert "train cannot be pickled: lock" in caplog.text
    assert checks.diagnose_serialization(Counts) is True


class Driver:
    def __init__(self, *used):
        self.used = list(used)

    def use(self, name):
        return GpuUsage(0, self.used.pop(0), 100) if name == "0" else None


def test_wait_for_gpu_checks_until_its_memory_is_free(monkeypatch):
    drivers = {"now": Driver(50, 20, 1)}
    monkeypatch.setattr(checks.Nvml, "open", lambda: drivers["now"])
    assert checks.wait_for_gpu(0, delay_s=0)
    assert drivers["now"].used == []
    drivers["now"] = Driver(90, 80)
    with pytest.raises(RuntimeError, match=r"80 % of the memory of GPU 0 was in use after 2 checks"):
        checks.wait_for_gpu("0", retry=2, delay_s=0)
    with pytest.raises(ValueError, match="gpu_id must be a GPU of this machine, by index or UUID, got '7'"):
        checks.wait_for_gpu(7)
    drivers["now"] = None
    with pytest.raises(RuntimeError, match="needs the NVIDIA driver"):
        checks.wait_for_gpu()


def test_the_methods_that_ray_calls_of_a_trainable_can_be_called_here(tmp_path):
    trainable = Counts({"to": 3}, None)
    assert [result["count"] for result in trainable.train_buffered(60)] == [1, 2, 3]
    assert trainable.get_state() == {"iteration": 3, "time_total_s": trainable.time_total_s, "done": True}
    filled = trainable.get_auto_filled_metrics(time_this_iter=2.0)
    assert (filled["training_iteration"], filled["time_this_iter_s"], filled["config"]) == (3, 2.0, {"to": 3})
    assert (filled["node_ip"], filled["pid"]) == trainable.get_current_ip_pid()
    assert "training_iteration" not in trainable.get_auto_filled_metrics(debug_metrics_only=True)
    assert not trainable.is_actor()
    assert trainable.export_model("onnx", str(tmp_path)) == {}
    assert not trainable.reset({"a": 2})
    trainable.reset_config = lambda new_config: True
    assert trainable.reset({"a": 2})
    assert (trainable.iteration, trainable.config, trainable.is_done) == (0, {"a": 2}, False)
