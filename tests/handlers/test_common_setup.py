"""The handlers of one call: what the tutorial's program uses, as it uses it."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import termios
import textwrap

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.optim import lr_scheduler as torch_schedulers

from shoal import common
from shoal.engine import Engine, Events
from shoal.errors import UsageError
from shoal.handlers import Checkpoint, PiecewiseLinear, ProgressBar, TerminateOnNan, global_step_from_engine
from shoal.metrics import Accuracy, Loss
from shoal.trackers import read_jsonl
from shoal.utils import manual_seed

DATA = [(torch.randn(4, 3), torch.randint(0, 2, (4,))) for _ in range(5)]


class Training:
    """The tutorial's parts on five small batches."""

    def __init__(self, folder, *, num_epochs=4, save_every=3, scheduler=None, **options):
        manual_seed(7)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        milestones = [(0, 0.0), (5, 0.4), (5 * num_epochs, 0.0)]
        self.scheduler = (
            scheduler(self.optimizer)
            if scheduler
            else PiecewiseLinear(self.optimizer, param_name="lr", milestones_values=milestones)
        )
        self.trainer = Engine(self._step)
        self.rates, self.losses = [], []
        self.to_save = {
            "trainer": self.trainer,
            "model": self.model,
            "optimizer": self.optimizer,
            "lr_scheduler": self.scheduler,
        }
        self.checkpoint = common.setup_common_training_handlers(
            trainer=self.trainer,
            train_sampler=None,
            to_save=self.to_save,
            save_every_iters=save_every,
            save_handler=folder,
            lr_scheduler=self.scheduler,
            output_names=["batch loss"],
            with_pbars=False,
            clear_cuda_cache=False,
            **options,
        )

    def _step(self, engine, batch):
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        return {"batch loss": loss.item()}

    def evaluator(self):
        def inference(engine, batch):
            self.model.eval()
            with torch.no_grad():
                y_pred = self.model(batch[0])
            self.model.train()
            return y_pred, batch[1]

        evaluator = Engine(inference)
        Accuracy().attach(evaluator, "Accuracy")
        Loss(nn.CrossEntropyLoss()).attach(evaluator, "Loss")
        return evaluator


def test_the_tutorials_run_leaves_its_files_and_charts(tmp_path):
    run = Training(tmp_path)
    train_evaluator, val_evaluator = run.evaluator(), run.evaluator()

    def run_validation(engine):
        train_evaluator.run(DATA)
        val_evaluator.run(DATA)

    run.trainer.add_event_handler(Events.EPOCH_COMPLETED(every=3) | Events.COMPLETED, run_validation)
    tb_logger = common.setup_tb_logging(
        tmp_path.as_posix(),
        run.trainer,
        run.optimizer,
        evaluators={"train": train_evaluator, "val": val_evaluator},
        log_every_iters=2,
    )
    best_model_handler = Checkpoint(
        {"model": run.model},
        tmp_path.as_posix(),
        filename_prefix="best",
        n_saved=2,
        global_step_transform=global_step_from_engine(run.trainer),
        score_name="val_accuracy",
        score_function=Checkpoint.get_default_score_fn("Accuracy"),
    )
    val_evaluator.add_event_handler(Events.COMPLETED, best_model_handler)
    run.trainer.run(DATA, max_epochs=4)
    tb_logger.close()

    names = sorted(path.name for path in tmp_path.glob("*.pt"))
    assert names[-1] == "training_checkpoint_18.pt"
    assert names[0].startswith("best_model_3_val_accuracy=0.")
    events = EventAccumulator(str(tmp_path)).Reload()
    tags = ["lr/group_0", "train/Accuracy", "train/Loss", "training/batch loss", "val/Accuracy", "val/Loss"]
    assert sorted(events.Tags()["scalars"]) == tags
    assert [event.step for event in events.Scalars("training/batch loss")] == list(range(2, 21, 2))
    assert [event.step for event in events.Scalars("val/Accuracy")] == [3, 4]  # trap 44
    rates = {event.step: event.value for event in events.Scalars("lr/group_0")}
    assert rates == pytest.approx({step: run.rates[step - 1] for step in range(2, 21, 2)})
    average = run.losses[0]
    for loss in run.losses[1:]:
        average = 0.98 * average + 0.02 * loss
    assert events.Scalars("training/batch loss")[-1].value == pytest.approx(average, rel=1e-6)


