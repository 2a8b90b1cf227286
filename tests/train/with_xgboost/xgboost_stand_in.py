"""A stand-in for XGBoost, to test how Paceline calls it where XGBoost is not installed. It learns nothing.

It has the names, arguments and order of calls that XGBoost 3 documents: of `xgboost.train`, the callbacks, the tracker
and the communicator. Its tracker really listens, gives ranks by the order of task names and waits for all workers to
finish; its model counts rounds, and a round is an exchange of all workers through the tracker. Copied as `xgboost.py`.
"""

import json
import socket
import sys
import threading
import types


class XGBoostError(ValueError):
    pass


class TrainingCallback:
    def before_training(self, model):
        return model

    def after_training(self, model):
        return model

    def before_iteration(self, model, epoch, evals_log):
        return False

    def after_iteration(self, model, epoch, evals_log):
        return False


class RabitTracker:
    def __init__(self, n_workers, host_ip, port=0, *, sortby="host", timeout=0):
        assert sortby in ("host", "task")
        self._n_workers, self._sortby = n_workers, sortby
        self._server = socket.create_server((host_ip, port))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self):
        self._thread.start()

    def worker_args(self):
        host, port = self._server.getsockname()
        return {"dmlc_tracker_uri": host, "dmlc_tracker_port": port}

    def wait_for(self, timeout=None):
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise ValueError("Timeout waiting for the tracker")

    def free(self):
        self._server.close()

    def _serve(self):
        workers = []
        for _ in range(self._n_workers):
            connection, _ = self._server.accept()
            file = connection.makefile("rw")
            workers.append((json.loads(file.readline())["task"], file))
        if self._sortby == "task":
            workers.sort(key=lambda worker: worker[0])
        for rank, (_, file) in enumerate(workers):
            _say(file, {"rank": rank})
        while True:
            said = [json.loads(file.readline() or '"gone"') for _, file in workers]
            if "shutdown" in said or "gone" in said:
                return
            for _, file in workers:
                _say(file, sum(said))


def _say(file, message):
    file.write(json.dumps(message) + "\n")
    file.flush()


_communicator = None


class CommunicatorContext:
    def __init__(self, **args):
        assert args.pop("dmlc_communicator") == "rabit"
        assert isinstance(args["dmlc_tracker_port"], int)
        self._args = args

    def __enter__(self):
        global _communicator
        address = (self._args["dmlc_tracker_uri"], self._args["dmlc_tracker_port"])
        _communicator = socket.create_connection(address, timeout=self._args["dmlc_timeout"]).makefile("rw")
        _say(_communicator, {"task": self._args["dmlc_task_id"]})
        self.rank = json.loads(_communicator.readline())["rank"]
        collective._rank = self.rank
        return self._args

    def __exit__(self, *_):
        global _communicator
        _say(_communicator, "shutdown")
        _communicator.close()
        _communicator = None


def _allreduce(value):
    if _communicator is None:
        return value
    _say(_communicator, value)
    line = _communicator.readline()
    if not line:
        raise XGBoostError("[12:00:00] /workspace/src/collective:\n- [12:00:00]: Connection reset by peer")
    return json.loads(line)


class DMatrix:
    def __init__(self, data, label=None, *, feature_names=None, nthread=None):
        self.data, self.label, self.feature_names = data, label, feature_names


class Booster:
    def __init__(self):
        self.state = {"rounds": 0, "feature_names": None, "num_rows": None, "params": {}}

    @property
    def feature_names(self):
        return self.state["feature_names"]

    def num_boosted_rounds(self):
        return self.state["rounds"]

    def set_param(self, params):
        self.state["params"].update(params)

    def save_model(self, fname):
        assert fname.endswith((".ubj", ".json"))
        with open(fname, "w") as file:
            json.dump(self.state, file)

    def load_model(self, fname):
        with open(fname) as file:
            self.state = json.load(file)

    def predict(self, data):
        assert data.feature_names == self.feature_names
        return data.data.sum(axis=1) + self.state["rounds"]


def train(
    params,
    dtrain,
    num_boost_round=10,
    *,
    evals=None,
    obj=None,
    maximize=None,
    early_stopping_rounds=None,
    evals_result=None,
    verbose_eval=True,
    xgb_model=None,
    callbacks=None,
    custom_metric=None,
):
    assert all(isinstance(callback, TrainingCallback) for callback in callbacks)
    model = Booster()
    model.state = {**(xgb_model or model).state, "feature_names": dtrain.feature_names, "params": params}
    log = {}
    for callback in callbacks:
        model = callback.before_training(model)
    for epoch in range(num_boost_round):
        model.state["num_rows"] = _allreduce(len(dtrain.label))
        model.state["rounds"] += 1
        for matrix, name in evals or []:
            log.setdefault(name, {}).setdefault("rows", []).append(_allreduce(len(matrix.label)))
        stops = [callback.after_iteration(model, epoch, log) for callback in callbacks]
        if any(stops):
            break
    for callback in callbacks:
        model = callback.after_training(model)
    return model


def _submodule(name, **members):
    module = types.ModuleType(f"{__name__}.{name}")
    module.__dict__.update(members)
    sys.modules[module.__name__] = module
    return module


callback = _submodule("callback", TrainingCallback=TrainingCallback)
tracker = _submodule("tracker", RabitTracker=RabitTracker)
collective = _submodule("collective", CommunicatorContext=CommunicatorContext, get_rank=lambda: collective._rank)
