"""ClearML offline; what it would have sent is read from the folder of its session."""

from __future__ import annotations

import torch

from shoal.trackers import Histogram

SESSION = """
def session(task):
    folder = Path(task.get_offline_mode_folder())
    read = lambda name: [e for line in (folder / name).read_text().splitlines() for e in json.loads(line)]
    return json.loads((folder / "task.json").read_text()), read("metrics.jsonl"), read("log.jsonl"), folder
"""


def test_clearml_keeps_what_it_is_given_and_a_logger_makes_the_task_that_its_savers_use(run_program):
    found = run_program(
        """
        import logging, sys, threading
        from pathlib import Path
        import torch
        logging.basicConfig(format="%(message)s")
        from shoal.contrib.handlers.clearml_logger import ClearMLLogger, ClearMLSaver
        from shoal.engine import Engine, Events
        from shoal.errors import UsageError
        from shoal.handlers import Checkpoint
        from shoal.testing import check_tracker
        from shoal.trackers.clearml import ClearMLTracker
        assert "clearml" not in sys.modules

        for without_a_task in (ClearMLSaver, lambda: ClearMLTracker().task):
            try:
                without_a_task()
            except UsageError as error:
                assert "Task.init" in str(error)
            else:
                raise SystemExit("no error")
        """
        + _indented(SESSION)
        + """
        logger = ClearMLLogger(project_name="p", task_name="logged", auto_resource_monitoring=False)
        saver = ClearMLSaver(dirname="models")  # before there is a Task
        import clearml
        assert clearml.Task.current_task() is None
        trainer = Engine(lambda engine, batch: batch)
        checkpoint = Checkpoint({"model": torch.nn.Linear(1, 1)}, saver, n_saved=1)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, checkpoint)
        logger.attach_output_handler(trainer, Events.ITERATION_COMPLETED, tag="training",
                                     output_transform=lambda x: {"loss": x})
        trainer.run([0.5, 0.25], max_epochs=2)
        task = logger.get_task()
        assert clearml.Task.current_task() is task
        assert saver.get_local_copy(Path(checkpoint.last_checkpoint).name) == str(checkpoint.last_checkpoint)
        assert saver.get_local_copy("other.pt") is None
        logger.report_text("own words")
        assert not hasattr(logger, "no_such_thing")
        adopted = ClearMLTracker(project_name="another")  # there is a Task: it is taken, and that is said
        check_tracker(lambda: ClearMLTracker(task=task))
        adopted.log_metrics({"a": 1}, step=1)
        assert adopted.task is task and adopted.state_dict() == logger.state_dict() == {"run_id": task.id}
        adopted.close()
        logger.close()
        assert clearml.Task.current_task() is None
        content, metrics, log, folder = session(task)
        values = {}
        for event in metrics:
            if event["type"] == "training_stats_scalar":
                values.setdefault(event["metric"] + "/" + event["variant"], []).append((event["iter"], event["value"]))
        result({
            "values": values, "plots": sorted({e["metric"] for e in metrics if e["type"] == "plot"}),
            "pictures": sorted({e["metric"] + "/" + e["variant"] for e in metrics if "image" in e["type"]}),
            "histogram": [e["plot_str"] for e in metrics if "histogram" in e["variant"]],
            "console": "\\n".join(e["msg"] for e in log), "config": content["configuration"]["config"]["value"],
            "models": [m["weights"]["target_filename"] for m in content["offline_output_models"]],
            "files": sorted(p.name for p in folder.rglob("*") if "artifacts" in str(p) and p.is_file()),
        })
        """
    )
    values = found["values"]
    assert values["training/loss"] == [[1, 0.5], [2, 0.25], [3, 0.5], [4, 0.25]]
    assert values["check/train/loss"] == [[100, 0.5], [200, 0.25], [300, 0.125]]
    assert values["check/val/score"] == [[1, 0.5], [2, 0.75]]  # Trap 44
    assert "check/odd/nan" not in values  # ClearML would show 0
    assert "check/odd/nan is nan at iteration 4" in found["console"]
    assert "check/text at iteration 7:\na <b> & ü" in found["console"]
    assert "own words" in found["console"]
    assert 'path = "a/b"' in found["config"]
    assert found["models"] == ["model_1.pt", "model_2.pt"]
    assert found["files"] == ["check file.txt"] * 4
    assert {"check"} <= set(found["plots"])
    assert '"y": [1, 0, 0' in found["histogram"][0]
    assert "project_name had no effect" in found["log"]


def test_signals_end_a_process_that_has_a_task(run_program):
    program = """
        import ctypes, os, signal, sys
        from shoal.trackers.clearml import init_task, current_task
        how, taken = sys.argv[1], []
        if how == "own":
            signal.signal(signal.SIGTERM, lambda number, frame: taken.append(number))
        if how == "adopted":
            import clearml
            clearml.Task.init("p", "t", auto_connect_frameworks=False)
            current_task()
        else:
            init_task("p", "t", auto_connect_frameworks=False)
        if how == "fault":
            ctypes.string_at(0)
        os.kill(os.getpid(), signal.SIGTERM)
        result({"taken": taken})
        """
    assert run_program(program, "own")["taken"] == [15]  # once: the program knows how it ends
    for how in ("adopted", "fault"):
        run_program(program, how, fails=True)


def test_bars_of_a_histogram_have_labels_of_their_own():
    from shoal.trackers.clearml import _labels

    edges = Histogram.of(torch.ones(3)).edges[:-1]  # weights of a fresh LayerNorm
    assert len(set(_labels(edges))) == len(edges)
    assert _labels([0.25, 0.5]) == ["0.25", "0.5"]


def _indented(text: str) -> str:
    return "".join(f"        {line}\n" for line in text.splitlines())
