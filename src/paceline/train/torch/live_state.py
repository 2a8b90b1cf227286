"""Convert live objects such as models and optimizers to a tree of tensors and values, and load it back.

Models use `torch.distributed.checkpoint.state_dict`: names are those of the unwrapped model. Optimizer state is named
by the model's parameters here, because torch's own function makes an optimizer without state take a step, and saving
must not change anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from paceline._core.arguments import join_first
from paceline.train.torch.outline import Outline, iterate_tensor_names, make_outline, rebuild_tree
from paceline.train.torch.shard_reader import StoredState

_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""Prefixes that torch.compile, FullyShardedDataParallel and activation checkpointing add to names."""


@dataclass(frozen=True)
class StateTree:
    outline: Outline
    tensors: dict[str, torch.Tensor]
    replicated: frozenset[str]
    """Tensors that are equal on all ranks unless they are sharded: weights and their optimizer state."""


def capture_state(state: Mapping[str, Any]) -> StateTree:
    """Return what to store of a state. The tensors are those of the live objects, not copies."""
    tensors: dict[str, torch.Tensor] = {}
    outlines: dict[str, Outline] = {}
    replicated: set[str] = set()
    for key, value in state.items():
        outlines[key] = make_outline(_to_tree(key, value, state), (key,), into=tensors)
        if isinstance(value, Optimizer):
            replicated.update(iterate_tensor_names(outlines[key]))
        elif isinstance(value, nn.Module):
            replicated.update(f"{key}.{name}" for name in parameter_names(value).values())
    return StateTree({"dict": outlines}, tensors, frozenset(replicated & tensors.keys()))


def parameter_names(model: nn.Module) -> dict[nn.Parameter, str]:
    """Return the names of the parameters in the unwrapped model."""
    inside = [
        f"{prefix}." if prefix else ""
        for prefix, module in model.named_modules()
        if isinstance(module, DistributedDataParallel | DataParallel)
    ]
    names = {}
    for name, parameter in model.named_parameters():
        bare = name
        # Innermost first, so that removing one prefix does not shift the others.
        for prefix in sorted(inside, key=len, reverse=True):
            if name.startswith(f"{prefix}module."):
                bare = prefix + bare[len(prefix) + len("module.") :]
        for wrapper in _WRAPPERS:
            bare = bare.replace(wrapper, "")
        names[parameter] = bare
    return names


def plan_loading(
    key: str, state: Mapping[str, Any], stored: StoredState, strict: bool
) -> tuple[dict[str, torch.Tensor], Callable[[], dict[str, Any]]]:
    """Return the tensors to read for one entry of a state, by name, and a function to call once they are read.

    The function returns the entry's value if there is no object to restore it into.
    """
    value, outline = state[key], stored.outline["dict"][key]
    if isinstance(value, nn.Module):
        return _plan_model_loading(key, value, outline, strict)
    if isinstance(value, Optimizer):
        return _plan_optimizer_loading(key, value, _optimizer_parameter_names(key, value, state), outline, stored)
    targets: dict[str, torch.Tensor] = {}
    live: dict[str, torch.Tensor] = {}
    make_outline(_to_tree(key, value, state), (key,), into=live)

    def target(name: str) -> torch.Tensor:
        targets[name] = live[name] if name in live else stored.allocate_tensor(name)
        return targets[name]

    restored = rebuild_tree(outline, target)

    def load() -> dict[str, Any]:
        if not _has_state_dict(value):
            return {key: restored}
        value.load_state_dict(restored)
        return {}

    return targets, load


def _plan_model_loading(
    key: str, model: nn.Module, outline: Outline, strict: bool
) -> tuple[dict[str, torch.Tensor], Callable[[], dict[str, Any]]]:
    live: dict[str, torch.Tensor] = {}
    make_outline(get_model_state_dict(model), (key,), into=live)
    names = set(iterate_tensor_names(outline))
    _check_names(key, set(live), names, strict)
    targets = {name: tensor for name, tensor in live.items() if name in names}
    entries = {
        name: below for name, below in outline["dict"].items() if "tensor" not in below or below["tensor"] in live
    }

    def load() -> dict[str, Any]:
        weights = rebuild_tree({"dict": entries}, lambda name: targets[name])
        set_model_state_dict(model, weights, options=StateDictOptions(strict=strict))
        return {}

    return targets, load


