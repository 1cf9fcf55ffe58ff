"""A supervised training step of a tiny model: what a library adds to the loop that one would write without it.

All sides train the same model from the same weights on the same batches, which lie in memory, with one thread; each
must end at the loss at which the bare loop ends. The model is tiny on purpose: what is added is fixed, and a bigger
model would hide it.
"""

from __future__ import annotations

import gc
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from harness import Outcome, Row, Side, Target, interleave, make_row, options, write_rows

TARGET = Target(1.03)
NUM_FEATURES, NUM_HIDDEN, NUM_CLASSES, BATCH_SIZE = 32, 64, 10, 32
LEARNING_RATE = 0.05
# Short turns and many of them: a few percent are asked about, and the machine's own speed drifts by more.
NUM_STEPS, ROUNDS = 400, 41
DEVICE = torch.device("cpu")

Batches = Sequence[tuple[Tensor, Tensor]]
"""Pairs of x of shape (BATCH_SIZE, NUM_FEATURES) and y of shape (BATCH_SIZE,)."""

Training = Callable[[Batches, nn.Module, torch.optim.Optimizer, nn.Module], tuple[float, float]]
"""Trains one epoch; returns the seconds of its loop, without what was set up before it, and the last loss."""


def bare_loop(
    batches: Batches, model: nn.Module, optimizer: torch.optim.Optimizer, loss_fn: nn.Module
) -> tuple[float, float]:
    """The loop of every PyTorch tutorial."""
    last = 0.0
    started = time.perf_counter()
    model.train()
    for x, y in batches:
        x, y = x.to(DEVICE), y.to(DEVICE)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        last = loss.item()
    return time.perf_counter() - started, last


def shoal_engine(
    batches: Batches, model: nn.Module, optimizer: torch.optim.Optimizer, loss_fn: nn.Module
) -> tuple[float, float]:
    from shoal.engine import create_supervised_trainer

    trainer = create_supervised_trainer(model, optimizer, loss_fn, device=DEVICE, output_transform=_loss_as_number)
    return _run_engine(trainer, batches)


def ignite_engine(
    batches: Batches, model: nn.Module, optimizer: torch.optim.Optimizer, loss_fn: nn.Module
) -> tuple[float, float]:
    from ignite.engine import create_supervised_trainer

    return _run_engine(create_supervised_trainer(model, optimizer, loss_fn, device=DEVICE), batches)


def _loss_as_number(_x: Tensor, _y: Tensor, _y_pred: Tensor, loss: Tensor) -> float:
    """What Ignite's trainer does unasked; without it Shoal's would do less than the other sides."""
    return loss.item()


def _run_engine(trainer: Any, batches: Batches) -> tuple[float, float]:
    started = time.perf_counter()
    trainer.run(batches, max_epochs=1)
    return time.perf_counter() - started, float(trainer.state.output)