def test_a_single_evaluator_is_called_validation_and_json_lines_say_the_same(tmp_path):
    run = Training(tmp_path)
    evaluator = run.evaluator()
    run.trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(DATA))
    path = tmp_path / "metrics.jsonl"
    with common.setup_jsonl_logging(path, run.trainer, {"sgd": run.optimizer}, evaluator, log_every_iters=5):
        run.trainer.run(DATA, max_epochs=2)
    records = [{k: v for k, v in record.items() if k != "time"} for record in read_jsonl(path)]
    assert [(record["axis"], record["step"]) for record in records] == [
        ("iteration", 5), ("iteration", 5), ("epoch", 1), ("iteration", 10), ("iteration", 10), ("epoch", 2)
    ]  # fmt: skip
    assert list(records[0]) == ["axis", "step", "sgd/lr/group_0"]
    assert list(records[2]) == ["axis", "step", "validation/Accuracy", "validation/Loss"]


@pytest.mark.parametrize("stop", [3, 8, 15])
def test_a_run_resumed_from_a_file_is_the_uninterrupted_one_bit_for_bit(tmp_path, stop):
    whole = Training(tmp_path / "whole")
    whole.trainer.run(DATA, max_epochs=4)
    first = Training(tmp_path / "cut", save_every=1)
    first.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=stop), lambda engine: engine.terminate())
    first.trainer.run(DATA, max_epochs=4)
    path = tmp_path / "cut" / f"training_checkpoint_{stop}.pt"
    second = Training(tmp_path / "resumed")
    Checkpoint.load_objects(to_load=second.to_save, checkpoint=torch.load(path, map_location="cpu"))
    second.trainer.run(DATA, max_epochs=4)
    assert first.losses + second.losses == whole.losses
    assert first.rates + second.rates == whole.rates
    for ours, theirs in zip(second.model.state_dict().values(), whole.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def _chain(optimizer):
    warm_up = torch_schedulers.LinearLR(optimizer, total_iters=3)
    return torch_schedulers.SequentialLR(optimizer, [warm_up, torch_schedulers.ExponentialLR(optimizer, 0.9)], [3])


class Decay:
    def __call__(self, step):
        return 0.9**step


TORCH_SCHEDULERS = {
    "lambda": lambda optimizer: torch_schedulers.LambdaLR(optimizer, lambda step: 0.9**step),
    "object": lambda optimizer: torch_schedulers.LambdaLR(optimizer, Decay()),
    "step": lambda optimizer: torch_schedulers.StepLR(optimizer, 2),
    "multi-step": lambda optimizer: torch_schedulers.MultiStepLR(optimizer, [2, 5]),
    "cosine": lambda optimizer: torch_schedulers.CosineAnnealingLR(optimizer, 10),
    "restarts": lambda optimizer: torch_schedulers.CosineAnnealingWarmRestarts(optimizer, 3),
    "one cycle": lambda optimizer: torch_schedulers.OneCycleLR(optimizer, 0.4, total_steps=30),
    "cyclic": lambda optimizer: torch_schedulers.CyclicLR(optimizer, 0.01, 0.1, step_size_up=3),
    "polynomial": lambda optimizer: torch_schedulers.PolynomialLR(optimizer, 10),
    "sequence": _chain,
}


@pytest.mark.parametrize("kind", TORCH_SCHEDULERS)
def test_torch_schedulers_of_every_kind_are_saved_as_plain_state_and_resume_exactly(tmp_path, kind):
    whole = Training(tmp_path / "whole", scheduler=TORCH_SCHEDULERS[kind])
    whole.trainer.run(DATA, max_epochs=2)
    first = Training(tmp_path / "cut", save_every=4, scheduler=TORCH_SCHEDULERS[kind])
    first.trainer.run(DATA, max_iters=4)
    second = Training(tmp_path / "resumed", scheduler=TORCH_SCHEDULERS[kind])
    checkpoint = torch.load(tmp_path / "cut" / "training_checkpoint_4.pt", weights_only=True)
    del checkpoint["trainer"]
    del second.to_save["trainer"]
    Checkpoint.load_objects(second.to_save, checkpoint)
    second.trainer.run(DATA[4:] + DATA, max_epochs=1)
    assert first.rates + second.rates == whole.rates


def test_a_checkpoint_of_an_iteration_that_gave_nan_does_not_replace_a_good_one(tmp_path, caplog):
    run = Training(tmp_path, save_every=2)
    bad = (torch.full((4, 3), float("inf")), torch.zeros(4, dtype=torch.long))
    run.trainer.run([*DATA[:3], bad, DATA[4]], max_epochs=3)
    assert [path.name for path in tmp_path.iterdir()] == ["training_checkpoint_2.pt"]
    assert run.trainer.state.iteration == 4
    assert "iteration 4" in caplog.text


@pytest.mark.parametrize(
    "output",
    [float("nan"), [1.0, float("inf")], {"a": (1, torch.tensor([0.0, float("nan")]))}, torch.tensor(-torch.inf)],
)
def test_nan_anywhere_in_the_output_ends_the_run_and_a_later_run_may_go_on(output):
    outputs = iter([1.0, "text", None, output, 2.0, 3.0])
    trainer = Engine(lambda engine, batch: next(outputs))
    trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())
    trainer.run(range(6))
    assert trainer.state.iteration == 4
    trainer.run(range(6))
    assert trainer.state.iteration == 6


