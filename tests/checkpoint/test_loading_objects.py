"""Loading into several objects: what differs is said, and nothing is changed where something does not fit."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import nn

from shoal.engine import Engine
from shoal.errors import CheckpointError, UsageError
from shoal.handlers import Checkpoint


class Own:
    """An object that says only while it loads whether it takes the state."""

    def __init__(self, value=0):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]
        if self.value < 0:
            raise ValueError("below zero")


def _objects(features=2):
    model = nn.Sequential(nn.Linear(3, features), nn.BatchNorm1d(features))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * features)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, features)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "schedule": schedule, "own": Own(features)}


def _states(objects):
    return {name: copy.deepcopy(item.state_dict()) for name, item in objects.items()}


def _same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


def _break_keys(states):
    states["model"]["extra"] = states["model"].pop("0.bias")


def _break_shape(states):
    states["model"]["0.weight"] = torch.zeros(2, 4)


def _break_groups(states):
    states["optimizer"]["param_groups"][0]["params"].pop()


def _break_moments(states):
    states["optimizer"]["state"][1]["exp_avg"] = torch.zeros(7)


def _break_optimizer(states):
    states["optimizer"]["param_groups"] = [{"lr": 0.1}]


def _break_kind(states):
    states["optimizer"], states["model"] = states["model"], states["optimizer"]


def _break_own(states):
    states["own"]["value"] = -1


def _break_missing(states):
    del states["schedule"]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (_break_keys, r"'model'.*missing in the state: 0\.bias; unexpected in the state: extra.*strict=False"),
        (_break_shape, r"'model'.*0\.weight: \(2, 4\) in the state, \(2, 3\) in the model"),
        (_break_groups, r"'optimizer'.*its groups have \[3\] parameters, the optimizer's \[4\]"),
        (_break_moments, r"exp_avg of parameter 1: \(7,\) in the state, \(2,\) in the model"),
        (_break_optimizer, r"'optimizer'.*it is not an optimizer's"),
        (_break_kind, r"'model'|'optimizer'"),
        (_break_own, r"'own' into a Own.*below zero"),
        (_break_missing, r"'schedule' is missing"),
    ],
)
def test_where_one_object_does_not_take_its_state_all_stay_as_they_were(damage, text):
    states, objects = _states(_objects()), _objects()
    objects["own"].value = 5
    before = _states(objects)
    damage(states)
    with pytest.raises(CheckpointError, match=text):
        Checkpoint.load_objects(objects, states)
    assert _same(_states(objects), before)


def test_what_cannot_be_given_back_is_said():
    class Stubborn(Own):
        def load_state_dict(self, state):
            if state["value"] == 3:
                raise OSError("gone")
            self.value = state["value"]

    objects = {"stubborn": Stubborn(3), "own": Own()}
    with pytest.raises(CheckpointError, match="below zero") as caught:
        Checkpoint.load_objects(objects, {"stubborn": {"value": 1}, "own": {"value": -1}})
    assert caught.value.__notes__ == ["The state of 'stubborn' could not be given back: OSError: gone"]


def test_only_so_many_keys_are_shown():
    class Wide(nn.Module):
        def __init__(self, names):
            super().__init__()
            for name in names:
                self.register_buffer(name, torch.zeros(1))

    one, other = Wide([f"a{i:03}" for i in range(300)]), Wide([f"b{i:03}" for i in range(12)])
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.load_objects({"wide": one}, {"wide": other.state_dict()})
    text = str(caught.value)
    assert "a009, … (300 in all)" in text and "a010" not in text
    assert "b009, … (12 in all)" in text


def test_strict_false_loads_what_both_have_and_says_the_rest(caplog):
    source, target = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)
    with caplog.at_level(logging.WARNING):
        Checkpoint.load_objects({"model": target}, {"model": source.state_dict()}, strict=False)
    assert torch.equal(target.weight, source.weight)
    assert "unexpected in the state: bias" in caplog.text
    with pytest.raises(CheckpointError, match="of another shape"):
        Checkpoint.load_objects({"model": nn.Linear(3, 2)}, {"model": source.state_dict()}, strict=False)


def test_assign_takes_over_the_tensors_and_their_dtype():
    state = {"weight": torch.ones(1, 2, dtype=torch.bfloat16), "bias": torch.zeros(1, dtype=torch.bfloat16)}
    model = nn.Linear(2, 1)
    Checkpoint.load_objects({"model": model}, state, assign=True)
    assert model.weight.dtype is torch.bfloat16


def _compiled(model):
    model[0] = torch.compile(model[0])
    return torch.compile(model)


@pytest.mark.parametrize("saved", [lambda m: m, nn.DataParallel, _compiled, lambda m: nn.DataParallel(_compiled(m))])
@pytest.mark.parametrize(
    "loaded", [lambda m: m, nn.DataParallel, _compiled, lambda m: nn.DataParallel(torch.compile(m))]
)
def test_wrapped_and_bare_models_take_each_others_files(saved, loaded):
    def bare():
        return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    source, target = saved(bare()), loaded(bare())
    Checkpoint.load_objects({"model": target}, {"model": source.state_dict()})
    for one, other in zip(source.state_dict().values(), target.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_versions_of_layers_are_found_under_their_new_names():
    source = nn.Sequential(nn.BatchNorm1d(2))
    state = nn.DataParallel(source).state_dict()
    del state["module.0.num_batches_tracked"]  # version 2 has it, and is told so by the state
    with pytest.raises(CheckpointError, match="num_batches_tracked"):
        Checkpoint.load_objects({"model": nn.Sequential(nn.BatchNorm1d(2))}, {"model": state})
    state._metadata["module.0"]["version"] = 1  # version 1 had not
    Checkpoint.load_objects({"model": nn.Sequential(nn.BatchNorm1d(2))}, {"model": state})


def test_a_module_that_loads_in_its_own_way_is_not_judged_beforehand():
    class Renamed(nn.Linear):
        def _load_from_state_dict(self, state_dict, prefix, *args):
            if f"{prefix}kernel" in state_dict:
                state_dict[f"{prefix}weight"] = state_dict.pop(f"{prefix}kernel")
            super()._load_from_state_dict(state_dict, prefix, *args)

    model = nn.Sequential(Renamed(2, 1))
    Checkpoint.load_objects({"model": model}, {"model": {"0.kernel": torch.ones(1, 2), "0.bias": torch.ones(1)}})
    assert model[0].weight.tolist() == [[1, 1]]
    with pytest.raises(CheckpointError, match="below zero"):
        Checkpoint.load_objects(
            {"model": model, "own": Own()},
            {"model": {"0.kernel": torch.zeros(1, 2), "0.bias": torch.ones(1)}, "own": {"value": -1}},
        )
    assert model[0].weight.tolist() == [[1, 1]]


def test_objects_in_dicts_and_lists(tmp_path):
    model = nn.Linear(2, 1)

    def objects(value):
        optimizers = [torch.optim.SGD(model.parameters(), lr=value), torch.optim.Adam(model.parameters(), lr=value)]
        return {"model": model, "optimizers": optimizers, "more": {"own": Own(value), "pair": (Own(value), Own(0))}}

    trainer = Engine(lambda engine, batch: None)
    saved, loaded = objects(0.5), objects(0.25)
    Checkpoint(saved, tmp_path)(trainer)
    Checkpoint({"optimizers": saved["optimizers"]}, tmp_path)(trainer)
    state = torch.load(tmp_path / "checkpoint_0.pt", weights_only=True)
    assert state["more"] == {"own": {"value": 0.5}, "pair": [{"value": 0.5}, {"value": 0}]}
    Checkpoint.load_objects(loaded, state)
    assert loaded["more"]["own"].value == loaded["more"]["pair"][0].value == 0.5
    for path in (tmp_path / "optimizers_0.pt", tmp_path / "checkpoint_0.pt"):
        loaded = objects(0.25)
        Checkpoint.load_objects({"optimizers": loaded["optimizers"]}, path)
        assert [optimizer.param_groups[0]["lr"] for optimizer in loaded["optimizers"]] == [0.5, 0.5]
    loaded["optimizers"].append(torch.optim.SGD(model.parameters(), lr=1))
    with pytest.raises(CheckpointError, match=r"'optimizers\.2' is missing"):
        Checkpoint.load_objects(loaded, state)
    with pytest.raises(UsageError, match=r"to_save\['more\.bad'\] is a int"):
        Checkpoint({"more": {"bad": 3}}, tmp_path)


def test_an_engine_that_is_given_back_its_state_starts_from_nothing():
    done, engine = (Engine(lambda engine, batch: None) for _ in range(2))
    done.state_dict_user_keys.append("alpha")
    engine.state_dict_user_keys.append("alpha")
    done.state.alpha = 0.5
    done.run(range(3), max_epochs=2)
    state = done.state_dict()
    for alpha in (0.1, None):  # with None the state cannot be asked for before it is loaded
        if alpha is not None:
            engine.state.alpha = alpha
            with pytest.raises(CheckpointError, match="below zero"):
                Checkpoint.load_objects({"engine": engine, "own": Own()}, {"engine": state, "own": {"value": -1}})
            assert engine.run(range(3)).iteration == 3
        else:
            engine = Engine(lambda engine, batch: None)
            engine.state_dict_user_keys.append("alpha")
            Checkpoint.load_objects({"engine": engine}, state)
            assert (engine.state.alpha, engine.state.epoch) == (0.5, 2)
