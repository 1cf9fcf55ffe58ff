"""What TerminateOnNan looks at, and when it looks anew."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from shoal.engine import Engine, Events
from shoal.errors import UsageError
from shoal.handlers import TerminateOnNan

NAN = float("nan")


def stopped(output):
    engine = Engine(lambda engine, batch: output)
    engine.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())
    return engine.run([1, 2]).iteration == 1


@pytest.mark.parametrize(
    "output",
    [
        NAN, complex(1, NAN), np.float32(NAN), np.float16("inf"), np.array([1.0, NAN]), np.array([1 + 1j * NAN]),
        Decimal("NaN"), Decimal("sNaN"), {1.0, NAN}, {"a": [(np.float32(NAN),)]}, torch.tensor(1 + 1j * NAN),
        torch.tensor([NAN]).to(torch.float8_e4m3fn), torch.tensor([[0.0, NAN]]).to_sparse(),
        torch.tensor(NAN, dtype=torch.bfloat16),
    ],
    ids=repr,
)  # fmt: skip
def test_numbers_of_all_kinds_are_looked_at(output):
    assert stopped(output)


@pytest.mark.parametrize(
    "output",
    [
        10**400, True, "nan", b"nan", None, object(), Fraction(10**400, 3), Decimal("1e999"), np.int64(3),
        np.array(["a"]), np.array([1, None], dtype=object), np.array([]), torch.tensor([]), torch.tensor([1, 2]),
        torch.tensor([True]),
        torch.tensor([[0.0, 1.0]]).to_sparse(), torch.tensor(1e30, dtype=torch.float64), set(), {},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_finite_or_no_number_stops_nothing(output):
    assert not stopped(output)


def test_a_run_anew_is_stopped_at_the_same_iteration():
    outputs = iter([NAN, NAN, 1.0, 2.0])
    engine, handler = Engine(lambda engine, batch: next(outputs)), TerminateOnNan()
    engine.add_event_handler(Events.ITERATION_COMPLETED, handler)
    for iterations, found in ((1, True), (1, True), (2, False)):
        engine.state.max_epochs = None
        assert engine.run([1, 2]).iteration == iterations
        assert handler.found is found


@pytest.mark.parametrize("wrong", [{"agree_every": 0}, {"agree_every": 2.5}, {"agree_every": True}])
def test_arguments_that_cannot_work_are_refused(wrong):
    with pytest.raises(UsageError, match="whole number from 1"):
        TerminateOnNan(**wrong)
    with pytest.raises(UsageError, match="give a function"):
        TerminateOnNan(3)