def test_arguments_that_do_not_fit_together_are_refused(tmp_path):
    def setup(**arguments):
        common.setup_common_training_handlers(Engine(lambda e, b: None), with_pbars=False, **arguments)

    model = {"model": nn.Linear(1, 1)}
    optimizer = torch.optim.SGD(model["model"].parameters())
    for arguments, text in (
        ({"to_save": model}, "output_path or save_handler, found neither"),
        ({"to_save": model, "output_path": tmp_path, "save_handler": tmp_path}, "found both"),
        ({"output_path": tmp_path}, "without to_save"),
        ({"n_saved": 3}, "n_saved was given without to_save"),
        ({"lr_scheduler": 3}, "lr_scheduler is a int"),
        ({"lr_scheduler": torch_schedulers.ReduceLROnPlateau(optimizer)}, "attach it to the evaluator"),
        ({"with_gpu_stats": True}, "device 'cpu'"),
    ):
        with pytest.raises(UsageError, match=text):
            setup(**arguments)
    with pytest.raises(UsageError, match="evaluators"):
        common.setup_tb_logging(tmp_path, Engine(lambda e, b: None), evaluators={"val": 3})


def test_the_sampler_is_told_the_epoch_from_zero():
    class Sampler:
        def __init__(self):
            self.epochs = []

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

    trainer = Engine(lambda engine, batch: None)
    sampler = Sampler()
    common.setup_common_training_handlers(trainer, sampler, with_pbars=False)
    trainer.run(range(2), max_epochs=3)
    assert sampler.epochs == [0, 1, 2]


