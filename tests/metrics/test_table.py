import inspect

import torch

from shoal import metrics
from shoal.metrics import METRICS, Accuracy, ConfusionMatrix, Metric


def test_every_metric_of_the_table_loads_is_exported_and_is_documented():
    for name in METRICS:
        found = METRICS.load(name)
        assert getattr(metrics, name) is found
        assert name in metrics.__all__
        assert issubclass(found, Metric)
        assert inspect.getdoc(found)


def test_every_metric_starts_with_a_state_of_fixed_shape_on_the_cpu():
    made = {
        "Loss": {"loss_fn": torch.nn.functional.mse_loss},
        "ConfusionMatrix": {"num_classes": 3},
        "Fbeta": {"beta": 1},
    }
    of_matrix = ("IoU", "mIoU", "DiceCoefficient", "JaccardIndex", "cmAccuracy", "cmPrecision", "cmRecall")
    made |= {name: {"cm": ConfusionMatrix(3)} for name in of_matrix}
    made |= {"EpochMetric": {"compute_fn": torch.dist}, "VariableAccumulation": {"op": torch.add}}
    made |= {"MetricsLambda": {"f": float, "value": Accuracy()}, "MetricGroup": {"metrics": {"accuracy": Accuracy()}}}
    for name in METRICS:
        state = METRICS.load(name)(**made.get(name, {})).state()
        assert state
        assert all(tensor.device.type == "cpu" for tensor in state.values())
