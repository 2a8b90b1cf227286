"""What was not restored, told from notes of two runs over the same reports: one went on, one was resumed. Pure.

The first note after the checkpoint decides. What a model is given, what its weights are and where the generators stand
at its first call, and what an optimizer remembers at its first step, cannot come from anything but the restoring;
whatever differs later may only be an echo.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.train.resume_proof.compare import Difference

Part = Literal["model", "optimizer", "scheduler", "data order", "rng", "something"]
Note = Mapping[str, Any]
Notes = Mapping[int, Sequence[Note]]
"""By rank, in order."""

_LOOKS_LIKE: dict[Part, re.Pattern[str]] = {
    "scheduler": re.compile(r"sched|last_epoch|_last_lr|base_lrs|warmup"),
    "optimizer": re.compile(r"optim|\bopt\b|exp_avg|momentum|param_groups"),
    "rng": re.compile(r"rng|random|generator|seed"),
    "data order": re.compile(r"sampler|loader|cursor|dataset|indices|batch|position|consumed|samples|order"),
    "model": re.compile(r"model|\bnet\b|module|weight|param|bias|state_dict|layers?\b"),
}
"""The names that people give to the parts of a checkpoint; of a path, the outermost that fits."""

_SAVE: dict[Part, str] = {
    "model": "model.state_dict()",
    "optimizer": "optimizer.state_dict()",
    "scheduler": "scheduler.state_dict()",
    "data order": "the epoch and how many batches of it were seen, or the sampler's state",
    "rng": "torch.get_rng_state() (on a GPU torch.cuda.get_rng_state(), and those of random and numpy if used)",
}
_LOAD: dict[Part, str] = {
    "model": "load it with model.load_state_dict(...)",
    "optimizer": "load it with optimizer.load_state_dict(...)",
    "scheduler": "load it with scheduler.load_state_dict(...)",
    "data order": "begin the epoch again with the same order and skip those batches",
    "rng": "set it with torch.set_rng_state(...) once models and data loaders are made, which draw numbers too",
}


@dataclass(frozen=True)
class NotRestored:
    """A part of the training that did not come back as it was."""

    part: Part
    evidence: str
    hint: str


def diagnosed(
    went_on: Notes,
    resumed: Notes,
    *,
    checkpoint: str,
    paths: Sequence[str],
    differences: Sequence[Difference],
    repeatable: bool,
) -> tuple[NotRestored, ...]:
    """What was not restored, each with its evidence.

    `paths` are those of the leaves that the checkpoint holds, `differences` those between the run and its replay, and
    `repeatable` is whether two replays were alike.
    """
    held = frozenset(part_of(path) for path in paths)
    found: dict[Part, str] = {}
    for rank in sorted(went_on):
        for part, evidence in _parted(went_on[rank], resumed.get(rank, ()), f"on rank {rank}", held):
            found.setdefault(part, evidence)
    if not found:
        found = dict(_from_differences(differences))
    if not found and not repeatable:
        found = {"rng": "two replays from the same checkpoint differ from each other: something random is not seeded"}
    if not found:
        found = {"something": f"two replays agree with each other and not with the run: {differences[0]}"}
    return tuple(NotRestored(part, evidence, _hint(part, checkpoint, part in held)) for part, evidence in found.items())


def part_of(path: str) -> Part:
    """Which part of a training a name in a checkpoint seems to belong to."""
    for name in re.split(r"[.:/]", path.lower()):
        for part, pattern in _LOOKS_LIKE.items():
            if pattern.search(name):
                return part
    return "something"


def _parted(
    went_on: Sequence[Note], resumed: Sequence[Note], where: str, held: frozenset[Part]
) -> Iterator[tuple[Part, str]]:
    calls, again = _of_first(went_on, "forward", "module"), _of_first(resumed, "forward", "module")
    if calls and again:
        yield from _parted_at_call(calls, again, where)
    steps, steps_again = _of_first(went_on, "step", "optimizer"), _of_first(resumed, "step", "optimizer")
    if steps and steps_again:
        yield from _parted_at_step(steps, steps_again, where, held)
    yield from _parted_generators(went_on, resumed, where)


def _of_first(notes: Sequence[Note], kind: str, key: str) -> list[Note]:
    """The notes about one model or optimizer, the first that appears."""
    chosen = [note for note in notes if note["kind"] == kind and note.get("has_parameters", True)]
    return [note for note in chosen if note[key] == chosen[0][key]]


def _parted_at_call(calls: Sequence[Note], again: Sequence[Note], where: str) -> Iterator[tuple[Part, str]]:
    weights = [
        name
        for what in ("parameters", "buffers")
        for name, value in calls[0].get(what, {}).items()
        if again[0].get(what, {}).get(name) != value
    ]
    if weights:
        yield "model", f"{_listed(weights)} of the model differ {where} at its first call after the checkpoint"
    elif calls[0]["training"] != again[0]["training"]:
        modes = ["evaluation", "training"]
        yield "model", f"the model is in {modes[again[0]['training']]} mode {where} after the checkpoint"
    for number, (one, two) in enumerate(zip(calls, again, strict=False), start=1):
        if one["inputs"] != two["inputs"]:
            seen = next((n for n, call in enumerate(again, start=1) if call["inputs"] == one["inputs"]), None)
            but = f"; what it should have been given comes at call {seen}" if seen is not None else ""
            yield "data order", f"the model is given another batch {where} at call {number} after the checkpoint{but}"
            return


def _parted_at_step(
    steps: Sequence[Note], again: Sequence[Note], where: str, held: frozenset[Part]
) -> Iterator[tuple[Part, str]]:
    state, other = steps[0].get("state", {}), again[0].get("state", {})
    differing = [name for name in state if other.get(name) != state[name]]
    if differing:
        what = "is empty" if not other else f"differs in {_listed([f'state.{name}' for name in differing])}"
        yield "optimizer", f"the optimizer's state {what} {where} at its first step after the checkpoint"
    for number, (one, two) in enumerate(zip(steps, again, strict=False), start=1):
        names = [name for name in one["hyper"] if one["hyper"][name] != two["hyper"].get(name)]
        if names:
            name = next((name for name in names if name.endswith(".lr")), names[0])
            told = f"{name.partition('.')[2]} is {two['hyper'].get(name)} instead of {one['hyper'][name]}"
            # The rate lies in the optimizer: one that was not restored has the wrong rate under a scheduler that was.
            of_optimizer = not name.endswith(".lr") or ("scheduler" in held and (differing or "optimizer" not in held))
            part: Part = "optimizer" if of_optimizer else "scheduler"
            yield part, f"{told} {where} at step {number} after the checkpoint"
            return


def _parted_generators(went_on: Sequence[Note], resumed: Sequence[Note], where: str) -> Iterator[tuple[Part, str]]:
    """Generators that stand elsewhere at the first note; of those that nobody draws from, nothing is said."""
    if not went_on or not resumed:
        return
    first, again = went_on[0]["rng"], resumed[0]["rng"]
    drawn = [name for name, state in first.items() if any(note["rng"].get(name) != state for note in went_on[1:])]
    differing = [name for name in drawn if again.get(name) != first[name]]
    if differing:
        at = {"forward": "first call of the model", "step": "first optimizer step", "report": "first report"}
        evidence = f"the random numbers of {_listed(differing)} go on elsewhere {where}, from the "
        yield "rng", f"{evidence}{at[went_on[0]['kind']]} after the checkpoint on"


def _from_differences(differences: Sequence[Difference]) -> Iterator[tuple[Part, str]]:
    """Without notes, the names have to do: of a metric that tells the rate, or of leaves in the next checkpoint."""
    first = differences[0] if differences else None
    if first is not None and re.search(r"(^|[/_.])(lr|learning_rate)", first.name):
        yield "scheduler", f"the first thing to differ is {first}"
        return
    leaves = [difference for difference in differences if difference.kind == "state"]
    for part in ("scheduler", "optimizer", "rng", "data order"):
        of_part = [leaf for leaf in leaves if part_of(leaf.name) == part]
        if of_part:
            yield part, f"{_listed([leaf.name for leaf in of_part])} differ in the next checkpoint"


def _hint(part: Part, checkpoint: str, held: bool) -> str:
    if part == "something":
        return "look at what the function keeps between steps that is not in its checkpoint"
    if held:
        return f"{checkpoint} holds something like it: {_LOAD[part]}"
    return f"{checkpoint} holds nothing like it: put {_SAVE[part]} into the checkpoint, and {_LOAD[part]}"


def _listed(names: Sequence[str], at_most: int = 3) -> str:
    shown = ", ".join(names[:at_most])
    return shown if len(names) <= at_most else f"{shown} and {len(names) - at_most} more"
