"""Typical uses of the public names, checked by the type checker and never run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

import torch
from torch import nn
from torch.utils.data import Dataset

import shoal.distributed as idist
from shoal.common import (
    add_early_stopping_by_val_score,
    save_best_model_by_val_score,
    setup_common_training_handlers,
    setup_mlflow_logging,
    setup_tb_logging,
)
from shoal.engine import (
    Engine,
    Events,
    RemovableEventHandle,
    State,
    create_supervised_evaluator,
    create_supervised_trainer,
    supervised_evaluation_step,
    supervised_training_step,
)
from shoal.handlers import (
    BasicTimeProfiler,
    Checkpoint,
    ConcatScheduler,
    CosineAnnealingScheduler,
    EarlyStopping,
    EMAHandler,
    EpochOutputStore,
    FastaiLRFinder,
    HandlersTimeProfiler,
    LinearCyclicalScheduler,
    LRScheduler,
    MLflowLogger,
    ModelCheckpoint,
    ParamGroupScheduler,
    PiecewiseLinear,
    ProgressBar,
    PwLinearStateScheduler,
    ReduceLROnPlateauScheduler,
    TimeLimit,
    Timer,
    WeightsHistHandler,
    create_lr_scheduler_with_warmup,
    global_step_from_engine,
)
from shoal.metrics import (
    ROC_AUC,
    Accuracy,
    Average,
    ClassificationReport,
    ConfusionMatrix,
    EpochWise,
    Fbeta,
    Loss,
    MetricGroup,
    MetricsLambda,
    Precision,
    Recall,
    RunningAverage,
    TopKCategoricalAccuracy,
    from_torchmetrics,
    mIoU,
)
from shoal.testing import check_metric, check_tracker, run_workers
from shoal.trackers import Image, JsonlTracker
from shoal.utils import manual_seed, setup_logger


def training(local_rank: int, data: Dataset[Any], num_epochs: int) -> float:
    manual_seed(1)
    logger = setup_logger("training")
    loader = idist.auto_dataloader(data, batch_size=8, shuffle=True, drop_last=True, num_workers=2)
    model = idist.auto_model(nn.Linear(2, 2), sync_bn=True)
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    assert_type(optimizer, torch.optim.SGD)
    loss_fn = nn.CrossEntropyLoss()
    trainer = create_supervised_trainer(
        model, optimizer, loss_fn, device=idist.device(), amp_mode="amp", scaler=True, gradient_accumulation_steps=2
    )
    evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy(), "loss": Loss(loss_fn)})
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "running loss")
    schedule = PiecewiseLinear(optimizer, "lr", [(0, 0.0), (10, 0.1)])
    to_save: dict[str, Any] = {"trainer": trainer, "model": model, "optimizer": optimizer, "lr_scheduler": schedule}
    setup_common_training_handlers(
        trainer, train_sampler=loader.sampler, to_save=to_save, save_every_iters=10, lr_scheduler=schedule,
        save_handler="folder",
    )  # fmt: skip

    @trainer.on(Events.EPOCH_COMPLETED(every=2) | Events.COMPLETED)
    def evaluate(engine: Engine) -> None:
        state = evaluator.run(loader)
        assert_type(state, State)
        logger.info(state.metrics["accuracy"])

    best = Checkpoint(
        {"model": model},
        "folder",
        n_saved=2,
        filename_prefix="best",
        score_name="accuracy",
        score_function=Checkpoint.get_default_score_fn("accuracy"),
        global_step_transform=global_step_from_engine(trainer),
    )
    evaluator.add_event_handler(Events.COMPLETED, best)
    tensorboard = setup_tb_logging("folder", trainer, optimizer, evaluators={"val": evaluator})
    trainer.run(loader, max_epochs=num_epochs)
    tensorboard.close()
    return idist.all_reduce(float(trainer.state.iteration))


def launch(data: Dataset[Any]) -> None:
    with idist.Parallel(backend="gloo", nproc_per_node=2, timeout=timedelta(minutes=5)) as parallel:
        parallel.run(training, data, num_epochs=3)
    assert_type(idist.spawn("gloo", training, args=(data, 3), nproc_per_node=2), list[Any])
    assert_type(run_workers(idist.get_rank, 2), list[Any])


def engine_on_its_own(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Any]) -> None:
    step = supervised_training_step(
        model, optimizer, nn.CrossEntropyLoss(), gradient_accumulation_steps=2, max_grad_norm=1.0,
        loss_weight=lambda x, y: len(y),
    )  # fmt: skip
    trainer = Engine(step)
    step.attach(trainer)

    @trainer.on(Events.ITERATION_COMPLETED(every=10, after=100))
    def look(engine: Engine) -> None:
        if engine.state.step_skipped or engine.should_terminate:
            print(engine.last_event_name, engine.event_count(Events.ITERATION_COMPLETED), engine.state.grad_norm)

    trainer.set_data(data)
    evaluator = Engine(supervised_evaluation_step(model))
    Accuracy().attach(evaluator, "accuracy")


def metric_arithmetic(evaluator: Engine) -> None:
    accuracy, places = Accuracy(), Average(output_transform=lambda out: out[0])
    assert_type(1 - accuracy, MetricsLambda)
    assert_type(torch.ones(3) * places[0] / 2, MetricsLambda)
    assert_type(places.mean(), MetricsLambda)
    largest: MetricsLambda = MetricsLambda(max, accuracy, [places.max()], key=float)
    MetricGroup({"error": 1 - accuracy, "largest": largest}).attach(evaluator, "group", EpochWise)


def metrics_of_classes(evaluator: Engine, theirs: Any) -> None:
    precision, recall = Precision(average=False), Recall(average="macro", is_multilabel=True)
    Fbeta(1.0, average=False, precision=precision).attach(evaluator, "f1")
    matrix = ConfusionMatrix(num_classes=10, average="samples")
    for name, metric in {"miou": mIoU(matrix, ignore_index=0), "recall": recall[1] + precision.mean()}.items():
        metric.attach(evaluator, name)
    ClassificationReport(output_dict=True, labels=["cat", "dog"]).attach(evaluator, "report")
    TopKCategoricalAccuracy(k=3).attach(evaluator, "top 3", usage="running_batch_wise")
    from_torchmetrics(theirs, output_transform=lambda out: (out["scores"], out["y"])).attach(evaluator, "theirs")
    check_metric(ROC_AUC, (torch.rand(9), torch.ones(9)), expected=float("nan"), tolerance=0.0)


def handlers_with_state(trainer: Engine, evaluator: Engine, model: nn.Module) -> None:
    ema = EMAHandler(model, momentum=0.001, momentum_warmup=0.2, warmup_iters=100, handle_buffers="update")
    ema.attach(trainer, event=Events.ITERATION_COMPLETED(every=2))
    assert_type(ema.ema_model, nn.Module)
    best = save_best_model_by_val_score("folder", evaluator, ema.ema_model, "Accuracy", n_saved=2, trainer=trainer)
    assert_type(best, Checkpoint)
    stopping = add_early_stopping_by_val_score(5, evaluator, trainer, "Accuracy", grace_period=2)
    EarlyStopping(3, lambda engine: float(engine.state.metrics["nll"]), trainer, mode="min", min_delta_mode="rel")
    limit = TimeLimit(limit_sec=3600.0, agree_every=50)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, limit)
    handler = ModelCheckpoint("models", "run", n_saved=2, require_empty=False)
    trainer.add_event_handler(Events.EPOCH_COMPLETED(every=2), handler, {"model": model, "optimizers": [model]})
    to_load: dict[str, Any] = {"ema": ema, "best": best, "stopping": stopping, "limit": limit, "trainer": trainer}
    Checkpoint.load_objects(to_load, "file.pt", strict=False)
    handler.reload_objects({"model": model}, global_step=4)
    assert_type(Timer(average=True).attach(trainer, step=Events.ITERATION_COMPLETED).value(), float)
    EpochOutputStore(lambda output: output["y_pred"]).attach(evaluator, "predictions")
    profiler = BasicTimeProfiler(synchronize=True)
    profiler.attach(trainer, evaluators=[evaluator], checkpoints=[best, handler])
    assert_type(profiler.phases(), dict[str, float])
    profiler.write_results("times.csv")
    by_handler = HandlersTimeProfiler()
    by_handler.attach(trainer)
    assert_type(by_handler.print_results(by_handler.get_results()), str)


def schedules(trainer: Engine, evaluator: Engine, optimizer: torch.optim.Optimizer) -> None:
    cosine = CosineAnnealingScheduler(optimizer, "lr", 0.1, 0.0, cycle_size=100, cycle_mult=2.0)
    linear = LinearCyclicalScheduler(optimizer, "lr", 0.0, 0.1, 50, monotonic=True, param_group_index=0)
    ConcatScheduler([linear, cosine], durations=[50]).attach(trainer, per_optimizer_step=True)
    ParamGroupScheduler([linear, cosine], names=["head", "rest"], save_history=True).attach(trainer)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    trainer.add_event_handler(Events.ITERATION_STARTED, LRScheduler(decay))
    simulated: list[Any] = [None] * 10
    create_lr_scheduler_with_warmup(decay, 0.0, 10, output_simulated_values=simulated).attach(trainer)
    ReduceLROnPlateauScheduler(optimizer, "loss", trainer=trainer, factor=0.5).attach(evaluator)
    PwLinearStateScheduler([(0, 0.0), (10, 1.0)], "weight", create_new=True).attach(trainer, Events.EPOCH_COMPLETED)
    assert_type(LRScheduler.simulate_values(10, decay), list[list[Any]])


def learning_rate_search(trainer: Engine, to_save: dict[str, Any], data: list[Any]) -> None:
    finder = FastaiLRFinder()
    with finder.attach(trainer, to_save, num_iter=100, end_lr=1.0, step_mode="linear") as search:
        assert_type(search.run(data), State)
    assert_type(finder.lr_suggestion(), float | list[float])
    finder.apply_suggested_lr(to_save["optimizer"])


def progress(trainer: Engine) -> None:
    bar = ProgressBar(persist=True, desc="Training", ncols=80)
    bar.attach(
        trainer, metric_names=["loss"], state_attributes=["weight"], event_name=Events.ITERATION_COMPLETED(every=9)
    )
    bar.log_message("begun")


def collectives() -> None:
    assert_type(idist.all_reduce(1), int)
    assert_type(idist.all_reduce(torch.ones(2), op="MAX", group=[0, 1]), torch.Tensor)
    idist.barrier()
    assert_type(idist.device(), torch.device)
    assert_type(idist.backend(), str | None)


def tracking(trainer: Engine, model: nn.Module, image: torch.Tensor) -> None:
    with setup_mlflow_logging(trainer, tracking_uri="sqlite:///runs.db", trainer_metric_names=["loss"]) as logger:
        assert_type(logger, MLflowLogger)
        handle = logger.attach(trainer, WeightsHistHandler(model, whitelist=["fc"]), Events.EPOCH_COMPLETED(every=5))
        assert_type(handle, RemovableEventHandle)
        logger.tracker.log_media({"worst": Image(image), "notes": "a text"}, step=1, axis="epoch")
        logger.tracker.log_artifact("model.pt", name="best")
    check_tracker(lambda: JsonlTracker("metrics.jsonl", on_error="warn"))
