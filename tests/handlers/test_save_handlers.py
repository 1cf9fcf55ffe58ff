"""What may save instead of a folder: how it is called, and what its failures do."""

from __future__ import annotations

import pytest
from torch import nn

from shoal.engine import Engine, Events
from shoal.errors import UsageError
from shoal.handlers import Checkpoint, DiskSaver


def _run(save_handler):
    trainer = Engine(lambda engine, batch: None)
    checkpoint = Checkpoint({"m": nn.Linear(1, 1)}, save_handler)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, checkpoint)
    trainer.run([0], max_epochs=3)
    return checkpoint


def _saves_by(kind):
    calls = []

    class Two:
        def __call__(self, checkpoint, filename):
            calls.append((filename,))

        def remove(self, filename):
            calls.append(("gone", filename))

    class Three(Two):
        def __call__(self, checkpoint, filename, metadata=None):
            calls.append((filename, metadata["step"]))

    handlers = {
        "object of two": Two(),
        "object of three": Three(),
        "function of two": lambda checkpoint, filename: calls.append((filename,)),
        "function of three": lambda checkpoint, filename, metadata: calls.append((filename, metadata["step"])),
        "function with an option": lambda checkpoint, filename, folder="a": calls.append((filename, folder)),
    }
    return handlers[kind], calls


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        ("object of two", [("m_1.pt",), ("m_2.pt",), ("gone", "m_1.pt"), ("m_3.pt",), ("gone", "m_2.pt")]),
        ("object of three", [("m_1.pt", 1), ("m_2.pt", 2), ("gone", "m_1.pt"), ("m_3.pt", 3), ("gone", "m_2.pt")]),
        ("function of two", [("m_1.pt",), ("m_2.pt",), ("m_3.pt",)]),
        ("function of three", [("m_1.pt", 1), ("m_2.pt", 2), ("m_3.pt", 3)]),
        ("function with an option", [("m_1.pt", "a"), ("m_2.pt", "a"), ("m_3.pt", "a")]),
    ],
)
def test_it_is_called_with_what_it_takes(kind, calls):
    save_handler, seen = _saves_by(kind)
    _run(save_handler)
    assert seen == calls


def test_what_takes_something_else_is_refused_when_the_handler_is_made():
    with pytest.raises(UsageError, match=r"which takes \(checkpoint\)"):
        Checkpoint({"m": nn.Linear(1, 1)}, lambda checkpoint: None)


def test_an_old_one_that_cannot_be_removed_does_not_end_the_training(caplog):
    class Service:
        def __call__(self, checkpoint, filename, metadata=None):
            pass

        def remove(self, filename):
            raise RuntimeError("no connection")

    assert _run(Service()).last_checkpoint == "m_3.pt"
    assert "Could not delete the old checkpoint 'm_2.pt': no connection" in caplog.text


def test_in_place_a_fixed_name_alternates(tmp_path):
    names = []
    trainer = Engine(lambda engine, batch: None)
    saver = DiskSaver(tmp_path, atomic=False)
    checkpoint = Checkpoint({"m": nn.Linear(1, 1)}, saver, filename_pattern="m.pt", include_self=True)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, checkpoint)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: names.append(checkpoint.last_checkpoint.name))
    trainer.run([0], max_epochs=3)
    assert names == ["m.pt", "m-2.pt", "m.pt"]
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]
    checkpoint(trainer)  # of the same step: the same one, again
    assert [path.name for path in tmp_path.iterdir()] == ["m-2.pt"] == [item.filename for item in checkpoint.saved]
