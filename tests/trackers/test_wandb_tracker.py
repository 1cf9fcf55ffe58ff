"""Weights & Biases offline; what it wrote is read from its own file."""

from __future__ import annotations

# A run's file is whole only when the process has ended, so this runs in a second one.
READER = """
import json, struct
from collections import defaultdict
from pathlib import Path

def records(path):
    "The protobuf records of a .wandb file, which is in LevelDB's log format: blocks of 32 KiB, records in parts."
    from wandb.proto.wandb_internal_pb2 import Record
    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""

def content(run_id):
    history, axes, config, kinds, files = defaultdict(list), {}, {}, set(), set()
    for path in sorted(Path("wandb").glob(f"offline-run-*-{run_id}/*.wandb")):
        for record in records(path):
            kinds.add(record.WhichOneof("record_type"))
            row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            for name, value in row.items():
                history[name].append((row.get("epoch", row.get("iteration")), value))
            if record.HasField("metric"):
                axes[record.metric.name] = record.metric.step_metric
            for update in (*record.config.update, *record.run.config.update):
                config[update.key or "/".join(update.nested_key)] = json.loads(update.value_json)
            files |= {item.path for item in record.files.files}
            if record.HasField("exit"):
                config["exit"] = record.exit.exit_code
    return history, axes, config, kinds, files
"""


def test_wandb_keeps_what_it_is_given_on_two_axes(run_program):
    first = run_program(
        """
        import logging, sys
        logging.basicConfig(format="%(message)s")
        from shoal.handlers import WandBLogger
        from shoal.testing import check_tracker
        from shoal.trackers.wandb import WandbTracker
        assert "wandb" not in sys.modules

        check_tracker(lambda: WandbTracker(project="p", id="checked", resume="allow"))

        tracker = WandbTracker(project="p")
        assert tracker.state_dict() == {"run_id": None}
        tracker.load_state_dict({"run_id": "goes-on"})
        try:
            with tracker:
                tracker.log_metrics({"loss": 1.0}, step=100)
                tracker.log_metrics({"loss": 2.0}, step=1, axis="epoch")  # Trap 44: one name, two axes
                raise OSError
        except OSError:
            pass

        import wandb
        theirs = wandb.init(project="p", id="theirs")
        with WandBLogger(project="other", name="n") as logger:
            assert logger.run is theirs
            logger.config.update({"own": 1})
            logger.log({"free": 3.0})
            assert logger.Image is wandb.Image
            assert not hasattr(logger, "no_such_thing")
            logger.tracker.log_metrics({"a": 1}, step=1)
        assert wandb.run is theirs  # left open
        theirs.finish()
        result({})
        """
    )
    found = run_program(
        READER
        + """
history, axes, config, kinds, files = content("checked")
two, own = content("goes-on"), content("theirs")
result({
    "axes": axes, "config": config, "kinds": sorted(kinds), "files": sorted(files),
    "losses": history["check/train/loss"], "scores": history["check/val/score"], "each": history["check/each/1"],
    "odd": [str(history[f"check/odd/{n}"][0][1]) for n in ("nan", "inf", "-inf")],
    "own names": [history["epoch_"], history["iteration_"], history["step"]],
    "media": {n[6:]: v[0][1] for n, v in history.items() if n.count("/") == 2 and n.startswith("check/")},
    "two": [two[0]["loss"], two[0]["loss (by epoch)"], two[1], two[2]["exit"]],
    "theirs": [own[0]["free"], own[0]["a"], own[2]["own"]],
})
"""
    )
    assert found["losses"] == [[100, 0.5], [200, 0.25], [300, 0.125]]
    assert found["scores"] == [[1, 0.5], [2, 0.75]]  # Trap 44
    assert found["each"] == [[3, 1.0]]
    assert found["axes"]["check/train/loss"] == "iteration"
    assert found["axes"]["check/val/score"] == "epoch"
    assert found["config"]["list"] == [1, [2, {"three": None}]]
    assert found["config"]["none"] is None
    assert found["config"]["path"] == "a/b"
    assert found["config"]["exit"] == 0
    assert "artifact" in found["kinds"] or "use_artifact" in found["kinds"]
    assert found["odd"] == ["nan", "inf", "-inf"]
    assert found["own names"] == [[[5, 3.0]], [[5, 4.0]], [[5, 1.0]]]
    media = found["media"]
    assert (media["image/_type"], media["image/caption"]) == ("image-file", "three channels")
    assert (media["image/width"], media["image/height"]) == (6, 8)
    assert (media["figure/_type"], media["text/_type"]) == ("image-file", "html-file")
    assert (sum(media["histogram/values"]), len(media["histogram/bins"])) == (3, 65)
    assert found["two"] == [[[100, 1.0]], [[1, 2.0]], {"loss": "iteration", "loss (by epoch)": "epoch"}, 1]
    assert found["theirs"] == [[[None, 3.0]], [[1, 1.0]], 1]
    assert "project, name had no effect" in first["log"]
