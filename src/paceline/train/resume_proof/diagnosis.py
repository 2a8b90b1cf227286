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

from paceline._core.arguments import join_first
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
    "data order": "the epoch and the number of batches consumed in it, or the sampler's state",
    "rng": "torch.get_rng_state() (on a GPU torch.cuda.get_rng_state(), and those of random and numpy if used)",
}
_LOAD_HINTS: dict[TrainingPart, str] = {
    "model": "load it with model.load_state_dict(...)",
    "optimizer": "load it with optimizer.load_state_dict(...)",
    "scheduler": "load it with scheduler.load_state_dict(...)",
    "data order": "restart the epoch in the same order and skip those batches",
    "rng": "set it with torch.set_rng_state(...) after creating models and data loaders, which also draw numbers",
}


@dataclass(frozen=True)
class NotRestored:
    """A part of the training that was not restored to its earlier state."""

    part: TrainingPart
    evidence: str
    hint: str


def diagnose(
    continued: TraceNotes,
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
    saved_parts = frozenset(classify_name(path) for path in paths)
    evidence_by_part: dict[TrainingPart, str] = {}
    for rank in sorted(continued):
        for part, evidence in _find_divergences(continued[rank], resumed.get(rank, ()), f"on rank {rank}", saved_parts):
            evidence_by_part.setdefault(part, evidence)
    if not evidence_by_part:
        evidence_by_part = dict(_infer_from_differences(differences))
    if not evidence_by_part and not repeatable:
        evidence_by_part = {"rng": "two replays from the same checkpoint differ: a random generator is not seeded"}
    if not evidence_by_part:
        evidence_by_part = {"something": f"two replays agree with each other but not with the run: {differences[0]}"}
    return tuple(
        NotRestored(part, evidence, _make_hint(part, checkpoint, part in saved_parts))
        for part, evidence in evidence_by_part.items()
    )


def classify_name(path: str) -> TrainingPart:
    """Guess the part of a training that a name in a checkpoint belongs to."""
    for name in re.split(r"[.:/]", path.lower()):
        for part, pattern in _NAME_PATTERNS.items():
            if pattern.search(name):
                return part
    return "something"


def _find_divergences(
    continued: Sequence[TraceNote], resumed: Sequence[TraceNote], rank_text: str, saved_parts: frozenset[TrainingPart]
) -> Iterator[tuple[TrainingPart, str]]:
    calls, calls_after = (_select_first_object(notes, "forward", "module") for notes in (continued, resumed))
    if calls and calls_after:
        yield from _compare_calls(calls, calls_after, rank_text)
    steps, steps_after = (_select_first_object(notes, "step", "optimizer") for notes in (continued, resumed))
    if steps and steps_after:
        yield from _compare_steps(steps, steps_after, rank_text, saved_parts)
    yield from _compare_generators(continued, resumed, rank_text)


def _select_first_object(notes: Sequence[TraceNote], kind: str, key: str) -> list[TraceNote]:
    """Return the notes about one model or optimizer, the first that appears."""
    chosen = [note for note in notes if note["kind"] == kind and note.get("has_parameters", True)]
    return [note for note in chosen if note[key] == chosen[0][key]]


def _compare_calls(
    calls: Sequence[TraceNote], calls_after: Sequence[TraceNote], rank_text: str
) -> Iterator[tuple[TrainingPart, str]]:
    weights = [
        name
        for kind in ("parameters", "buffers")
        for name, value in calls[0].get(kind, {}).items()
        if calls_after[0].get(kind, {}).get(name) != value
    ]
    if weights:
        yield "model", f"{join_first(weights)} of the model differ {rank_text} at its first call after the checkpoint"
    elif calls[0]["training"] != calls_after[0]["training"]:
        modes = ["evaluation", "training"]
        yield "model", f"the model is in {modes[calls_after[0]['training']]} mode {rank_text} after the checkpoint"
    for number, (call, call_after) in enumerate(zip(calls, calls_after, strict=False), start=1):
        if call["inputs"] != call_after["inputs"]:
            later = next((n for n, each in enumerate(calls_after, start=1) if each["inputs"] == call["inputs"]), None)
            addition = f"; the expected batch comes at call {later}" if later is not None else ""
            evidence = f"the model gets a different batch {rank_text} at call {number} after the checkpoint{addition}"
            yield "data order", evidence
            return


def _compare_steps(
    steps: Sequence[TraceNote], steps_after: Sequence[TraceNote], rank_text: str, saved_parts: frozenset[TrainingPart]
) -> Iterator[tuple[TrainingPart, str]]:
    state, state_after = steps[0].get("state", {}), steps_after[0].get("state", {})
    differing = [name for name in state if state_after.get(name) != state[name]]
    if differing:
        listed = join_first([f"state.{name}" for name in differing])
        problem = f"differs in {listed}" if state_after else "is empty"
        yield "optimizer", f"the optimizer's state {problem} {rank_text} at its first step after the checkpoint"
    for number, (step, step_after) in enumerate(zip(steps, steps_after, strict=False), start=1):
        names = [name for name in step["hyper"] if step["hyper"][name] != step_after["hyper"].get(name)]
        if names:
            name = next((name for name in names if name.endswith(".lr")), names[0])
            change = f"{name.partition('.')[2]} is {step_after['hyper'].get(name)} instead of {step['hyper'][name]}"
            # The optimizer stores the learning rate: without it, the rate is wrong even if the scheduler was restored.
            of_optimizer = not name.endswith(".lr") or (
                "scheduler" in saved_parts and (differing or "optimizer" not in saved_parts)
            )
            part: TrainingPart = "optimizer" if of_optimizer else "scheduler"
            yield part, f"{change} {rank_text} at step {number} after the checkpoint"
            return


def _compare_generators(
    continued: Sequence[TraceNote], resumed: Sequence[TraceNote], rank_text: str
) -> Iterator[tuple[TrainingPart, str]]:
    """Report generators whose state differs at the first note; ignore those that nobody draws from."""
    if not continued or not resumed:
        return
    states, states_after = continued[0]["rng"], resumed[0]["rng"]
    drawn = [name for name, state in states.items() if any(note["rng"].get(name) != state for note in continued[1:])]
    differing = [name for name in drawn if states_after.get(name) != states[name]]
    if differing:
        at = {"forward": "first call of the model", "step": "first optimizer step", "report": "first report"}
        evidence = f"the random state of {join_first(differing)} differs {rank_text} at the "
        yield "rng", f"{evidence}{at[continued[0]['kind']]} after the checkpoint"


def _infer_from_differences(differences: Sequence[Difference]) -> Iterator[tuple[TrainingPart, str]]:
    """Without notes, use names: of a learning-rate metric, or of leaves in the next checkpoint."""
    first = differences[0] if differences else None
    if first is not None and re.search(r"(^|[/_.])(lr|learning_rate)", first.name):
        yield "scheduler", f"the first difference is {first}"
        return
    leaves = [difference for difference in differences if difference.kind == "state"]
    for part in ("scheduler", "optimizer", "rng", "data order"):
        of_part = [leaf for leaf in leaves if classify_name(leaf.name) == part]
        if of_part:
            yield part, f"{join_first([leaf.name for leaf in of_part])} differ in the next checkpoint"


def _make_hint(part: TrainingPart, checkpoint: str, saved_parts: bool) -> str:
    if part == "something":
        return "look for state that the function keeps between steps but does not checkpoint"
    if saved_parts:
        return f"{checkpoint} contains something like it: {_LOAD_HINTS[part]}"
    return f"{checkpoint} contains nothing like it: add {_SAVE_HINTS[part]} to the checkpoint, and {_LOAD_HINTS[part]}"
