"""Whether a state fits an object, found out before the object is changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn

from shoal.errors import CheckpointError

__all__ = ["Differences", "check_fit", "fit_names", "is_checkable"]

_OUTER_NAMES = ("module.",)  # also an ordinary name of a submodule: taken off at the front alone
_INNER_NAMES = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_SHOWN = 10
# Of torch's optimizers; found too late otherwise, when the optimizer steps.
_SHAPED_LIKE_PARAMETER = frozenset(
    {"exp_avg", "exp_avg_sq", "exp_inf", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum"}
)
# A state of an older torch lacks it, and torch then fills it in.
_FILLED_IN = "num_batches_tracked"


@dataclass(frozen=True, slots=True)
class Differences:
    """What keeps a state from being exactly a module's.

    Attributes:
        missing: names that the module has and the state lacks.
        unexpected: names that the state has and the module lacks.
        misshapen: for names that both have with different shapes, ``name: (2, 3) in the state, (2, 4) in the model``.
    """

    missing: Sequence[str] = ()
    unexpected: Sequence[str] = ()
    misshapen: Sequence[str] = ()

    def __str__(self) -> str:
        parts = (
            ("missing in the state", self.missing),
            ("unexpected in the state", self.unexpected),
            ("of another shape", self.misshapen),
        )
        return "; ".join(f"{label}: {_shorten(names)}" for label, names in parts if names)


def is_checkable(item: Any) -> bool:
    """Whether :func:`check_fit` can tell beforehand if ``item`` takes a state: torch's own way of loading, no hooks."""
    if isinstance(item, nn.Module):
        return type(item).load_state_dict is nn.Module.load_state_dict and all(
            _loads_plainly(part) for part in item.modules()
        )
    if isinstance(item, torch.optim.Optimizer):
        hooks = getattr(item, "_optimizer_load_state_dict_pre_hooks", {})
        return type(item).load_state_dict is torch.optim.Optimizer.load_state_dict and not hooks
    return False


def check_fit(name: str, item: Any, state: Any, *, strict: bool) -> None:
    """Check a state that :func:`fit_names` has made fit, where :func:`is_checkable`; nothing is changed.

    Raises:
        CheckpointError: the object would not take it; the text says which keys, or groups, differ.
    """
    problem = _module_problem(item, state, strict) if isinstance(item, nn.Module) else _optimizer_problem(item, state)
    if problem is not None:
        raise CheckpointError(
            f"asked to load the state of {name!r} into a {type(item).__qualname__}, which does not take it: {problem}"
        )


def fit_names(module: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state under the module's own names, where wrappers have put theirs before or into them, in either of the two.

    What ``torch.compile`` and FSDP put in is left out of the comparison wherever it stands; ``module.``, of
    DistributedDataParallel, at the front of every name alone.
    """
    wanted = {_inner(name): name for name in module.state_dict()}
    if not all(isinstance(key, str) for key in state) or set(state) <= set(wanted.values()):
        return state
    outer = ""
    names = {key: _inner(key) for key in state}
    if not set(names.values()) & set(wanted):
        outer = next((lead for lead in _OUTER_NAMES if all(name.startswith(lead) for name in names.values())), "")
    fitting: OrderedDict[str, Any] = OrderedDict()
    for key, value in state.items():
        bare = names[key].removeprefix(outer)
        fitting[wanted.get(bare, bare)] = value
    metadata = getattr(state, "_metadata", None)
    if metadata is not None:  # versions of the modules' states, by the modules' names
        own = {_inner(prefix): prefix for prefix in _metadata_of(module)}
        renamed = {_inner(prefix): version for prefix, version in metadata.items()}
        lead = outer.removesuffix(".")
        bare_versions = {prefix.removeprefix(lead).removeprefix("."): version for prefix, version in renamed.items()}
        fitting._metadata = {own.get(bare, bare): version for bare, version in bare_versions.items()}  # type: ignore[attr-defined]
    return fitting


def _inner(name: str) -> str:
    if not any(part in name for part in _INNER_NAMES):
        return name
    return ".".join(part for part in name.split(".") if part not in _INNER_NAMES)


def _metadata_of(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_modules()]


def _loads_plainly(part: nn.Module) -> bool:
    own = type(part)._load_from_state_dict is not nn.Module._load_from_state_dict
    return not part._load_state_dict_pre_hooks and (not own or isinstance(part, nn.modules.batchnorm._NormBase))


def _module_problem(module: nn.Module, state: Any, strict: bool) -> str | None:
    if not isinstance(state, Mapping):
        return f"it is a {type(state).__qualname__}, not a mapping from names to tensors; use a model's state"
    own = module.state_dict()
    found = Differences(
        missing=[name for name in own if name not in state and not name.endswith(_FILLED_IN)] if strict else [],
        unexpected=[str(name) for name in state if name not in own] if strict else [],
        misshapen=[
            f"{name}: {tuple(state[name].shape)} in the state, {tuple(tensor.shape)} in the model"
            for name, tensor in own.items()
            if _differ_in_shape(tensor, state.get(name))
        ],
    )
    if found.misshapen:
        return f"{found}. Build the model as it was when it was saved"
    if found.missing or found.unexpected:
        return f"{found}. Use a checkpoint of the same model, or strict=False to load only what both have"
    return None


def _differ_in_shape(own: Any, given: Any) -> bool:
    if not isinstance(own, torch.Tensor) or not isinstance(given, torch.Tensor):
        return False
    one_number = own.dim() == 0 and tuple(given.shape) == (1,)  # which torch takes
    return own.shape != given.shape and not one_number


def _optimizer_problem(optimizer: torch.optim.Optimizer, state: Any) -> str | None:
    try:
        groups, by_id = [list(group["params"]) for group in state["param_groups"]], dict(state["state"])
    except (TypeError, KeyError, ValueError, IndexError):
        return "it is not an optimizer's, which has 'state' and 'param_groups'; use an optimizer's state"
    own = [list(group["params"]) for group in optimizer.param_groups]
    if [len(group) for group in own] != [len(group) for group in groups]:
        return (
            f"its groups have {[len(group) for group in groups]} parameters, the optimizer's "
            f"{[len(group) for group in own]}; give the optimizer the same parameters in the same groups as when it "
            "was saved"
        )
    pairs = zip(chain(*own), chain(*groups), strict=True)
    misshapen = [
        f"{name} of parameter {place}: {tuple(value.shape)} in the state, {tuple(parameter.shape)} in the model"
        for place, (parameter, key) in enumerate(pairs)
        for name, value in by_id.get(key, {}).items()
        if name in _SHAPED_LIKE_PARAMETER and _differ_in_shape(parameter, value)
    ]
    if misshapen:
        return f"{Differences(misshapen=misshapen)}. Use the state of an optimizer of the same model"
    return None


def _shorten(names: Sequence[str]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
