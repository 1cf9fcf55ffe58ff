"""Loggers write what engines know, under names that their users expect."""

from __future__ import annotations

import gc
import importlib
import weakref

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn.functional import mse_loss

from shoal import common
from shoal.engine import Engine, Events, create_supervised_trainer
from shoal.errors import UsageError
from shoal.handlers import (
    Checkpoint,
    GradsHistHandler,
    GradsScalarHandler,
    OutputHandler,
    TensorboardLogger,
    TrackerLogger,
    WeightsHistHandler,
    WeightsScalarHandler,
)
from shoal.trackers import Histogram, JsonlTracker, Text, read_jsonl

DATA = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(3)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 2)
        self.first_other = nn.Linear(2, 2)
        self.last = nn.Linear(2, 1)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.last(self.first_other(self.first(x)))


def make_trainer(**options):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, create_supervised_trainer(model, optimizer, mse_loss, **options)


def records(path):
    return [{k: v for k, v in record.items() if k != "time"} for record in read_jsonl(path)]


def test_weights_and_gradients_are_written_as_numbers_and_as_histograms(tmp_path):
    torch.manual_seed(0)
    model, trainer = make_trainer()
    with TensorboardLogger(tmp_path) as logger:
        logger.attach(trainer, WeightsScalarHandler(model), Events.ITERATION_COMPLETED)
        logger.attach(trainer, GradsScalarHandler(model, reduction=torch.mean, tag="t"), Events.ITERATION_COMPLETED)
        logger.attach(trainer, WeightsHistHandler(model), event_name=Events.EPOCH_COMPLETED)
        logger.attach(trainer, GradsHistHandler(model, tag="t", num_bins=8), Events.EPOCH_COMPLETED)
        trainer.run(DATA, max_epochs=2)
    events = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0}).Reload()
    weights = ["first/bias", "first/weight", "first_other/bias", "first_other/weight", "last/bias", "last/weight"]
    assert sorted(events.Tags()["scalars"]) == sorted(
        [f"t/grads_mean/{name}" for name in weights] + [f"weights_norm/{name}" for name in [*weights, "unused"]]
    )
    assert sorted(events.Tags()["histograms"]) == sorted(
        [f"t/grads/{name}" for name in weights] + [f"weights/{name}" for name in [*weights, "unused"]]
    )
    norms = events.Scalars("weights_norm/last/weight")
    assert [event.step for event in norms] == [1, 2, 3, 4, 5, 6]
    assert norms[-1].value == pytest.approx(model.last.weight.norm().item())
    assert events.Scalars("t/grads_mean/last/bias")[-1].value == pytest.approx(model.last.bias.grad.mean().item())
    histogram = events.Histograms("weights/first/weight")
    assert [event.step for event in histogram] == [1, 2]
    assert histogram[-1].histogram_value.num == 6
    assert histogram[-1].histogram_value.sum == pytest.approx(model.first.weight.sum().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("whitelist", "chosen"),
    [
        (["first"], ["first/weight", "first/bias"]),
        (["last.bias", "unused"], ["unused", "last/bias"]),
        (lambda name, parameter: parameter.numel() == 6, ["first/weight"]),
    ],
)
@pytest.mark.parametrize("wrap", [lambda model: model, nn.DataParallel, torch.compile])
def test_a_whitelist_chooses_by_the_bare_models_names(tmp_path, whitelist, chosen, wrap):
    model, trainer = make_trainer()
    with TrackerLogger(JsonlTracker(tmp_path / "m.jsonl")) as logger:
        handler = WeightsScalarHandler(wrap(model), reduction=lambda x: x.numel(), whitelist=whitelist)
        logger.attach(trainer, handler, Events.COMPLETED)
        trainer.run(DATA)
    (record,) = records(tmp_path / "m.jsonl")
    assert sorted(set(record) - {"axis", "step"}) == sorted(f"weights_lambda/{name}" for name in chosen)


