"""States that are not the object's, and arguments that cannot work."""

import pytest
import torch

from shoal.errors import CheckpointError, UsageError
from shoal.handlers import Checkpoint


def test_a_single_object_does_not_take_the_states_of_others():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    model = torch.nn.Linear(1, 1)
    states = {"model": model.state_dict(), "lr_schedule": scheduler.state_dict()}
    with pytest.raises(CheckpointError, match="'scheduler' is missing"):
        Checkpoint.load_objects({"scheduler": scheduler}, states)
    with pytest.raises(CheckpointError, match=r"'modle' is missing \(did you mean 'model'\?\)"):
        Checkpoint.load_objects({"modle": model}, states, strict=False)
    assert not hasattr(scheduler, "model")
    Checkpoint.load_objects({"scheduler": scheduler}, scheduler.state_dict())


@pytest.mark.parametrize(
    "arguments",
    [
        {"n_saved": 1.5},
        {"n_saved": "2"},
        {"save_on_rank": "0"},
        {"save_on_rank": -1},
        {"score_function": 3},
        {"global_step_transform": 3},
        {"filename_prefix": 3},
        {"filename_pattern": "../{name}.{ext}"},
    ],
)
def test_arguments_that_cannot_work_are_refused_when_the_handler_is_made(arguments, tmp_path):
    with pytest.raises(UsageError):
        Checkpoint({"model": torch.nn.Linear(1, 1)}, tmp_path, **arguments)
