"""The training that every process runs: an example of a whole program on Shoal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn, optim
from torchvision import models

import shoal.distributed as idist
from shoal import checkpoint as checkpoint_files
from shoal import common
from shoal._version import __version__
from shoal.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from shoal.errors import CheckpointError
from shoal.handlers import Checkpoint, PiecewiseLinear, global_step_from_engine
from shoal.metrics import Accuracy, Loss
from shoal.recipes.cifar10.config import Cifar10Config
from shoal.recipes.cifar10.data import Dataflow, get_dataflow
from shoal.recipes.cifar10.monitor import Monitor
from shoal.recipes.cifar10.run import Run
from shoal.recipes.cifar10.sources import ImageData, fingerprint, open_data
from shoal.recipes.cifar10.summary import Outcome
from shoal.recipes.mistakes import Mistakes
from shoal.recipes.stopping import GracefulStop
from shoal.utils import manual_seed, setup_logger

__all__ = ["load_checkpoint", "training"]

_STOP_NOTICE = "Stopping after this step; the run will be saved. Press Ctrl-C again to stop at once."


class DataIdentity:
    """Lets a checkpoint say which images it has seen; compared before a run is resumed."""

    def __init__(self, value: str) -> None:
        self.value = value

    def state_dict(self) -> dict[str, str]:
        """What identifies the data."""
        return {"fingerprint": self.value}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        """Nothing to restore: the data are given anew."""


class Evaluators(NamedTuple):
    """One engine over all training images, one over all validation images."""

    train: Engine
    val: Engine


def training(local_rank: int, config: Cifar10Config) -> Outcome:  # noqa: ARG001 - Parallel.run passes it
    """Train as ``config`` says. Every process of the job calls this.

    Returns:
        Where the run's folder is and how the run ended; on rank 0 with the best validation accuracy.
    """
    rank = idist.get_rank()
    manual_seed(config.seed + rank)
    logger = setup_logger(name="CIFAR10-Training")
    # Three times, for three loaders, it would say what the configuration says.
    logging.getLogger("shoal.distributed.auto.auto_dataloader").setLevel(logging.WARNING)

    images = open_data(config.data, data_path=config.data_path, num_images=config.subset)
    loaders = get_dataflow(config, images)
    run = Run.open(config, data_name=images.name, steps_per_epoch=len(loaders.train))
    with GracefulStop(_STOP_NOTICE if rank == 0 else None) as stop, run:
        log_basic_info(logger, config, images, run)
        connect_clearml(config, run)
        model = idist.auto_model(get_model(config.model, len(images.classes)), sync_bn=config.sync_bn)
        optimizer = get_optimizer(config, model)
        criterion = nn.CrossEntropyLoss().to(idist.device())
        lr_scheduler = get_lr_scheduler(config, optimizer, len(loaders.train))
        trainer = create_trainer(model, optimizer, criterion, config)
        trainer.logger = logger
        evaluators = create_evaluators(model, criterion, config)
        mistakes = Mistakes(len(images.classes))
        mistakes.attach(evaluators.val)

        monitor = Monitor(optimizer, stop, run, log_every=config.log_every_iters, save_every=config.checkpoint_every)
        monitor.attach(trainer)
        run.phases.attach(trainer)
        to_save = {"trainer": trainer, "model": model, "optimizer": optimizer, "lr_scheduler": lr_scheduler}
        to_save["data"] = DataIdentity(fingerprint(images))
        best_models = keep_best_models(model, trainer, evaluators.val, config, run)
        checkpoint = keep_checkpoints(to_save, best_models, config, run)
        validate_regularly(
            trainer,
            evaluators,
            loaders,
            run,
            validate_every=config.validate_every,
            save=run.phases.timed("checkpoint", checkpoint),
            after=lambda step, epoch: run.record_mistakes(step, epoch, mistakes, images),
        )
        trainer.add_event_handler(Events.EPOCH_COMPLETED | Events.COMPLETED | Events.INTERRUPT, run.record_phases)
        if rank == 0:
            run.log_to_tensorboard(trainer, optimizer, evaluators._asdict())
        trainer.run(loaders.train, max_epochs=config.num_epochs)
    return run.finish(step=trainer.state.iteration, stopped_by=monitor.stopped_by)


def get_model(name: str, num_classes: int) -> nn.Module:
    """A classification model of torchvision with as many outputs as there are classes."""
    model: nn.Module = models.get_model(name, num_classes=num_classes)
    return model


def get_optimizer(config: Cifar10Config, model: nn.Module) -> optim.Optimizer:
    """SGD with Nesterov momentum."""
    optimizer = optim.SGD(
        model.parameters(),
        lr=config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        nesterov=True,
    )
    return idist.auto_optim(optimizer)


def get_lr_scheduler(config: Cifar10Config, optimizer: optim.Optimizer, steps_per_epoch: int) -> PiecewiseLinear:
    """From 0 up to the learning rate in the warm-up epochs, and down to 0 in the others, step by step."""
    warm, end = config.num_warmup_epochs * steps_per_epoch, config.num_epochs * steps_per_epoch
    milestones = [(0, 0.0), (warm, config.learning_rate), (end, 0.0)]
    if end == warm:  # nothing but warm-up
        del milestones[-1]
    return PiecewiseLinear(optimizer, param_name="lr", milestones_values=milestones)


def create_trainer(model: nn.Module, optimizer: optim.Optimizer, criterion: nn.Module, config: Cifar10Config) -> Engine:
    """A trainer whose output is what the monitor looks at; nothing in it waits for the device."""

    def output(_x: Tensor, y: Tensor, y_pred: Tensor | None, loss: Tensor) -> dict[str, Any]:
        return {"batch loss": loss, "y": y, "y_pred": None if y_pred is None else y_pred.detach()}

    return create_supervised_trainer(
        model,
        optimizer,
        criterion,
        device=idist.device(),
        non_blocking=True,
        output_transform=output,
        amp_mode="amp" if config.with_amp else None,
        scaler=config.with_amp,
    )


def create_evaluators(model: nn.Module, criterion: nn.Module, config: Cifar10Config) -> Evaluators:
    """Evaluators of accuracy and loss, exact over all processes. That of the validation images tells their places."""

    def numbered(_x: Tensor, target: tuple[Tensor, Tensor], y_pred: Tensor) -> dict[str, Tensor]:
        y, index = target
        return {"y_pred": y_pred, "y": y, "index": index}

    def create(**output: Any) -> Engine:
        return create_supervised_evaluator(
            model,
            metrics={"Accuracy": Accuracy(), "Loss": Loss(criterion)},
            device=idist.device(),
            non_blocking=True,
            amp_mode="amp" if config.with_amp else None,
            **output,
        )

    return Evaluators(create(), create(output_transform=numbered))


def validate_regularly(
    trainer: Engine,
    evaluators: Evaluators,
    loaders: Dataflow,
    run: Run,
    *,
    validate_every: int,
    save: Callable[[Engine], None],
    after: Callable[[int, int], None],
) -> None:
    """Evaluate every so many epochs and at the end; once, where both fall together.

    The steps are saved before, so that a validation image that cannot be read costs none of them, and once more after
    it, with the best models known.

    Args:
        trainer, evaluators, loaders, run: of the training.
        validate_every: epochs between two evaluations.
        save: saves a checkpoint.
        after: called after an evaluation with the step and the epoch.
    """
    num_epochs = run.num_epochs
    evaluated_at: set[int] = set()

    def validate(trainer: Engine) -> None:
        step, epoch = trainer.state.iteration, trainer.state.epoch
        if step in evaluated_at:
            return
        evaluated_at.add(step)
        save(trainer)
        num_left = -(-num_epochs // validate_every) - -(-epoch // validate_every)
        with run.aside("evaluating", num_left=num_left):
            for name, evaluator, loader in (
                ("train", evaluators.train, loaders.train_eval),
                ("val", evaluators.val, loaders.val),
            ):
                state = evaluator.run(loader)
                run.record_evaluation(name, step, epoch, state.metrics)
                trainer.logger.info(
                    "Epoch %d - %s accuracy: %.4f, loss: %.4f (%.1f s)",
                    *(epoch, name, state.metrics["Accuracy"], state.metrics["Loss"], state.times["COMPLETED"]),
                )
            after(step, epoch)

    trainer.add_event_handler(Events.EPOCH_COMPLETED(every=validate_every) | Events.COMPLETED, validate)
    trainer.add_event_handler(Events.COMPLETED, save)


def keep_best_models(
    model: nn.Module, trainer: Engine, val_evaluator: Engine, config: Cifar10Config, run: Run
) -> Checkpoint:
    """Keep the weights of the two best models by validation accuracy."""
    best_models = Checkpoint(
        {"model": model},
        get_save_handler(config, run),
        filename_prefix="best",
        n_saved=2,
        global_step_transform=global_step_from_engine(trainer),
        score_name="val_accuracy",
        score_function=Checkpoint.get_default_score_fn("Accuracy"),
    )
    val_evaluator.add_event_handler(Events.COMPLETED, run.phases.timed("checkpoint", best_models))
    return best_models


def keep_checkpoints(
    to_save: Mapping[str, Any], best_models: Checkpoint, config: Cifar10Config, run: Run
) -> Checkpoint:
    """Keep the newest checkpoint, made every so many steps and on a stop; and go on from one."""
    trainer: Engine = to_save["trainer"]
    saves = Events.ITERATION_COMPLETED(every=config.checkpoint_every)
    trainer.add_event_handler(saves, run.phases.begin, "checkpoint")
    checkpoint = common.setup_common_training_handlers(
        trainer,
        to_save={**to_save, "best_models": best_models},
        save_every_iters=config.checkpoint_every,
        save_handler=get_save_handler(config, run),
        include_self=True,
        lr_scheduler=to_save["lr_scheduler"],
        output_names=["batch loss"],
        with_pbars=False,
        stop_on_nan=False,  # the monitor does it, and doesn't wait for the device in every step
        clear_cuda_cache=False,
    )
    assert checkpoint is not None
    trainer.add_event_handler(saves, run.phases.end)
    trainer.add_event_handler(Events.INTERRUPT, run.phases.timed("checkpoint", checkpoint))
    if config.resume_from is None:
        return checkpoint
    to_load = dict(to_save)
    if run.is_resumed:  # in the folder that holds the files which these two know of
        to_load |= {"best_models": best_models, "checkpointer": checkpoint}
    Checkpoint.load_objects(to_load, load_checkpoint(config.resume_from))
    run.go_on_from(trainer.state.iteration)
    return checkpoint


def load_checkpoint(path: str) -> dict[str, Any]:
    """Read a checkpoint of a training.

    Raises:
        CheckpointError: it cannot be read, or holds something else.
    """
    content = checkpoint_files.load(path)
    if not isinstance(content, dict) or "trainer" not in content:
        raise CheckpointError(
            f"--resume-from {path}: the file holds weights alone, or something else; "
            "give a training_checkpoint_*.pt, or the run's folder"
        )
    return content


def get_save_handler(config: Cifar10Config, run: Run) -> Any:
    """Where checkpoints go: the run's folder, and the ClearML server where that is asked for."""
    if config.with_clearml:
        from shoal.contrib.handlers.clearml_logger import ClearMLSaver

        return ClearMLSaver(dirname=run.folder)
    return run.folder