def test_what_cannot_be_logged_is_refused_when_the_handler_is_made():
    model = Net()
    with pytest.raises(UsageError, match=r"chooses none of the model's parameters; it has: unused, first\.weight"):
        WeightsScalarHandler(model, whitelist=["frist"])
    with pytest.raises(UsageError, match="give a list of names, or a function"):
        GradsHistHandler(model, whitelist="first")
    with pytest.raises(UsageError, match=r"as torch\.norm"):
        GradsScalarHandler(model, reduction="norm")
    with pytest.raises(UsageError, match=r"of a list; give a torch\.nn\.Module"):
        WeightsHistHandler([model])
    with pytest.raises(UsageError, match="num_bins=0"):
        WeightsHistHandler(model, num_bins=0)


def test_sparse_gradients_are_written_too(tmp_path):
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 1])).sum().backward()
    engine = Engine(lambda engine, batch: None)
    with TrackerLogger(JsonlTracker(tmp_path / "m.jsonl")) as logger:
        logger.attach(engine, GradsScalarHandler(table), Events.COMPLETED)
        engine.run([0])
    assert records(tmp_path / "m.jsonl")[0]["grads_norm/weight"] == pytest.approx(8**0.5)


def test_an_output_of_texts_and_histograms_goes_where_it_belongs(tmp_path):
    engine = Engine(lambda engine, batch: {"loss": 0.5, "said": "hello", "more": Text("x"), "h": Histogram.of([1.0])})
    engine.state.custom = 3
    with TrackerLogger(JsonlTracker(tmp_path / "m.jsonl")) as logger:
        handler = OutputHandler("t", output_transform=lambda output: output, state_attributes=["custom"])
        logger.attach(engine, handler, Events.ITERATION_COMPLETED)
        engine.run([0])
    numbers, *media = records(tmp_path / "m.jsonl")
    assert numbers == {"axis": "iteration", "step": 1, "t/loss": 0.5, "t/custom": 3.0}
    assert [(name, entry["kind"]) for record in media for name, entry in record["media"].items()] == [
        ("t/said", "text"), ("t/more", "text"), ("t/h", "histogram")
    ]  # fmt: skip


def test_what_is_attached_can_be_removed_and_takes_arguments_of_its_own(tmp_path):
    engine = Engine(lambda engine, batch: batch)
    seen = []

    def handler(engine, logger, event_name, *args, more=None):
        seen.append((event_name, args, more))

    logger = TrackerLogger(JsonlTracker(tmp_path / "m.jsonl"))
    events = Events.ITERATION_COMPLETED(every=2) | Events.COMPLETED
    handle = logger.attach(engine, handler, events, 1, more="x")
    engine.run(range(3))
    assert seen == [(Events.ITERATION_COMPLETED, (1,), "x"), (Events.COMPLETED, (1,), "x")]
    handle.remove()
    output = logger.attach_output_handler(engine, Events.COMPLETED, tag="t", output_transform=lambda output: output)
    with output:
        pass
    engine.run(range(3), max_epochs=2)
    assert len(seen) == 2
    assert not (tmp_path / "m.jsonl").exists()


def test_a_logger_answers_to_the_names_of_its_service_and_opens_it_for_no_others(tmp_path):
    logger = TensorboardLogger(tmp_path)
    assert not hasattr(logger, "consolidate_state_dict")
    assert list(tmp_path.iterdir()) == []
    logger.add_scalar("own", 1.0, 5)
    with pytest.raises(AttributeError, match="neither TensorboardLogger nor the service behind it has 'add_scalr'"):
        logger.add_scalr("own", 1.0, 5)
    logger.close()
    assert [event.step for event in EventAccumulator(str(tmp_path)).Reload().Scalars("own")] == [5]


def test_a_loggers_state_is_plain_and_goes_through_a_checkpoint(tmp_path):
    logger = TensorboardLogger(tmp_path / "tb")
    engine = Engine(lambda engine, batch: None)
    checkpoint = Checkpoint({"trainer": engine, "logger": logger}, tmp_path)
    engine.add_event_handler(Events.COMPLETED, checkpoint)
    engine.run([0])
    state = torch.load(checkpoint.last_checkpoint, weights_only=True)
    assert state["logger"] == {"run_id": None}
    Checkpoint.load_objects({"logger": logger}, state)


