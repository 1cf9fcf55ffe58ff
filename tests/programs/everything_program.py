"""A training with everything attached at once, that can be stopped in mid-epoch and gone on with.

Usage: everything_program.py FOLDER [ITERATION_TO_STOP_AT]
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import shoal.distributed as idist
from shoal import common
from shoal.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from shoal.handlers import (
    BasicTimeProfiler,
    Checkpoint,
    CosineAnnealingScheduler,
    EarlyStopping,
    EMAHandler,
    EpochOutputStore,
    HandlersTimeProfiler,
    LinearCyclicalScheduler,
    PiecewiseLinear,
    PiecewiseLinearStateScheduler,
    ProgressBar,
    TerminateOnNan,
    TimeLimit,
    Timer,
)
from shoal.metrics import Accuracy, ConfusionMatrix, Loss, Metric, Precision, Recall, RunningAverage, mIoU
from shoal.utils import manual_seed

NUM_EPOCHS, BEST_EPOCH, PATIENCE = 8, 3, 3


def training(_local_rank: int, folder: Path, stop_at: int | None) -> tuple[int, int]:
    """Train, or go on from the folder's checkpoint; returns the epoch and the iteration of the end."""
    manual_seed(7 + idist.get_rank())
    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(load_digits().target)
    train_loader = idist.auto_dataloader(
        torch.utils.data.TensorDataset(images[:301], labels[:301]), batch_size=32, shuffle=True
    )
    val_loader = idist.auto_dataloader(torch.utils.data.TensorDataset(images[301:404], labels[301:404]), batch_size=32)
    model = idist.auto_model(
        nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
            nn.Linear(128, 10),
        ),
        sync_bn=True,
    )  # fmt: skip
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    criterion = nn.CrossEntropyLoss()
    trainer = create_supervised_trainer(model, optimizer, criterion, idist.device(), max_grad_norm=1.0)
    trainer.logger = logging.getLogger("everything")
    evaluator = create_supervised_evaluator(model, validation_metrics(criterion), idist.device())

    schedules = attach_schedules(trainer, optimizer, num_steps=NUM_EPOCHS * len(train_loader))
    guards = {
        "stopper": EarlyStopping(PATIENCE, lambda _: -abs(trainer.state.epoch - BEST_EPOCH), trainer),
        "limit": TimeLimit(3600),
    }
    for guard in (TerminateOnNan(), guards["limit"]):
        trainer.add_event_handler(Events.ITERATION_COMPLETED, guard)
    ema = EMAHandler(model, momentum=0.05)
    ema.attach(trainer)
    ema_evaluator = create_supervised_evaluator(ema.ema_model, {"accuracy": Accuracy()}, idist.device())
    average = RunningAverage(output_transform=lambda loss: loss)
    average.attach(trainer, "running loss")
    attach_measures(trainer, evaluator)

    @trainer.on(Events.EPOCH_COMPLETED)
    def validate(trainer: Engine) -> None:
        evaluator.run(val_loader)
        ema_evaluator.run(val_loader)
        own = sum(map(len, evaluator.state.predictions))  # a list of each batch
        assert idist.all_reduce(own) == 103

    best = common.save_best_model_by_val_score(folder / "best", evaluator, model, "accuracy", 2, trainer)
    evaluator.add_event_handler(Events.COMPLETED, guards["stopper"])
    loggers = attach_loggers(folder, trainer, optimizer, {"validation": evaluator, "ema": ema_evaluator})

    to_save = {"trainer": trainer, "model": model, "optimizer": optimizer, "ema": ema, "best": best, "average": average}
    to_save |= {**schedules, **guards, "mlflow": loggers[-1]}
    checkpoint = Checkpoint(to_save, folder / "checkpoints", include_self=True)
    trainer.add_event_handler(Events.INTERRUPT, checkpoint)
    saved = sorted((folder / "checkpoints").glob("*.pt"))
    if saved:
        Checkpoint.load_objects({**to_save, "checkpointer": checkpoint}, saved[-1])
    if stop_at is not None:
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=stop_at), trainer.interrupt)
    trainer.run(train_loader, max_epochs=NUM_EPOCHS)
    for logger in loggers:
        logger.close()
    return trainer.state.epoch, trainer.state.iteration


def validation_metrics(criterion: nn.Module) -> dict[str, Metric]:
    """Five metrics, two of them made of others."""
    precision, recall, matrix = Precision(), Recall(), ConfusionMatrix(10)
    return {
        "accuracy": Accuracy(),
        "loss": Loss(criterion),
        "f1": (2 * precision * recall / (precision + recall + 1e-20)).mean(),
        "matrix": matrix,
        "miou": mIoU(matrix),
    }


def attach_schedules(trainer: Engine, optimizer: torch.optim.Optimizer, num_steps: int) -> dict[str, Any]:
    """Three of the optimizer, one of the trainer's state."""
    schedules: dict[str, Any] = {
        "lr": PiecewiseLinear(optimizer, "lr", [(0, 0.0), (10, 0.05), (num_steps, 0.0)]),
        "momentum": CosineAnnealingScheduler(optimizer, "momentum", 0.85, 0.95, cycle_size=12),
        "weight decay": LinearCyclicalScheduler(optimizer, "weight_decay", 0.0, 1e-3, cycle_size=14),
    }
    for schedule in schedules.values():
        trainer.add_event_handler(Events.ITERATION_STARTED, schedule)
    sharpness = PiecewiseLinearStateScheduler([(0, 1.0), (num_steps, 2.0)], param_name="sharpness")
    sharpness.attach(trainer)
    return schedules | {"sharpness": sharpness}


def attach_measures(trainer: Engine, evaluator: Engine) -> None:
    """What looks on: three that take the time, a bar, and the outputs of an epoch."""
    Timer(average=True).attach(trainer, step=Events.ITERATION_COMPLETED)
    BasicTimeProfiler().attach(trainer, evaluators=[evaluator])
    HandlersTimeProfiler().attach(evaluator)
    ProgressBar().attach(trainer, event_name=Events.EPOCH_COMPLETED, closing_event_name=Events.COMPLETED)
    EpochOutputStore(output_transform=lambda output: output[0].argmax(1).tolist()).attach(evaluator, "predictions")


def attach_loggers(folder: Path, trainer: Engine, optimizer: Any, evaluators: dict[str, Engine]) -> list[Any]:
    """Three trackers of the same numbers."""
    engines = (trainer, optimizer, evaluators)
    loggers = [
        common.setup_jsonl_logging(folder / "metrics.jsonl", *engines, log_every_iters=1),
        common.setup_tb_logging(folder / "tb", *engines, log_every_iters=1),
        common.setup_mlflow_logging(*engines, log_every_iters=1, tracking_uri=f"sqlite:///{folder}/mlflow.db"),
    ]
    for logger in loggers:
        logger.attach_output_handler(
            trainer, Events.ITERATION_COMPLETED, tag="training", state_attributes=["sharpness", "grad_norm"]
        )
    return loggers


if __name__ == "__main__":
    with idist.Parallel(backend="gloo", nproc_per_node=2) as parallel:
        ends = parallel.run(training, Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
        print(f"ended in epoch {ends[0]}, iteration {ends[1]}" if isinstance(ends, tuple) else ends)