def _plan_optimizer_loading(
    key: str, optimizer: Optimizer, names: Mapping[nn.Parameter, str], outline: Outline, stored: StoredState
) -> tuple[dict[str, torch.Tensor], Callable[[], dict[str, Any]]]:
    by_name = {name: parameter for parameter, name in names.items()}
    targets: dict[str, torch.Tensor] = {}

    def target(name: str) -> torch.Tensor:
        """Sharded like its parameter, if it has the same shape."""
        parameter = by_name.get(name.removeprefix(f"{key}.state.").rpartition(".")[0])
        if parameter is None or parameter.shape != stored.shapes[name]:
            targets[name] = stored.allocate_tensor(name)
        else:
            targets[name] = torch.empty_like(parameter, dtype=stored.dtypes[name], requires_grad=False)
        return targets[name]

    tree = rebuild_tree(outline, target)

    def load() -> dict[str, Any]:
        _load_optimizer(key, optimizer, names, tree)
        return {}

    return targets, load


def _to_tree(key: str, value: Any, state: Mapping[str, Any]) -> Any:
    if isinstance(value, nn.Module):
        return get_model_state_dict(value)
    if isinstance(value, Optimizer):
        return _optimizer_tree(value, _optimizer_parameter_names(key, value, state))
    return value.state_dict() if _has_state_dict(value) else value


def _has_state_dict(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _optimizer_parameter_names(key: str, optimizer: Optimizer, state: Mapping[str, Any]) -> dict[nn.Parameter, str]:
    """Return the names of an optimizer's parameters in the model they belong to, which must be in the same state."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    models = [value for value in state.values() if isinstance(value, nn.Module)]
    for model in models:
        names = parameter_names(model)
        if all(parameter in names for parameter in parameters):
            return {parameter: names[parameter] for parameter in parameters}
    raise ValueError(
        f"no model of the state has all {len(parameters)} parameters of the optimizer {key!r}, which name its state\n\n"
        'hint: store it together with its model, as in {"model": model, "optimizer": optimizer}; create the optimizer '
        "after fully_shard(model), which replaces the parameters"
    )


def _optimizer_tree(optimizer: Optimizer, names: Mapping[nn.Parameter, str]) -> dict[str, Any]:
    return {
        "state": {names[parameter]: dict(entry) for parameter, entry in optimizer.state.items() if parameter in names},
        "param_groups": [
            {**group, "params": [names[parameter] for parameter in group["params"]]} for group in optimizer.param_groups
        ],
    }


def _load_optimizer(key: str, optimizer: Optimizer, names: Mapping[nn.Parameter, str], tree: dict[str, Any]) -> None:
    numbers: dict[str, int] = {}
    groups = []
    stored = {frozenset(group["params"]): group for group in tree["param_groups"]}
    for group in optimizer.param_groups:
        members = [names[parameter] for parameter in group["params"]]
        if frozenset(members) not in stored:
            listed = join_first([*map(repr, members)])
            raise ValueError(
                f"{key!r}: the checkpoint has no group with exactly the parameters {listed}; "
                f"its groups are {'; '.join(join_first([*map(repr, sorted(each))]) for each in stored)}\n\n"
                "hint: divide the parameters into the groups they had when the checkpoint was saved"
            )
        for name in members:
            numbers[name] = len(numbers)
        groups.append({**stored[frozenset(members)], "params": [numbers[name] for name in members]})
    state = {numbers[name]: entry for name, entry in tree["state"].items() if name in numbers}
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _check_names(key: str, live: set[str], stored: set[str], strict: bool) -> None:
    missing, unknown = sorted(live - stored), sorted(stored - live)
    if strict and (missing or unknown):
        problems = [f"the checkpoint lacks {join_first([*map(repr, missing)])}"] if missing else []
        problems += [f"the model has no {join_first([*map(repr, unknown)])}"] if unknown else []
        raise ValueError(
            f"{key!r} does not match the checkpoint: {'; '.join(problems)}\n\n"
            "hint: load only what both have with strict=False"
        )