@pytest.fixture
def _without_the_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_without_the_collector")
def test_an_engine_with_loggers_is_freed_without_the_garbage_collector(tmp_path):
    model, trainer = make_trainer()
    evaluator = Engine(lambda engine, batch: None)
    logger = common.setup_jsonl_logging(tmp_path / "m.jsonl", trainer, evaluators={"val": evaluator}, log_every_iters=1)
    for kind in (WeightsScalarHandler, WeightsHistHandler, GradsScalarHandler, GradsHistHandler):
        logger.attach(trainer, kind(model), Events.EPOCH_COMPLETED)
    trainer.run(DATA)
    evaluator.run(DATA)
    logger.close()
    references = [weakref.ref(part) for part in (trainer, evaluator, logger, model)]
    del model, trainer, evaluator, logger, kind
    assert [reference() for reference in references] == [None] * 4


def test_setup_writes_only_the_metrics_that_are_named(tmp_path):
    trainer, evaluator = Engine(lambda engine, batch: None), Engine(lambda engine, batch: None)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda e: e.state.metrics.update(a=1, b=np.float32(2)))
    evaluator.add_event_handler(Events.EPOCH_COMPLETED, lambda e: e.state.metrics.update(a=3, b=4))
    logger = common.setup_jsonl_logging(
        tmp_path / "m.jsonl", trainer, evaluators=evaluator, log_every_iters=1,
        trainer_metric_names=["b"], evaluator_metric_names=["a"],
    )  # fmt: skip
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run([0]))
    with logger:
        trainer.run([0])
    assert records(tmp_path / "m.jsonl") == [
        {"axis": "iteration", "step": 1, "training/b": 2.0}, {"axis": "epoch", "step": 1, "validation/a": 3.0}
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"evaluators\['val'\] is a str"):
        common.setup_jsonl_logging(tmp_path / "m.jsonl", trainer, evaluators={"val": "no engine"})
    assert not trainer.has_event_handler(print)


def test_every_service_is_set_up_by_one_call(tmp_path):
    trainer = Engine(lambda engine, batch: None)
    made = [
        common.setup_tb_logging(tmp_path, trainer),
        common.setup_clearml_logging(trainer, project_name="p", task_name="n"),
        common.setup_mlflow_logging(trainer, tracking_uri=f"sqlite:///{tmp_path}/runs.db"),
        common.setup_wandb_logging(trainer, project="p"),
        common.setup_trackio_logging("p", trainer),
    ]
    for logger in made:  # nothing has been opened
        logger.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="report_freq, which have no effect"):
        common.setup_clearml_logging(trainer, report_freq=5)


def test_the_paths_that_ignites_programs_import_from_lead_to_the_same_classes():
    from shoal.contrib.engines import common as theirs

    assert theirs.__all__ == common.__all__
    assert all(getattr(theirs, name) is getattr(common, name) for name in common.__all__)
    handlers = importlib.import_module("shoal.handlers")
    model = ["GradsHistHandler", "GradsScalarHandler", "WeightsHistHandler", "WeightsScalarHandler"]
    outputs = ["OptimizerParamsHandler", "OutputHandler", "global_step_from_engine"]
    for module, names in {
        "tensorboard_logger": ["TensorboardLogger", *model, *outputs],
        "clearml_logger": ["ClearMLLogger", "ClearMLSaver", *model, *outputs],
        "mlflow_logger": ["MLflowLogger", *outputs],
        "wandb_logger": ["WandBLogger", *outputs],
        "tqdm_logger": ["ProgressBar"],
        "param_scheduler": ["PiecewiseLinear", "CosineAnnealingScheduler", "create_lr_scheduler_with_warmup"],
        "lr_finder": ["FastaiLRFinder"],
        "time_profilers": ["BasicTimeProfiler", "HandlersTimeProfiler"],
    }.items():
        old = importlib.import_module(f"shoal.contrib.handlers.{module}")
        assert all(getattr(old, name) is getattr(handlers, name) for name in names)
        if module in ("tensorboard_logger", "clearml_logger", "mlflow_logger", "wandb_logger"):
            new = importlib.import_module(f"shoal.handlers.{module}")
            assert sorted(new.__all__) == sorted(old.__all__) == sorted(names)
    metrics = importlib.import_module("shoal.contrib.metrics")
    assert metrics.ROC_AUC is importlib.import_module("shoal.metrics").ROC_AUC
    every = importlib.import_module("shoal.contrib.handlers")
    assert all(getattr(every, name) is getattr(handlers, name) for name in every.__all__)
