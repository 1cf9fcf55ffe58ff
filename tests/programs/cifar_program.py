"""A complete training as the users of an event engine write it: every call, option and log line that they rely on.

Data are small random images with a colour that tells the class, so that it runs anywhere in seconds.
"""

import sys
from datetime import datetime
from pathlib import Path

import fire
import torch
from torch import nn, optim
from torchvision import models
from torchvision.transforms import Compose, Normalize, Pad, RandomCrop, RandomHorizontalFlip

import shoal
import shoal.distributed as idist
from shoal import common
from shoal.engine import Events, create_supervised_evaluator, create_supervised_trainer
from shoal.handlers import Checkpoint, PiecewiseLinear, global_step_from_engine
from shoal.metrics import Accuracy, Loss
from shoal.utils import manual_seed, setup_logger

config = {
    "seed": 543,
    "output_path": "output-cifar10/",
    "model": "resnet18",
    "batch_size": 32,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "num_workers": 2,
    "num_epochs": 3,
    "learning_rate": 0.04,
    "num_warmup_epochs": 1,
    "validate_every": 3,
    "checkpoint_every": 4,
    "backend": None,
    "resume_from": None,
    "log_every_iters": 15,
    "with_clearml": False,
    "with_amp": False,
}


class Colours(torch.utils.data.Dataset):
    def __init__(self, size, transform):
        self.size, self.transform = size, transform

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 32, 32, generator=generator) * 0.5
        label = index % 3
        image[label] += 0.5
        return self.transform(image), label


def loaders():
    normalise = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    augment = Compose([Pad(4), RandomCrop(32, fill=128), RandomHorizontalFlip(), normalise])
    train = idist.auto_dataloader(
        Colours(103, augment),
        batch_size=config["batch_size"],
        num_workers=config["num_workers"],
        shuffle=True,
        drop_last=True,
    )
    test = idist.auto_dataloader(
        Colours(41, normalise),
        batch_size=2 * config["batch_size"],
        num_workers=config["num_workers"],
        shuffle=False,
    )
    return train, test


def save_handler(config):
    if config["with_clearml"]:
        from shoal.contrib.handlers.clearml_logger import ClearMLSaver

        return ClearMLSaver(dirname=config["output_path"])
    return config["output_path"]


def make_trainer(model, optimizer, criterion, scheduler, train_sampler, config, logger):
    trainer = create_supervised_trainer(
        model,
        optimizer,
        criterion,
        device=idist.device(),
        non_blocking=True,
        output_transform=lambda x, y, y_pred, loss: {"batch loss": loss.item()},
        amp_mode="amp" if config["with_amp"] else None,
        scaler=config["with_amp"],
    )
    trainer.logger = logger
    to_save = {"trainer": trainer, "model": model, "optimizer": optimizer, "lr_scheduler": scheduler}
    common.setup_common_training_handlers(
        trainer=trainer,
        train_sampler=train_sampler,
        to_save=to_save,
        save_every_iters=config["checkpoint_every"],
        save_handler=save_handler(config),
        lr_scheduler=scheduler,
        output_names=["batch loss"] if config["log_every_iters"] > 0 else None,
        with_pbars=False,
        clear_cuda_cache=False,
    )
    if config["resume_from"] is not None:
        checkpoint = torch.load(Path(config["resume_from"]).as_posix(), map_location="cpu")
        Checkpoint.load_objects(to_load=to_save, checkpoint=checkpoint)
    return trainer


def start_log(logger, config):
    logger.info("Train on colours")
    logger.info(f"- PyTorch version: {torch.__version__}")
    logger.info(f"- Shoal version: {shoal.__version__}")
    logger.info("Configuration:")
    for key, value in config.items():
        logger.info(f"\t{key}: {value}")
    if idist.get_world_size() > 1:
        logger.info(f"\tbackend: {idist.backend()}")
        logger.info(f"\tworld size: {idist.get_world_size()}")


def training(local_rank, config):
    rank = idist.get_rank()
    manual_seed(config["seed"] + rank)
    logger = setup_logger(name="CIFAR10-Training")
    start_log(logger, config)
    if rank == 0:
        now = datetime.now().strftime("%Y%m%d-%H%M%S")  # noqa: DTZ005
        name = f"{config['model']}_backend-{idist.backend()}-{idist.get_world_size()}_{now}"
        output = Path(config["output_path"]) / name
        output.mkdir(parents=True, exist_ok=True)
        config["output_path"] = output.as_posix()
        logger.info(f"Output path: {config['output_path']}")

    train_loader, val_loader = loaders()
    model = idist.auto_model(models.__dict__[config["model"]](num_classes=10))
    optimizer = idist.auto_optim(
        optim.SGD(
            model.parameters(),
            lr=config["learning_rate"],
            momentum=config["momentum"],
            weight_decay=config["weight_decay"],
            nesterov=True,
        )
    )
    criterion = nn.CrossEntropyLoss().to(idist.device())
    iters = len(train_loader)
    scheduler = PiecewiseLinear(
        optimizer,
        param_name="lr",
        milestones_values=[
            (0, 0.0),
            (iters * config["num_warmup_epochs"], config["learning_rate"]),
            (iters * config["num_epochs"], 0.0),
        ],
    )
    trainer = make_trainer(model, optimizer, criterion, scheduler, train_loader.sampler, config, logger)
    metrics = {"Accuracy": Accuracy(), "Loss": Loss(criterion)}
    amp_mode = "amp" if config["with_amp"] else None
    evaluators = {
        tag: create_supervised_evaluator(
            model, metrics=metrics, device=idist.device(), non_blocking=True, amp_mode=amp_mode
        )
        for tag in ("train", "val")
    }

    def validate(engine):
        for tag, loader in (("train", train_loader), ("val", val_loader)):
            state = evaluators[tag].run(loader)
            rows = "\n".join(f"\t{k}: {v}" for k, v in state.metrics.items())
            elapsed = state.times["COMPLETED"]
            logger.info(
                f"\nEpoch {trainer.state.epoch} - Evaluation time (seconds): {elapsed:.2f} - {tag} metrics:\n {rows}"
            )

    trainer.add_event_handler(Events.EPOCH_COMPLETED(every=config["validate_every"]) | Events.COMPLETED, validate)
    if rank == 0:
        tb_logger = common.setup_tb_logging(config["output_path"], trainer, optimizer, evaluators=evaluators)
    best = Checkpoint(
        {"model": model},
        save_handler(config),
        filename_prefix="best",
        n_saved=2,
        global_step_transform=global_step_from_engine(trainer),
        score_name="val_accuracy",
        score_function=Checkpoint.get_default_score_fn("Accuracy"),
    )
    evaluators["val"].add_event_handler(Events.COMPLETED, best)
    try:
        trainer.run(train_loader, max_epochs=config["num_epochs"])
    except Exception:
        logger.exception("")
        raise
    if rank == 0:
        tb_logger.close()


def run(backend=None, with_amp=False, resume_from=None, with_clearml=False, **spawn_kwargs):
    config.update(backend=backend, with_amp=with_amp, resume_from=resume_from, with_clearml=with_clearml)
    with idist.Parallel(backend=config["backend"], **spawn_kwargs) as parallel:
        parallel.run(training, config)


if __name__ == "__main__":
    sys.exit(fire.Fire({"run": run}))
