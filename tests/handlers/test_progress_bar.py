"""What progress looks like: in a terminal, in a notebook, in a file."""

from __future__ import annotations

import gc
import io
import os
import re
import signal
import subprocess
import sys
import textwrap
import weakref

import pexpect
import pytest
import torch

from shoal.engine import Engine, Events
from shoal.errors import UsageError
from shoal.handlers import ProgressBar


def _screen(text):
    """What a terminal shows after ``text``: carriage returns, line feeds, and the cursor moved up."""
    rows, row, column = [""], 0, 0
    for piece in re.findall(r"\x1b\[\d*[A-Za-z]|\r|\n|[^\r\n\x1b]+", text):
        if piece == "\r":
            column = 0
        elif piece == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif piece.startswith("\x1b"):
            assert piece.endswith("A"), f"unknown: {piece!r}"
            row = max(0, row - int(piece[2:-1] or 1))
        else:
            line = rows[row].ljust(column)
            rows[row] = line[:column] + piece + line[column + len(piece) :]
            column += len(piece)
    return [line.rstrip() for line in rows if line.strip()]


def _in_a_terminal(tmp_path, program):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    child = pexpect.spawn(
        sys.executable, [str(script)], dimensions=(30, 100), encoding="utf-8", timeout=100,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    child.expect(pexpect.EOF)
    child.close()
    return _screen(child.before)


def test_log_lines_stand_above_the_bars_in_a_terminal(tmp_path):
    shown = _in_a_terminal(
        tmp_path,
        """
        import logging
        from shoal import common
        from shoal.engine import Engine, Events
        from shoal.handlers import ProgressBar
        from shoal.utils import setup_logger

        ours = setup_logger("run", format="%(message)s")
        other = logging.getLogger("other")
        other.addHandler(logging.StreamHandler())
        trainer = Engine(lambda engine, batch: 0.5)
        common.setup_common_training_handlers(trainer, output_names=["loss"], log_every_iters=1)
        trainer.add_event_handler(Events.ITERATION_COMPLETED(every=3), lambda e: ours.info("at %d", e.state.iteration))
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda e: other.warning("epoch %d", e.state.epoch))
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda e: ProgressBar.log_message("said"))
        trainer.run(range(4), max_epochs=2)
        ours.info("own emit: %s", any("emit" in vars(handler) for handler in ours.handlers + other.handlers))
        """,
    )
    assert shown[:6] == ["at 3", "epoch 1", "said", "at 6", "epoch 2", "said"]
    assert re.match(r"Epoch: 100%\|█+\| 2/2 \[", shown[6])
    assert shown[7:] == ["own emit: False"]


def test_a_bar_is_complete_also_between_updates_and_gone_where_the_run_is_left(tmp_path):
    shown = _in_a_terminal(
        tmp_path,
        """
        from shoal.engine import Engine, Events
        from shoal.handlers import ProgressBar
        from tqdm import tqdm

        def run(count, leave=None, **options):
            trainer = Engine(lambda engine, batch: None)
            bar = ProgressBar(persist=True, ncols=70, **options)
            bar.attach(trainer, event_name=Events.ITERATION_COMPLETED(every=4))
            if leave is not None:
                trainer.add_event_handler(Events.ITERATION_COMPLETED(once=6), leave)
            try:
                trainer.run(range(count))
            except RuntimeError:
                pass
            print("open" if tqdm._instances else "closed")

        def fail(engine):
            raise RuntimeError

        run(10)
        run(9, desc="Predicting")
        run(8, bar_format="{desc}|{bar}|{n_fmt} of {total_fmt}")
        run(8, lambda engine: engine.terminate())
        run(8, lambda engine: engine.terminate_epoch(skip_epoch_completed=True))
        run(8, lambda engine: engine.interrupt())
        run(8, fail)
        run(8, disable=True)
        """,
    )
    assert shown.count("closed") == 8
    assert "10/10" in shown[0]
    assert len(shown[0]) in (69, 70)
    assert shown[2].startswith("Predicting: 100%")
    assert re.fullmatch(r"Iteration\|█+\|8 of 8", shown[4])
    assert [re.search(r"(\d)/8", line).group(1) for line in shown if "/8" in line] == ["4"] * 4
    assert "Engine run stopped in epoch 1" in shown[12]
    assert len(shown) == 16


def test_a_bar_shows_the_epoch_it_is_in_and_is_closed_where_max_iters_ends_the_run(tmp_path):
    shown = _in_a_terminal(
        tmp_path,
        """
        from shoal.engine import Engine, Events
        from shoal.handlers import ProgressBar
        from tqdm import tqdm

        trainer = Engine(lambda engine, batch: None)
        ProgressBar(persist=True).attach(trainer, closing_event_name=Events.COMPLETED)
        trainer.run(range(4), max_epochs=3)
        trainer = Engine(lambda engine, batch: None)
        ProgressBar(persist=True).attach(trainer)
        trainer.run(range(4), max_iters=6)
        print("open" if tqdm._instances else "closed")
        """,
    )
    assert [re.match(r"Epoch \[./.\]: +\d+%|closed", line).group() for line in shown] == [
        "Epoch [3/3]: 100%", "Epoch [1/2]: 100%", "Epoch [2/2]:  50%", "closed",
    ]  # fmt: skip


def test_an_evaluation_in_the_middle_of_an_epoch_has_a_bar_of_its_own(tmp_path):
    shown = _in_a_terminal(
        tmp_path,
        """
        from shoal.engine import Engine, Events
        from shoal.handlers import ProgressBar

        trainer, evaluator = (Engine(lambda engine, batch: None) for _ in range(2))
        bar = ProgressBar(persist=True)
        bar.attach(trainer)
        bar.attach(evaluator)
        trainer.add_event_handler(Events.ITERATION_COMPLETED(every=4), lambda: evaluator.run(range(3)) and None)
        trainer.run(range(10), max_epochs=1)
        """,
    )
    assert sorted(re.search(r"\d+/\d+", line).group() for line in shown) == ["10/10", "3/3", "3/3"]


def test_a_run_goes_on_where_its_terminal_is_closed(tmp_path):
    script, result = tmp_path / "program.py", tmp_path / "result"
    script.write_text(
        textwrap.dedent(
            """
            import os, pathlib, signal, sys, threading
            from shoal.engine import Engine, Events
            from shoal.handlers import ProgressBar

            closed = threading.Event()
            signal.signal(signal.SIGUSR1, lambda *_: closed.set())
            trainer = Engine(lambda engine, batch: None)
            ProgressBar(mininterval=0).attach(trainer)
            trainer.add_event_handler(Events.ITERATION_COMPLETED(once=6), lambda: os.write(1, b"waiting") and None)
            trainer.add_event_handler(Events.ITERATION_COMPLETED(once=6), lambda: closed.wait(100) and None)
            try:
                trainer.run(range(4), max_epochs=4)
            finally:
                pathlib.Path(sys.argv[1]).write_text(f"at {trainer.state.iteration}")
            """
        )
    )
    main, terminal = os.openpty()
    child = subprocess.Popen(
        [sys.executable, str(script), str(result)], stdin=terminal, stdout=terminal, stderr=terminal,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    os.close(terminal)
    shown = b""
    while b"waiting" not in shown:
        shown += os.read(main, 1000)
    os.close(main)
    child.send_signal(signal.SIGUSR1)
    child.wait(timeout=100)
    assert result.read_text() == "at 16"


@pytest.mark.parametrize("kind", ["closed", "ascii", "none"])
def test_a_run_goes_on_where_progress_cannot_be_written(kind, caplog, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    if kind == "closed":
        out.close()
    if kind == "none":  # as where there is no console
        monkeypatch.setattr(sys, "stderr", None)
    trainer = Engine(lambda engine, batch: None)
    trainer.state.metrics["précision"] = 0.5
    ProgressBar(file=None if kind == "none" else out).attach(trainer, "all")
    trainer.run(range(4), max_epochs=2)
    assert trainer.state.iteration == 8
    assert [record.getMessage()[:33] for record in caplog.records] == [
        "Progress is not shown any more: " + ("I" if kind == "closed" else "'")
    ] * (kind != "none")


def test_a_value_is_looked_at_only_where_it_is_drawn():
    class Watched:
        def __str__(self):
            looks.append(trainer.state.iteration)
            return "x"

    looks, out = [], io.StringIO()
    trainer = Engine(lambda engine, batch: Watched())
    ProgressBar(file=out).attach(trainer, output_transform=lambda output: output)
    trainer.run(range(100))
    assert looks == list(range(10, 101, 10))
    assert len(out.getvalue().splitlines()) == 10


NOTEBOOK = """
{before}
from shoal.engine import Engine, Events
from shoal.handlers import ProgressBar
trainer = Engine(lambda engine, batch: 0.5)
ProgressBar(persist=True).attach(trainer, output_transform=lambda output: {{"loss": output}})
ProgressBar().attach(trainer, event_name=Events.EPOCH_COMPLETED, closing_event_name=Events.COMPLETED)
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: ProgressBar.log_message("said"))
trainer.run(range(4), max_epochs=2)
"""


def _in_a_notebook(before=""):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(NOTEBOOK.format(before=before))]
    nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    return notebook


def test_bars_in_a_notebook_are_widgets():
    # A real kernel; what a browser would make of the widgets is not looked at.
    notebook = _in_a_notebook()
    outputs = notebook.cells[0].outputs
    views = [output for output in outputs if output.output_type == "display_data"]
    assert len(views) == 3
    assert all("application/vnd.jupyter.widget-view+json" in view["data"] for view in views)
    assert "".join(output.text for output in outputs if output.output_type == "stream") == "said\nsaid\n"
    state = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"].values()
    bars = [widget["state"] for widget in state if widget["model_name"] == "FloatProgressModel"]
    assert sorted((bar["value"], bar["max"]) for bar in bars) == [(2.0, 2.0), (4.0, 4.0), (4.0, 4.0)]
    texts = [widget["state"]["value"] for widget in state if widget["model_name"] == "HTMLModel"]
    assert any("loss=0.5" in text for text in texts)


def test_a_notebook_without_ipywidgets_shows_lines_and_says_what_to_install():
    outputs = _in_a_notebook(before="import sys; sys.modules['ipywidgets'] = None").cells[0].outputs
    assert not [output for output in outputs if output.output_type == "display_data"]
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    assert text.count("pip install 'shoal[notebook]'") == 1
    assert "Epoch [2/2]: 4/4, loss=0.5" in text
    assert "Epoch: 2/2" in text


def test_metrics_attributes_and_outputs_are_shown_and_what_is_missing_is_told_once(caplog):
    out = io.StringIO()
    trainer = Engine(lambda engine, batch: torch.tensor([0.25, 0.5]))
    trainer.state.metrics["acc"] = torch.tensor(0.75)
    trainer.state.weight = "high"
    bar = ProgressBar(file=out, desc="Training")
    bar.attach(trainer, ["acc", "typo"], lambda output: output, state_attributes=["weight", "other"])
    trainer.run(range(2), max_epochs=2)
    lines = out.getvalue().splitlines()
    assert lines[0] == "Training [1/2]: 1/2, acc=0.75, weight=high, output_0=0.25, output_1=0.5"
    assert [record.getMessage().split("'")[1] for record in caplog.records] == ["typo", "other"]


def test_bars_that_cannot_work_are_refused():
    trainer = Engine(lambda engine, batch: None)
    for options, text in (
        ({"metric_names": "loss"}, "metric_names='loss'"),
        ({"state_attributes": "weight"}, "state_attributes='weight'"),
        ({"event_name": Events.EPOCH_COMPLETED}, "comes no later"),
        ({"event_name": Events.EPOCH_COMPLETED | Events.COMPLETED}, "give one event"),
    ):
        with pytest.raises(UsageError, match=text):
            ProgressBar().attach(trainer, **options)


def test_a_bar_keeps_no_engine_alive():
    gc.collect()
    gc.disable()
    try:
        trainer, bar = Engine(lambda engine, batch: None), ProgressBar(file=io.StringIO())
        bar.attach(trainer, "all", state_attributes=["epoch"])
        trainer.run(range(2))
        references = weakref.ref(trainer), weakref.ref(bar)
        del trainer, bar
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()
