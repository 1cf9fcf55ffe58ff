"""trackio in a local folder, read back by trackio."""

from __future__ import annotations


def test_trackio_keeps_what_it_is_given_without_a_server(run_program):
    found = run_program(
        """
        import logging, math, sys, threading
        from pathlib import Path
        logging.basicConfig(format="%(message)s")
        from shoal.handlers import TrackioLogger
        from shoal.testing import check_tracker
        from shoal.trackers.trackio import TrackioTracker
        assert "trackio" not in sys.modules
        quiet = {"auto_log_cpu": False, "auto_log_gpu": False}

        def rows(name):
            from trackio.sqlite_storage import SQLiteStorage
            return SQLiteStorage.get_logs("p", name)

        read = lambda name: [(row["step"], row[name]) for row in rows("checked") if name in row]
        check_tracker(lambda: TrackioTracker("p", name="checked", resume="allow", **quiet), read=read)

        tracker = TrackioTracker("p", **quiet)
        assert tracker.state_dict() == {"run_id": None}
        tracker.log_metrics({"loss": 1.0}, step=100)
        tracker.log_metrics({"acc": 0.5}, step=1, axis="epoch")  # Trap 44
        tracker.log_config({"late": 1})
        state = tracker.state_dict()
        tracker.close()
        resumed = TrackioTracker("p", **quiet)
        resumed.load_state_dict(state)
        with resumed:
            resumed.log_metrics({"loss": 2.0}, step=101)
        with TrackioLogger("p", name="logged", **quiet) as logger:
            logger.log({"free": 1.0})
            assert not hasattr(logger, "no_such_thing")
        from trackio.sqlite_storage import SQLiteStorage
        import trackio
        assert trackio.context_vars.current_run.get() is None
        result({
            "config": SQLiteStorage.get_run_config("p", "checked"),
            "odd": [str(read(f"check/odd/{n}")[0][1]) for n in ("nan", "inf", "-inf")],
            "names": sorted({name for row in rows("checked") for name in row if len(name) < 200}),
            "media": {n.split("/")[1]: v["_type"] for row in rows("checked") for n, v in row.items()
                      if isinstance(v, dict)},
            "blobs": len([p for p in Path("trackio/artifacts").rglob("*") if p.is_file()]),
            "images": len([p for p in Path("trackio/media").rglob("*.png")]),
            "resumed": [(r["step"], r.get("loss"), r.get("acc")) for r in rows(state["run_id"])],
            "late": "config" in rows(state["run_id"])[2] or rows(state["run_id"]),
            "logged": [row["free"] for row in rows("logged")],
            "threads": [t.name for t in threading.enumerate() if not t.daemon],
        })
        """
    )
    assert found["config"]["list"] == [1, [2, {"three": None}]]
    assert found["config"]["none"] is None and found["config"]["path"] == "a/b"
    assert found["odd"] == ["nan", "inf", "-inf"]
    assert {"step_", "time_", "epoch", "iteration", "check/a*b#c%d//e", "check/../up"} <= set(found["names"])
    assert found["media"].items() >= {
        "text": "trackio.markdown", "image": "trackio.image", "grey": "trackio.image", "figure": "trackio.image",
        "histogram": "trackio.histogram", "constant": "trackio.histogram", "nothing": "trackio.histogram",
    }.items()  # fmt: skip
    assert found["images"] == 5
    assert found["blobs"] >= 1
    assert [row for row in found["resumed"] if row[1] or row[2]] == [[100, 1.0, None], [1, None, 0.5], [101, 2.0, None]]
    assert found["logged"] == [1.0]
    assert found["threads"] == ["MainThread"]