def connect_clearml(config: Cifar10Config, run: Run) -> None:
    """Make a ClearML task that knows the configuration, on rank 0."""
    if config.with_clearml and idist.get_rank() == 0:
        from shoal.trackers.clearml import init_task

        # A resumed run goes on in the Task of its name, where there is one; steps are counted from its start.
        resumption = {"continue_last_task": 0} if run.is_resumed else {}
        task = init_task("CIFAR10-Training", task_name=run.folder.name, **resumption)
        task.connect_configuration(config.resolved())
        task.connect(config.resolved())


def log_basic_info(logger: logging.Logger, config: Cifar10Config, images: ImageData, run: Run) -> None:
    """Log what is trained, on what, and where the run's folder is."""
    logger.info(
        "Train %s on %s: %s training and %s validation images, %d classes",
        *(config.model, images.name, f"{len(images.train):,}", f"{len(images.val):,}", len(images.classes)),
    )
    logger.info("- PyTorch version: %s, Shoal version: %s", torch.__version__, __version__)
    if idist.device().type == "cuda":
        logger.info("- GPU Device: %s", torch.cuda.get_device_name(idist.device()))
    if idist.get_world_size() > 1:
        logger.info("- Backend: %s, world size: %d", idist.backend(), idist.get_world_size())
    logger.info("%s %s", "Going on in:" if run.is_resumed else "Output path:", run.folder)
    if run.steps_per_epoch < 10:
        logger.info(
            "An epoch has only %d steps of --batch-size %d; try smaller ones: --batch-size 64 --learning-rate 0.05",
            *(run.steps_per_epoch, config.batch_size),
        )