def accelerate_loop(
    batches: Batches, model: nn.Module, optimizer: torch.optim.Optimizer, loss_fn: nn.Module
) -> tuple[float, float]:
    """As Accelerate's own introduction has it, less its loader: the batches are on the device already."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    last = 0.0
    started = time.perf_counter()
    model.train()
    for x, y in batches:
        x, y = x.to(accelerator.device), y.to(accelerator.device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        last = loss.item()
    return time.perf_counter() - started, last


def fabric_loop(
    batches: Batches, model: nn.Module, optimizer: torch.optim.Optimizer, loss_fn: nn.Module
) -> tuple[float, float]:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    wrapped: Any
    wrapped, optimizer = fabric.setup(model, optimizer)
    last = 0.0
    started = time.perf_counter()
    wrapped.train()
    for x, y in batches:
        x, y = fabric.to_device((x, y))
        optimizer.zero_grad()
        loss = loss_fn(wrapped(x), y)
        fabric.backward(loss)
        optimizer.step()
        last = loss.item()
    return time.perf_counter() - started, last


def lightning_trainer(*, barebones: bool) -> Training:
    """Lightning's Trainer with all that can be switched off switched off, or in its own mode for benchmarks."""

    def train(
        batches: Batches, model: nn.Module, optimizer: torch.optim.Optimizer, loss_fn: nn.Module
    ) -> tuple[float, float]:
        import lightning

        class Module(lightning.LightningModule):
            """The tiny model; it notes when its epoch starts and ends."""

            def __init__(self) -> None:
                super().__init__()
                self.model, self.loss_fn, self.last = model, loss_fn, 0.0
                self.started = self.ended = 0.0

            def training_step(self, batch: tuple[Tensor, Tensor], _batch_idx: int) -> Tensor:
                x, y = batch
                loss: Tensor = self.loss_fn(self.model(x), y)
                self.last = loss.item()
                return loss

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return optimizer

            def on_train_epoch_start(self) -> None:
                self.started = time.perf_counter()

            def on_train_epoch_end(self) -> None:
                self.ended = time.perf_counter()

        quiet: dict[str, Any] = {
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        module = Module()
        mode = {"barebones": True} if barebones else quiet
        trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=1, **mode)
        trainer.fit(module, InMemory(batches))
        return module.ended - module.started, module.last

    return train


class InMemory:
    """Batches as one loader: of a list, Lightning takes each item for a loader of its own."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self._batches)


def side(train: Training, batches: Batches, *, expected_loss: float) -> Side:
    """One training from the same start; fails where it doesn't end where the bare loop ends."""

    def measure() -> dict[str, float]:
        model, optimizer, loss_fn = fresh()
        gc.collect()
        seconds, last = train(batches, model, optimizer, loss_fn)
        if abs(last - expected_loss) > 1e-6:
            raise RuntimeError(f"trained to a loss of {last}; the bare loop trains to {expected_loss}")
        return {"step_us": seconds / len(batches) * 1e6}

    return measure


def fresh() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    """The model, with the same weights every time, its optimizer and its loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(NUM_FEATURES, NUM_HIDDEN), nn.ReLU(), nn.Linear(NUM_HIDDEN, NUM_CLASSES))
    return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9), nn.CrossEntropyLoss()


def make_batches(num_batches: int) -> Batches:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(BATCH_SIZE, NUM_FEATURES, generator=generator),
            torch.randint(NUM_CLASSES, (BATCH_SIZE,), generator=generator),
        )
        for _ in range(num_batches)
    ]


def _row(name: str, outcome: Outcome, peer: str, theirs: Outcome, *, note: str = "") -> Row:
    target = TARGET if (name, peer) == ("shoal", "bare loop") else None
    return make_row(
        "a step", quantity="step_us", unit="us", ours=outcome, peer=peer, theirs=theirs, target=target, note=note
    )


def main() -> None:
    given = options(__doc__)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    batches = make_batches(NUM_STEPS)
    _, expected_loss = bare_loop(batches, *fresh())
    trainings: dict[str, Training] = {
        "bare loop": bare_loop,
        "shoal": shoal_engine,
        "Ignite": ignite_engine,
        "Accelerate": accelerate_loop,
        "Fabric": fabric_loop,
        "Lightning": lightning_trainer(barebones=False),
        "Lightning, barebones": lightning_trainer(barebones=True),
    }
    sides = {name: side(train, batches, expected_loss=expected_loss) for name, train in trainings.items()}
    found = interleave(sides, rounds=3 if given.quick else ROUNDS, warmup_rounds=1)
    note = "bare loop = 1: " + ", ".join(
        f"{name} {ratio:.3g}"
        for name in trainings
        if name != "bare loop" and (ratio := _row(name, found[name], "bare loop", found["bare loop"]).ratio)
    )
    peers = [name for name in trainings if name != "shoal"]
    rows = [_row("shoal", found["shoal"], peer, found[peer], note=note) for peer in peers]
    write_rows(rows, given)


if __name__ == "__main__":
    main()
