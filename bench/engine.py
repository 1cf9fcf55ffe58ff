"""What an engine costs an iteration, when the step itself does nothing: with no handler, and with three.

The three are what a training has at the least: a running average of the output, a line every 100 iterations, and one
handler on every iteration.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from harness import Row, Side, Target, interleave, make_row, options, write_rows

NO_HANDLER_TARGET = Target(2.0, of="ours")
THREE_HANDLERS_TARGET = Target(6.0, of="ours")
OUTPUT = 0.25


def step(_engine: Any, _batch: int) -> float:
    return OUTPUT


def on_hundred(_engine: Any) -> None:
    """Stands for a log line."""


def on_every(_engine: Any) -> None:
    """Stands for a learning-rate schedule."""


def identity(output: float) -> float:
    return output


def side(engine_type: Any, events: Any, running_average: Any, *, num_iterations: int, handlers: bool) -> Side:
    """One run of a fresh engine over a list of numbers; the engines share the names of what is used here."""
    batches = list(range(num_iterations))

    def measure() -> dict[str, float]:
        engine = engine_type(step)
        if handlers:
            running_average(output_transform=identity).attach(engine, "average")
            engine.add_event_handler(events.ITERATION_COMPLETED(every=100), on_hundred)
            engine.add_event_handler(events.ITERATION_COMPLETED, on_every)
        seconds = _timed(lambda: engine.run(batches, max_epochs=1))
        if engine.state.iteration != num_iterations:
            raise RuntimeError(f"ran {engine.state.iteration} iterations of {num_iterations}")
        if handlers and abs(engine.state.metrics["average"] - OUTPUT) > 1e-9:
            raise RuntimeError(f"the running average of {OUTPUT} came out as {engine.state.metrics['average']}")
        return {"iteration_us": seconds / num_iterations * 1e6}

    return measure


def bare_loop(num_iterations: int) -> Side:
    """The same steps called by a ``for`` loop: what is left when there is no engine."""
    batches = list(range(num_iterations))

    def loop() -> None:
        for batch in batches:
            step(None, batch)

    return lambda: {"iteration_us": _timed(loop) / num_iterations * 1e6}


def _timed(work: Callable[[], object]) -> float:
    """Seconds of one call, after the garbage of those before it is collected."""
    gc.collect()
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def shoal_side(*, num_iterations: int, handlers: bool) -> Side:
    from shoal.engine import Engine, Events
    from shoal.metrics import RunningAverage

    return side(Engine, Events, RunningAverage, num_iterations=num_iterations, handlers=handlers)


def ignite_side(*, num_iterations: int, handlers: bool) -> Side:
    from ignite.engine import Engine, Events
    from ignite.metrics import RunningAverage

    return side(Engine, Events, RunningAverage, num_iterations=num_iterations, handlers=handlers)


def deferred(build: Callable[[], Side]) -> Side:
    """A side whose library is imported at its first measurement, so that one that can't be imported fails alone."""
    built: list[Side] = []

    def measure() -> dict[str, float]:
        if not built:
            built.append(build())
        return dict(built[0]())

    return measure


def main() -> None:
    given = options(__doc__)
    num_iterations, rounds = (5_000, 1) if given.quick else (50_000, 9)
    rows: list[Row] = []
    for handlers, case, target in ((False, "no handler", NO_HANDLER_TARGET), (True, "three", THREE_HANDLERS_TARGET)):
        found = interleave(
            {
                "shoal": deferred(partial(shoal_side, num_iterations=num_iterations, handlers=handlers)),
                "Ignite": deferred(partial(ignite_side, num_iterations=num_iterations, handlers=handlers)),
                "bare loop": bare_loop(num_iterations),
            },
            rounds=rounds,
            warmup_rounds=1,
        )
        for peer in ("Ignite", "bare loop"):
            asked = target if peer == "Ignite" else None
            rows.append(
                make_row(
                    f"an iteration, {case}",
                    quantity="iteration_us",
                    unit="us",
                    ours=found["shoal"],
                    peer=peer,
                    theirs=found[peer],
                    target=asked,
                )
            )
    write_rows(rows, given)


if __name__ == "__main__":
    main()
