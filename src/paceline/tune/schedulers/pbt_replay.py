"""Replays the schedule of configurations that population based training found, for one trial."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.tune.schedulers.mutations import format_value
from paceline.tune.schedulers.scheduler import Action, Exploit, TrialScheduler
from paceline.tune.trial import Trial


class PopulationBasedTrainingReplay(TrialScheduler):
    """Trains one trial with the schedule of configurations that another search found.

        replay = PopulationBasedTrainingReplay(pbt.policy_of(results.get_best_result().trial_id))

    `policy` is the result of `PopulationBasedTraining.policy_of`: pairs of an iteration and the configuration from
    there on, the first at 0; or a JSON file with a list of these. A change takes effect at the first report with a
    checkpoint at or after its iteration: the trial continues from that checkpoint, so nothing is trained twice.
    """

    waits_for_checkpoints = True

    def __init__(self, policy: Sequence[tuple[int, Mapping[str, Any]]] | str | os.PathLike[str]) -> None:
        given = json.loads(Path(policy).read_text()) if isinstance(policy, str | os.PathLike) else policy
        self.policy = tuple((pair[0], dict(pair[1])) for pair in given if _is_pair(pair))
        if len(self.policy) < len(given) or not self.policy or self.policy[0][0] != 0:
            raise ValueError(
                f"policy={policy!r:.300} is not a list of pairs of an iteration and a configuration, beginning at 0\n\n"
                "hint: take it from PopulationBasedTraining.policy_of(trial_id)"
            )
        if any(one[0] >= other[0] for one, other in zip(self.policy, self.policy[1:], strict=False)):
            raise ValueError(f"policy: its iterations {[pair[0] for pair in self.policy]} do not rise")
        self._trial_id: str | None = None
        self._num_used = 1

    def completed(self, trial_id: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**config, **self.policy[0][1]}

    def on_trial_add(self, trial: Trial) -> Sequence[Action]:
        if self._trial_id not in (None, trial.trial_id):
            raise ValueError(
                f"{type(self).__name__} trains one trial, and {trial.trial_id} is another one\n\nhint: num_samples=1"
            )
        self._trial_id = trial.trial_id
        return ()

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Sequence[Action]:
        saved = trial.checkpoint
        due = [pair for pair in self.policy[self._num_used :] if pair[0] <= trial.iteration]
        if not due or saved is None or saved.iteration < trial.iteration:
            return ()
        self._num_used += len(due)
        at, config = due[-1]
        changed = [f"{key} {format_value(value)}" for key, value in config.items() if trial.config.get(key) != value]
        why = f"as at iteration {at} of the policy; {', '.join(changed) or 'nothing changes'}"
        return (Exploit(trial.trial_id, trial.trial_id, {**trial.config, **config}, why),)


def _is_pair(pair: Any) -> bool:
    return len(pair) == 2 and isinstance(pair[0], int) and isinstance(pair[1], Mapping)
