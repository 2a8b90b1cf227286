"""Infer what was not restored from the notes of two runs over the same reports: one continued, one resumed. Pure.

The first note after the checkpoint decides. The model's inputs, its weights and the random generators at its first
call, and the optimizer's state at its first step, depend only on what was restored. Any later difference may be a mere
consequence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.train.resume_proof.compare import Difference

TrainingPart = Literal["model", "optimizer", "scheduler", "data order", "rng", "something"]
TraceNote = Mapping[str, Any]
TraceNotes = Mapping[int, Sequence[TraceNote]]
"""By rank, in order."""

_NAME_PATTERNS: dict[TrainingPart, re.Pattern[str]] = {
    "scheduler": re.compile(r"sched|last_epoch|_last_lr|base_lrs|warmup"),
    "optimizer": re.compile(r"optim|\bopt\b|exp_avg|momentum|param_groups"),
    "rng": re.compile(r"rng|random|generator|seed"),
    "data order": re.compile(r"sampler|loader|cursor|dataset|indices|batch|position|consumed|samples|order"),
    "model": re.compile(r"model|\bnet\b|module|weight|param|bias|state_dict|layers?\b"),
}
"""Common names for the parts of a checkpoint; the outermost match in a path counts."""

_SAVE_HINTS: dict[TrainingPart, str] = {
    "model": "model.state_dict()",
    "optimizer": "optimizer.state_dict()",
    "scheduler": "scheduler.state_dict()",
    "data order": "the epoch and how many batches of it were seen, or the sampler's state",
    "rng": "torch.get_rng_state() (on a GPU torch.cuda.get_rng_state(), and those of random and numpy if used)",
}
_LOAD_HINTS: dict[TrainingPart, str] = {
    "model": "load it with model.load_state_dict(...)",
    "optimizer": "load it with optimizer.load_state_dict(...)",
    "scheduler": "load it with scheduler.load_state_dict(...)",
    "data order": "begin the epoch again with the same order and skip those batches",
    "rng": "set it with torch.set_rng_state(...) once models and data loaders are made, which draw numbers too",
}


@dataclass(frozen=True)
class NotRestored:
    """A part of the training that was not restored to its earlier state."""

    part: TrainingPart
    evidence: str
    hint: str


def diagnose(
    went_on: TraceNotes,
    resumed: TraceNotes,
    *,
    checkpoint: str,
    paths: Sequence[str],
    differences: Sequence[Difference],
    repeatable: bool,
) -> tuple[NotRestored, ...]:
    """Return what was not restored, each with its evidence.

    `paths` are the checkpoint's leaves, `differences` those between the run and its replay, and `repeatable` is whether
    two replays were equal.
    """
    held = frozenset(classify_name(path) for path in paths)
    found: dict[TrainingPart, str] = {}
    for rank in sorted(went_on):
        for part, evidence in _find_divergences(went_on[rank], resumed.get(rank, ()), f"on rank {rank}", held):
            found.setdefault(part, evidence)
    if not found:
        found = dict(_infer_from_differences(differences))
    if not found and not repeatable:
        found = {"rng": "two replays from the same checkpoint differ from each other: something random is not seeded"}
    if not found:
        found = {"something": f"two replays agree with each other and not with the run: {differences[0]}"}
    return tuple(
        NotRestored(part, evidence, _make_hint(part, checkpoint, part in held)) for part, evidence in found.items()
    )


def classify_name(path: str) -> TrainingPart:
    """Guess the part of a training that a name in a checkpoint belongs to."""
    for name in re.split(r"[.:/]", path.lower()):
        for part, pattern in _NAME_PATTERNS.items():
            if pattern.search(name):
                return part
    return "something"


def _find_divergences(
    went_on: Sequence[TraceNote], resumed: Sequence[TraceNote], where: str, held: frozenset[TrainingPart]
) -> Iterator[tuple[TrainingPart, str]]:
    calls, again = (
        _select_first_object(went_on, "forward", "module"),
        _select_first_object(resumed, "forward", "module"),
    )
    if calls and again:
        yield from _compare_calls(calls, again, where)
    steps, steps_again = (
        _select_first_object(went_on, "step", "optimizer"),
        _select_first_object(resumed, "step", "optimizer"),
    )
    if steps and steps_again:
        yield from _compare_steps(steps, steps_again, where, held)
    yield from _compare_generators(went_on, resumed, where)


def _select_first_object(notes: Sequence[TraceNote], kind: str, key: str) -> list[TraceNote]:
    """Return the notes about one model or optimizer, the first that appears."""
    chosen = [note for note in notes if note["kind"] == kind and note.get("has_parameters", True)]
    return [note for note in chosen if note[key] == chosen[0][key]]


def _compare_calls(
    calls: Sequence[TraceNote], again: Sequence[TraceNote], where: str
) -> Iterator[tuple[TrainingPart, str]]:
    weights = [
        name
        for what in ("parameters", "buffers")
        for name, value in calls[0].get(what, {}).items()
        if again[0].get(what, {}).get(name) != value
    ]
    if weights:
        yield "model", f"{_join_names(weights)} of the model differ {where} at its first call after the checkpoint"
    elif calls[0]["training"] != again[0]["training"]:
        modes = ["evaluation", "training"]
        yield "model", f"the model is in {modes[again[0]['training']]} mode {where} after the checkpoint"
    for number, (one, two) in enumerate(zip(calls, again, strict=False), start=1):
        if one["inputs"] != two["inputs"]:
            seen = next((n for n, call in enumerate(again, start=1) if call["inputs"] == one["inputs"]), None)
            but = f"; what it should have been given comes at call {seen}" if seen is not None else ""
            yield "data order", f"the model is given another batch {where} at call {number} after the checkpoint{but}"
            return


def _compare_steps(
    steps: Sequence[TraceNote], again: Sequence[TraceNote], where: str, held: frozenset[TrainingPart]
) -> Iterator[tuple[TrainingPart, str]]:
    state, other = steps[0].get("state", {}), again[0].get("state", {})
    differing = [name for name in state if other.get(name) != state[name]]
    if differing:
        what = "is empty" if not other else f"differs in {_join_names([f'state.{name}' for name in differing])}"
        yield "optimizer", f"the optimizer's state {what} {where} at its first step after the checkpoint"
    for number, (one, two) in enumerate(zip(steps, again, strict=False), start=1):
        names = [name for name in one["hyper"] if one["hyper"][name] != two["hyper"].get(name)]
        if names:
            name = next((name for name in names if name.endswith(".lr")), names[0])
            told = f"{name.partition('.')[2]} is {two['hyper'].get(name)} instead of {one['hyper'][name]}"
            # The optimizer stores the learning rate: without it, the rate is wrong even if the scheduler was restored.
            of_optimizer = not name.endswith(".lr") or ("scheduler" in held and (differing or "optimizer" not in held))
            part: TrainingPart = "optimizer" if of_optimizer else "scheduler"
            yield part, f"{told} {where} at step {number} after the checkpoint"
            return


def _compare_generators(
    went_on: Sequence[TraceNote], resumed: Sequence[TraceNote], where: str
) -> Iterator[tuple[TrainingPart, str]]:
    """Report generators whose state differs at the first note; ignore those that nobody draws from."""
    if not went_on or not resumed:
        return
    first, again = went_on[0]["rng"], resumed[0]["rng"]
    drawn = [name for name, state in first.items() if any(note["rng"].get(name) != state for note in went_on[1:])]
    differing = [name for name in drawn if again.get(name) != first[name]]
    if differing:
        at = {"forward": "first call of the model", "step": "first optimizer step", "report": "first report"}
        evidence = f"the random numbers of {_join_names(differing)} go on elsewhere {where}, from the "
        yield "rng", f"{evidence}{at[went_on[0]['kind']]} after the checkpoint on"


def _infer_from_differences(differences: Sequence[Difference]) -> Iterator[tuple[TrainingPart, str]]:
    """Without notes, use names: of a learning-rate metric, or of leaves in the next checkpoint."""
    first = differences[0] if differences else None
    if first is not None and re.search(r"(^|[/_.])(lr|learning_rate)", first.name):
        yield "scheduler", f"the first thing to differ is {first}"
        return
    leaves = [difference for difference in differences if difference.kind == "state"]
    for part in ("scheduler", "optimizer", "rng", "data order"):
        of_part = [leaf for leaf in leaves if classify_name(leaf.name) == part]
        if of_part:
            yield part, f"{_join_names([leaf.name for leaf in of_part])} differ in the next checkpoint"


def _make_hint(part: TrainingPart, checkpoint: str, held: bool) -> str:
    if part == "something":
        return "look at what the function keeps between steps that is not in its checkpoint"
    if held:
        return f"{checkpoint} holds something like it: {_LOAD_HINTS[part]}"
    return f"{checkpoint} holds nothing like it: put {_SAVE_HINTS[part]} into the checkpoint, and {_LOAD_HINTS[part]}"


def _join_names(names: Sequence[str], at_most: int = 3) -> str:
    shown = ", ".join(names[:at_most])
    return shown if len(names) <= at_most else f"{shown} and {len(names) - at_most} more"
