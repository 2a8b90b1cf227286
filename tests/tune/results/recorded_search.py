"""A search built event by event, as its journal records it, in memory or in a directory."""

from paceline._core.codec import seal_line
from paceline._core.plain_values import to_plain
from paceline._storage.run_location import RunLocation
from paceline.tune.driver import events
from paceline.tune.driver.search_state import Search, run_name
from paceline.tune.result_grid import make_result_grid
from paceline.tune.trial import TrialCheckpoint


class RecordedSearch:
    """Each method records an event, one second after the previous one by default."""

    def __init__(self, *observers, metric="loss", mode="min", num_samples=4, at=1000.0):
        self.search = Search()
        self.events = []
        self.observers = observers
        self.at = at
        self.step_s = 1.0
        self._seqs = {}
        self.started = {"trainable": "train", "num_samples": num_samples, "metric": metric, "mode": mode}

    def record(self, event):
        self.search.apply(event)
        self.search.apply_decisions(event)
        self.events.append(event)
        for observer in self.observers:
            observer.on_event(event, self.search)

    def starts(self):
        self.record(events.SearchStarted(**self.started, seed=0, at=self._now()))
        return self

    def made(self, trial, **config):
        self.record(events.TrialMade(trial, events.encode_raw(to_plain(config)), self._now()))

    def began(self, trial):
        self.record(events.TrialBegan(trial, self._run(trial), self._now()))

    def reported(self, trial, checkpoint=False, **metrics):
        run = self._run(trial)
        seq = self._seqs[run] = self._seqs.get(run, 0) + 1
        self.record(events.TrialReported(trial, run, seq, events.encode_raw(to_plain(metrics)), self._now()))
        if checkpoint:
            self.record(events.TrialSaved(trial, run, seq, f"checkpoint_{seq:06d}", self._now()))

    def ended(self, trial, ending="returned", why=""):
        self.record(events.TrialEnded(trial, ending, self._now(), why))

    def cloned(self, trial, donor, **config):
        saved = self.search.trials[donor].checkpoint
        assert isinstance(saved, TrialCheckpoint)
        run = run_name(trial, self.search.trial_records[trial].num_runs)
        self.record(events.TrialCloned(trial, run, donor, saved, events.encode_raw(to_plain(config)), self._now()))

    def reset(self, trial):
        run = run_name(trial, self.search.trial_records[trial].num_runs)
        self.record(events.TrialReset(trial, run, self._now()))

    def no_more(self, why=""):
        self.record(events.NoMoreTrials(self._now(), why=why))

    def search_ended(self, why="", complete=True):
        self.record(events.SearchEnded(self._now(), why, complete))

    def trial(self, trial, *losses, ending="returned", why="", config=None):
        """Record all events of a trial."""
        self.made(trial, **(config if config is not None else {"lr": int(trial) / 10}))
        self.began(trial)
        for loss in losses:
            self.reported(trial, loss=loss)
        if ending is not None:
            self.ended(trial, ending, why)

    def write_to(self, directory):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "journal.jsonl").write_bytes(b"".join(seal_line(events.encode(event)) for event in self.events))
        return directory

    def results(self, directory, errors=None):
        return make_result_grid(self.search, RunLocation.from_path(str(self.write_to(directory))), errors or {})

    def _run(self, trial):
        return self.search.trial_records[trial].run

    def _now(self):
        self.at += self.step_s
        return self.at