def test_progress_is_a_few_plain_lines_where_there_is_no_terminal():
    out = io.StringIO()
    trainer = Engine(lambda engine, batch: {"loss": 0.123456})
    ProgressBar(file=out).attach(trainer, output_transform=lambda output: output)
    trainer.run(range(1000), max_epochs=2)
    lines = out.getvalue().splitlines()
    assert len(lines) == 20
    assert lines[0] == "Epoch [1/2]: 100/1000, loss=0.1235"
    assert lines[-1] == "Epoch [2/2]: 1000/1000, loss=0.1235"


def test_progress_is_a_bar_in_a_terminal():
    main, side = pty.openpty()
    termios.tcsetwinsize(side, (24, 100))
    with os.fdopen(side, "w") as terminal:
        trainer = Engine(lambda engine, batch: None)
        ProgressBar(file=terminal, persist=True, mininterval=0).attach(trainer, metric_names="all")
        trainer.state.metrics["acc"] = 0.5
        trainer.run(range(3))
        terminal.flush()
        shown = ""
        while select.select([main], [], [], 1.0)[0]:  # a terminal hands on what was written piece by piece
            shown += os.read(main, 100_000).decode()
    os.close(main)
    assert "3/3" in shown
    assert "acc=0.5" in shown


def test_clearml_gets_models_scalars_and_configuration_without_a_network(tmp_path):
    # In a process of its own: ClearML patches torch and leaves threads behind.
    script = textwrap.dedent(
        """
        import json, sys
        from pathlib import Path
        import torch
        from clearml import Task
        from shoal.trackers.clearml import init_task

        Task.set_offline(True)
        task = init_task("CIFAR10-Training", task_name="offline", auto_connect_frameworks=True)
        from shoal.contrib.handlers.clearml_logger import ClearMLSaver
        from shoal.engine import Engine, Events
        from shoal.handlers import TrackerLogger
        from shoal.trackers.clearml import ClearMLTracker
        from shoal import common

        folder = Path(sys.argv[1])
        model = torch.nn.Linear(2, 2)
        trainer = Engine(lambda engine, batch: {"batch loss": 0.5})
        common.setup_common_training_handlers(
            trainer=trainer, to_save={"trainer": trainer, "model": model}, save_every_iters=2,
            save_handler=ClearMLSaver(dirname=folder.as_posix()), output_names=["batch loss"], with_pbars=False,
        )
        logger = TrackerLogger(ClearMLTracker())
        logger.attach_output_handler(trainer, Events.ITERATION_COMPLETED, tag="training", metric_names="all")
        logger.log_config({"path": Path("x"), "none": None, "list": [1, {"a": (2,)}]})
        trainer.run(range(3), max_epochs=2)
        ClearMLSaver()({"n": 1}, "temporary.pt")
        logger.close()
        session = Path(task.get_offline_mode_folder())
        task.close()
        print("RESULT" + json.dumps({
            "files": sorted(path.name for path in folder.iterdir()),
            "task": json.loads((session / "task.json").read_text()),
            "scalars": json.loads((session / "metrics.jsonl").read_text().splitlines()[0]),
        }))
        """
    )
    environment = os.environ | {
        "HOME": str(tmp_path / "home"),
        "CLEARML_CACHE_DIR": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    (tmp_path / "home").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "out")],
        capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.partition("RESULT")[2].splitlines()[0])
    assert result["files"] == ["training_checkpoint_6.pt"]
    models = result["task"]["offline_output_models"]
    assert [(model["weights"]["iteration"], model["weights"]["target_filename"]) for model in models] == [
        (2, "training_checkpoint_2.pt"), (4, "training_checkpoint_4.pt"), (6, "training_checkpoint_6.pt"),
        (None, "temporary.pt"),
    ]  # fmt: skip
    assert len({model["id"] for model in models[:3]}) == 2  # the deleted one's place is taken by the next
    assert 'path = "x"' in result["task"]["configuration"]["config"]["value"]
    assert [(scalar["iter"], scalar["metric"], scalar["variant"]) for scalar in result["scalars"]] == [
        (step, "training", "batch loss") for step in range(1, 7)
    ]
