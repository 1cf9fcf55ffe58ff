import contextlib
import gc
import logging
import weakref

import pytest
import torch
from torch.nn.functional import cross_entropy

from shoal.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from shoal.metrics import Accuracy, Loss, RunningAverage


@pytest.fixture
def _without_the_collector():
    torch.optim.SGD([torch.zeros(1)])  # torch's first optimizer imports more of torch, which leaves cycles of its own
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Handler:
    def __call__(self, engine):
        pass

    def method(self, engine):
        pass


def build_and_run(ending):
    """An engine with everything attached, run and dropped; weak references to what must be freed."""
    model = torch.nn.Linear(3, 2)
    data = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1])) for _ in range(3)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = create_supervised_trainer(
        model,
        optimizer,
        cross_entropy,
        amp_mode="bf16",
        scaler=torch.amp.GradScaler("cpu"),
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        loss_weight=lambda x, y: len(y),
    )
    trainer.state_dict_user_keys.append("num_skipped_steps")
    trainer.register_events("own", event_to_attr={"own": "num_own"})
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: engine.fire_event("own"))
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda engine: engine.set_data(data))
    evaluator = create_supervised_evaluator(model, metrics={"accuracy": Accuracy(), "loss": Loss(cross_entropy)})
    trainer.logger = logging.getLogger("a-run")
    average, handler = RunningAverage(output_transform=lambda loss: loss), Handler()
    average.attach(trainer, "running loss")
    nothing = Accuracy(output_transform=lambda loss: None)
    nothing.attach(trainer, "nothing")
    nothing.detach(trainer)
    trainer.detach_metric(average)
    average.attach(trainer, "running loss", usage="single_epoch_running_batch_wise")
    chosen = Events.ITERATION_COMPLETED(every=2) | Events.COMPLETED | Events.ITERATION_STARTED(once=[1, 2])
    handle = trainer.add_event_handler(chosen, handler)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, handler.method)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine, other: other.run(data), evaluator)
    if ending == "exception":

        @trainer.on(Events.ITERATION_COMPLETED(once=5))
        def fail(engine):
            raise RuntimeError

        with contextlib.suppress(RuntimeError):
            trainer.run(data, max_epochs=2)
    else:
        if ending != "completed":
            trainer.add_event_handler(Events.ITERATION_COMPLETED(once=5), lambda e: getattr(e, ending)())
        trainer.run(data, max_epochs=2)
    with handle:
        pass
    trainer.state_dict()
    return [weakref.ref(part) for part in (trainer, trainer.state, evaluator, model, average, handler)]


@pytest.mark.usefixtures("_without_the_collector")
@pytest.mark.parametrize("ending", ["completed", "terminate", "interrupt", "exception"])
def test_an_engine_that_is_dropped_is_freed_without_the_garbage_collector(ending):
    references = build_and_run(ending)
    assert [reference() for reference in references] == [None] * len(references)


def test_a_handle_keeps_neither_engine_nor_handler_alive():
    engine, handler = Engine(lambda engine, batch: None), Handler()
    handle = engine.add_event_handler(Events.STARTED, handler)
    references = weakref.ref(engine), weakref.ref(handler)
    del engine, handler
    assert [reference() for reference in references] == [None, None]
    handle.remove()
