"""MLflow on a SQLite database, read back by MLflow."""

from __future__ import annotations


def test_mlflow_keeps_what_it_is_given_and_a_resumed_run_goes_on_in_it(run_program, tmp_path):
    found = run_program(
        f"""
        import logging, math, threading
        from pathlib import Path
        import torch
        logging.basicConfig(format="%(message)s")
        from shoal.handlers import Checkpoint, MLflowLogger
        from shoal.engine import Engine, Events
        from shoal.testing import check_tracker
        from shoal.trackers.mlflow import MLflowTracker
        import sys
        assert "mlflow" not in sys.modules

        uri = "sqlite:///{tmp_path}/runs.db"
        tracker = MLflowTracker(uri, experiment="checks", run_name="n")
        assert tracker.state_dict() == {{"run_id": None}}
        tracker.log_metrics({{"first": 1}}, step=1)
        run_id = tracker.state_dict()["run_id"]
        import mlflow
        mlflow.log_metric("own", 2.0)  # the run is the active one, as users of MLflow expect
        tracker.close()
        assert mlflow.active_run() is None
        client = mlflow.MlflowClient(uri)
        history = lambda name: [(m.step, m.value) for m in client.get_metric_history(run_id, name)]
        check_tracker(lambda: MLflowTracker(uri, run_id=run_id), read=history)

        # Trap 43: a resumed run with another learning rate, whose parameters MLflow does not change.
        resumed = MLflowTracker(uri)
        torch.save(tracker.state_dict(), "state.pt")
        resumed.load_state_dict(torch.load("state.pt", weights_only=True))
        with resumed:
            resumed.log_config({{"lr": 0.2, "new": [1, "b"], "nested": {{"a": {{"b": True}}, "c": {{}}}}}})
        config = mlflow.artifacts.load_dict(client.get_run(run_id).info.artifact_uri + "/config.json")
        status = client.get_run(run_id).info.status

        # More than MLflow takes in one call.
        with MLflowTracker(uri, run_id=run_id) as many:
            many.log_metrics({{f"m{{i}}": i for i in range(1001)}}, step=1)
            many.log_config({{f"p{{i}}": i for i in range(101)}})

        # A handler's own with block that fails, and attributes of MLflow.
        try:
            with MLflowLogger(uri, run_name="fails") as logger:
                failed_id = logger.active_run.info.run_id
                logger.log_params({{"given": 1}})
                raise OSError
        except OSError:
            pass
        # An active run of the user's is written to and stays open.
        with mlflow.start_run(run_name="theirs") as theirs:
            with MLflowLogger() as logger:
                logger.attach_output_handler(trainer := Engine(lambda e, b: b), Events.ITERATION_COMPLETED, tag="t",
                                             output_transform=lambda x: {{"b": x, "said": "a text"}})
                trainer.run([1.0, 2.0])
            assert mlflow.active_run().info.run_id == theirs.info.run_id
        run = client.get_run(run_id)
        from shoal.errors import TrackerError
        try:
            MLflowTracker(uri, run_id="no-such-run").log_metrics({{"a": 1}}, step=1)
        except TrackerError as error:
            refused = str(error)

        def files(path=""):
            found = []
            for item in client.list_artifacts(run_id, path):
                found += files(item.path) if item.is_dir else [item.path]
            return found

        result({{
            "params": {{k: v for k, v in run.data.params.items() if k[0] != "p" or k == "path"}}, "config": config,
            "status": status, "num params": len(run.data.params), "m1000": history("m1000"),
            "names": sorted(n for n in run.data.metrics if not n.startswith("m")), "files": files(),
            "nan": str(history("check/odd/nan")), "inf": history("check/odd/inf"), "own": history("own"),
            "failed": [client.get_run(failed_id).info.status, client.get_run(failed_id).data.params],
            "theirs": [(m.step, m.value) for m in client.get_metric_history(theirs.info.run_id, "t/b")],
            "their files": [f.path for f in client.list_artifacts(theirs.info.run_id, "texts/t/said")],
            "refused": refused, "threads": [t.name for t in threading.enumerate() if not t.daemon],
        }})
        """
    )
    assert found["params"]["lr"] == "0.1"
    assert found["params"]["new"] == '[1, "b"]'
    assert found["params"]["none"] == "None"
    assert found["params"]["path"] == "a/b"
    assert found["params"]["nested.a.b"] == "True"
    assert found["params"]["odd _ name _"] == "1"
    assert len(found["params"]["long"]) == 6000
    assert found["config"] == {"lr": 0.2, "new": [1, "b"], "nested": {"a": {"b": True}, "c": {}}}
    assert "parameters lr cannot be changed" in found["log"]
    assert "parameters long are cut" in found["log"]
    assert found["status"] == "FINISHED"
    assert found["m1000"] == [[1, 1000.0]]
    assert found["num params"] > 101
    assert {"check/a_b_c_d/e", "check/_/up", "check/by key/a", "step", "time"} <= set(found["names"])
    assert "nan" in found["nan"]
    assert found["inf"] == [[4, 1.7976931348623157e308]]
    assert found["own"] == [[0, 2.0]]
    files = set(found["files"])
    assert {
        "config.json", "texts/check/text/iteration_7.txt", "texts/check/text/epoch_1.txt", "check file.txt",
        "figures/check/figure/iteration_7.png", "histograms/check/histogram/iteration_7.json", "check/renamed.txt",
    } <= files  # fmt: skip
    assert any(name.startswith("images/check~image+step+7") for name in files)
    assert found["failed"] == ["FAILED", {"given": "1"}]
    assert found["theirs"] == [[1, 1.0], [2, 2.0]]
    assert found["their files"] == ["texts/t/said/iteration_1.txt", "texts/t/said/iteration_2.txt"]
    assert "no-such-run" in found["refused"] and "on_error='warn'" in found["refused"]
    assert found["threads"] == ["MainThread"]


def test_a_run_that_was_started_in_another_thread_is_ended_too(run_program, tmp_path):
    found = run_program(
        f"""
        import threading
        from shoal.trackers.mlflow import MLflowTracker
        tracker = MLflowTracker("sqlite:///{tmp_path}/runs.db")
        thread = threading.Thread(target=lambda: tracker.log_metrics({{"a": 1}}, step=1))
        thread.start()
        thread.join()
        run_id = tracker.state_dict()["run_id"]
        tracker.close()
        import mlflow
        result({{"status": mlflow.get_run(run_id).info.status}})
        """
    )
    assert found["status"] == "FINISHED"
