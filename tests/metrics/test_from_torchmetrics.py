"""Metrics of the real torchmetrics: one value over ranks, merged along with Shoal's own."""

import gc
import warnings
import weakref

import pytest
import torch
import torchmetrics as tm
from torchmetrics import wrappers
from torchmetrics.text import Perplexity, WordErrorRate

from shoal.errors import CollectiveError, MissingExtraError, NotComputableError, UsageError
from shoal.metrics import Accuracy, from_torchmetrics
from shoal.testing import check_metric, run_workers


def classes(size=37, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, generator=g).softmax(1), torch.randint(0, 3, (size,), generator=g)


def bits(size=37, seed=1):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 9, (size,), generator=g) / 8, torch.randint(0, 2, (size,), generator=g)


def numbers(size=37, seed=2):
    g = torch.Generator().manual_seed(seed)
    y = torch.randn(size, generator=g)
    return y + torch.randn(size, generator=g), y


def two_numbers(size=37, seed=2):
    one, other = numbers(size, seed), numbers(size, seed + 1)
    return torch.stack([one[0], other[0]], 1), torch.stack([one[1], other[1]], 1)


def tokens(size=17, seed=3):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(size, 4, 5, generator=g).log_softmax(-1), torch.randint(0, 5, (size, 4), generator=g)


def one(size=37, seed=4):
    return (torch.randn(size, generator=torch.Generator().manual_seed(seed)),)


def queries(size=30, seed=5):
    g = torch.Generator().manual_seed(seed)
    scores, hits = torch.rand(size, generator=g), torch.randint(0, 2, (size,), generator=g)
    return scores, hits, torch.randint(0, 6, (size,), generator=g)


def collection(**options):
    return tm.MetricCollection(
        {
            "accuracy": tm.Accuracy(task="multiclass", num_classes=3),
            "recall": tm.Recall(task="multiclass", num_classes=3, average="macro"),
            "auroc": tm.AUROC(task="multiclass", num_classes=3),
        },
        **options,
    )


# The value of one process on the whole is torchmetrics' own.
CASES = {
    "Accuracy": (lambda: tm.Accuracy(task="multiclass", num_classes=3), classes),
    "AUROC, not binned": (lambda: tm.AUROC(task="binary"), bits),
    "ROC, three tensors": (lambda: tm.ROC(task="binary"), bits),
    "ConfusionMatrix": (lambda: tm.ConfusionMatrix(task="multiclass", num_classes=3), classes),
    "PearsonCorrCoef, stacked": (tm.PearsonCorrCoef, numbers),
    "PearsonCorrCoef of outputs": (lambda: tm.PearsonCorrCoef(num_outputs=2), two_numbers),
    "SpearmanCorrCoef": (tm.SpearmanCorrCoef, numbers),
    "R2Score": (tm.R2Score, numbers),
    "MeanMetric": (tm.MeanMetric, one),
    "CatMetric": (tm.CatMetric, one),
    "MaxMetric": (tm.MaxMetric, one),
    "MinMetric": (tm.MinMetric, one),
    "PSNR, a mean that is one setting": (lambda: tm.image.PeakSignalNoiseRatio(data_range=2.5), numbers),
    "MulticlassExactMatch": (
        lambda: tm.classification.MulticlassExactMatch(5, multidim_average="samplewise"),
        lambda: (tokens()[1].roll(1, 0), tokens()[1]),
    ),
    "Perplexity": (Perplexity, tokens),
    "RetrievalMAP": (tm.RetrievalMAP, queries),
    "MetricCollection": (collection, classes),
    "MetricCollection in groups": (
        lambda: collection(compute_groups=[["accuracy", "recall"], ["auroc"]]),
        classes,
    ),
    "composition": (lambda: tm.MeanSquaredError() + 2 * tm.MeanAbsoluteError(), numbers),
    "ClasswiseWrapper": (
        lambda: wrappers.ClasswiseWrapper(tm.Accuracy(task="multiclass", num_classes=3, average=None)),
        classes,
    ),
    "MultioutputWrapper": (lambda: wrappers.MultioutputWrapper(tm.R2Score(), 2), two_numbers),
}


def plain(value):
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        return value.item() if value.dim() == 0 else value
    return type(value)(map(plain, value)) if isinstance(value, tuple | list) else value


def own_value(make, samples):
    metric = make()
    metric.update(*samples)
    return plain(metric.compute())


@pytest.mark.parametrize("name", CASES)
def test_any_split_gives_torchmetrics_own_value_of_one_process(name):
    make, draw = CASES[name]
    check_metric(
        lambda: from_torchmetrics(make()), draw(), expected=own_value(make, draw()), tolerance=2e-6, num_trials=8
    )


def on_three_ranks(names, make_and_draw):
    """The values of all cases at once, over ranks of which one has nothing, and the exchanges that they took."""
    import torch.distributed as dist

    from shoal import runtime
    from shoal.engine import Engine

    rank = runtime.current().rank
    own, calls = [slice(0, 11), slice(0, 0), slice(11, None)][rank], {"n": 0}
    evaluators = {}
    for name in names:
        make, draw = make_and_draw[name]
        evaluators.setdefault(draw, Engine(lambda engine, batch: batch))
        from_torchmetrics(make()).attach(evaluators[draw], name)
    Accuracy().attach(evaluators[classes], "own accuracy")

    def counted(*args, _gather=dist.all_gather, **kwargs):
        calls["n"] += 1
        return _gather(*args, **kwargs)

    dist.all_gather = counted
    others = {name: getattr(dist, name) for name in ("all_reduce", "broadcast", "barrier", "all_gather_object")}
    for name in others:
        setattr(dist, name, None)
    values, exchanges = {}, []
    for draw, evaluator in evaluators.items():
        samples = [part[own] for part in draw()]
        batches = list(zip(*(part.split(4) for part in samples), strict=True)) if own.start != own.stop else []
        calls["n"] = 0
        values |= evaluator.run([batch if len(batch) > 1 else batch[0] for batch in batches]).metrics
        exchanges.append(calls["n"])
    for name, function in others.items():
        setattr(dist, name, function)

    metric = from_torchmetrics(tm.SumMetric())  # Trap 36
    metric.update(torch.tensor(1.0))
    first = metric.compute()
    if rank != 1:
        metric.update(torch.tensor(2.0))
    return values, exchanges, (first, metric.compute())


def test_ranks_without_samples_merge_all_metrics_in_the_one_exchange():
    left_out = {"MetricCollection", "composition"}  # attached under the names of the others' items
    names = [name for name in CASES if name not in left_out]
    expected = {name: own_value(CASES[name][0], CASES[name][1]()) for name in names}
    for values, exchanges, sums in run_workers(on_three_ranks, 3, names, CASES):
        for name in names:
            wanted = expected[name]
            torch.testing.assert_close(values[name], wanted, rtol=2e-6, atol=2e-6, check_dtype=False)
        assert set(exchanges) <= {1, 2}  # two where the states are of more than some kilobytes
        assert sums == (3.0, 7.0)


def test_metrics_that_agree_on_the_first_batch_do_not_share_one_state_for_ever():
    def thresholds():
        return tm.MetricCollection(
            {f"at {at:.0%}": tm.Accuracy(task="binary", threshold=at) for at in (0.4, 0.6)}, compute_groups=True
        )

    batches = [
        (torch.tensor([0.1, 0.9]), torch.tensor([0, 1])),
        (torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0, 0, 0])),
    ]
    theirs, ours = thresholds(), from_torchmetrics(thresholds())
    for batch in batches:
        theirs.update(*batch)
        ours.update(batch)
    assert {key: value.item() for key, value in theirs.compute().items()} == pytest.approx(
        {"at 40%": 0.4, "at 60%": 0.4}
    )
    assert ours.compute() == pytest.approx({"at 40%": 0.4, "at 60%": 1.0})


class Registered(tm.Metric):
    """States of every kind of reduction."""

    def __init__(self, reduction, default):
        super().__init__()
        self.add_state("value", default=default, dist_reduce_fx=reduction)

    def update(self, x):
        self.value = self.value + x if self.value.numel() else x

    def compute(self):
        return self.value


def merged(make, *ranks):
    metrics = [from_torchmetrics(make()) for _ in ranks]
    for metric, batches in zip(metrics, ranks, strict=True):
        for batch in batches:
            metric.update(torch.as_tensor(batch))
    return metrics[0].compute_from(metrics[0].merge([metric.state() for metric in metrics]))


def test_each_reduction_is_that_of_the_samples_of_all_ranks():
    ten = torch.tensor(10.0)
    assert merged(lambda: Registered("sum", ten), [1.0], [], [2.0, 3.0]) == 16.0  # 10 is no sample of any rank
    assert merged(lambda: Registered("max", ten), [-20.0], [], [-15.0]) == -5.0
    assert merged(lambda: Registered("min", ten), [1.0], [], [2.0]) == 11.0
    assert merged(lambda: Registered("mean", torch.tensor(0.0)), [1.0, 2.0, 3.0], [], [10.0]) == 7.0  # 3 * 6 + 10, by 4
    assert merged(lambda: Registered(lambda stack: stack.prod(0), torch.tensor(0.0)), [3.0], [], [5.0]) == 15.0
    assert merged(lambda: Registered(None, torch.tensor(0.0)), [3.0], [], [5.0]).tolist() == [3.0, 5.0]
    assert merged(lambda: Registered("cat", torch.zeros(0)), [[3.0]], [], [[5.0, 6.0]]).tolist() == [3.0, 5.0, 6.0]
    assert merged(lambda: Registered("sum", torch.tensor(0)), [2**53], [], [1]) == 2**53 + 1


def test_states_of_other_shapes_are_refused_with_them():
    with pytest.raises(CollectiveError, match=r"'value' of shapes \(2,\), \(3,\)"):
        merged(lambda: Registered("sum", torch.tensor(0.0)), [[1.0, 2.0]], [[1.0, 2.0, 3.0]])


def test_outputs_are_handed_over_as_pairs_by_name_or_alone():
    samples = {"preds": bits()[0], "target": bits()[1]}
    wanted = own_value(lambda: tm.AUROC(task="binary"), bits())
    by_name, pair = from_torchmetrics(tm.AUROC(task="binary")), from_torchmetrics(tm.AUROC(task="binary"))
    by_name.take(samples)
    pair.take({"y_pred": samples["preds"], "y": samples["target"], "loss": 3})
    assert by_name.compute() == pair.compute() == wanted
    with pytest.raises(UsageError, match=r"keys \['scores'\], and its update takes \['preds', 'target'\]"):
        by_name.take({"scores": samples["preds"]})
    words = from_torchmetrics(WordErrorRate())
    words.take((["a b c"], ["a b d"]))
    assert words.compute() == pytest.approx(1 / 3)
    alone = from_torchmetrics(tm.MeanMetric(), output_transform=lambda out: out["loss"])
    alone.take({"loss": 3.0})
    alone.take(None)
    assert alone.compute() == 3.0


def test_metrics_within_metrics_are_merged_each():
    def tasks():
        errors = tm.MetricCollection([tm.MeanSquaredError()], prefix="b/")
        return from_torchmetrics(wrappers.MultitaskWrapper({"a": tm.SpearmanCorrCoef(), "b": errors}))

    preds, target = numbers(6)
    ranks = [tasks(), tasks(), tasks()]
    for rank, own in ((0, slice(0, 1)), (2, slice(1, 6))):
        shared = preds[own].clone()
        ranks[rank].take(({"a": shared, "b": preds[own]}, {"a": target[own], "b": target[own]}))
        shared.zero_()  # what the caller fills anew is not kept
    found = ranks[0].compute_from(ranks[0].merge([metric.state() for metric in ranks]))
    assert found["a"] == pytest.approx(own_value(tm.SpearmanCorrCoef, (preds, target)), abs=1e-6)
    assert found["b"] == {"b/MeanSquaredError": pytest.approx(float((preds - target).square().mean()))}


def test_computing_leaves_the_metric_as_it_was():
    metric = from_torchmetrics(tm.PearsonCorrCoef())
    metric.update(numbers())
    before = dict(vars(metric.metric))
    value = metric.compute()
    assert vars(metric.metric).keys() == before.keys()
    assert all(vars(metric.metric)[key] is kept for key, kept in before.items())
    assert metric.metric.compute().item() == value


def test_what_cannot_be_merged_is_refused():
    with pytest.raises(UsageError, match="takes a torchmetrics"):
        from_torchmetrics(torch.nn.Linear(1, 1))
    with pytest.raises(UsageError, match="MinMaxMetric cannot be merged over ranks: its value depends"):
        from_torchmetrics(wrappers.MinMaxMetric(tm.MeanMetric()))
    with pytest.raises(UsageError, match="Running cannot be merged"):
        from_torchmetrics(tm.MetricCollection({"a": wrappers.Running(tm.MeanMetric())}))

    class Hiding(Registered):
        def __init__(self):
            super().__init__("sum", torch.tensor(0.0))
            self.others = [tm.MeanMetric()]

    with pytest.raises(UsageError, match="keeps metrics in its attribute 'others'"):
        from_torchmetrics(Hiding())

    class Texts(Registered):
        def __init__(self):
            super().__init__("cat", [])

        def update(self, x):
            self.value.append("text")

    metric = from_torchmetrics(Texts())
    metric.update(torch.zeros(1))
    with pytest.raises(UsageError, match="keeps str in its state 'value'"):
        metric.state()

    class Forgetful(Registered):
        def update(self, x):
            self.value, self.seen = self.value + x, True

        def compute(self):
            return self.value if self.seen else None

    with pytest.raises(UsageError, match="besides its registered states"):
        merged(lambda: Forgetful("sum", torch.tensor(0.0)), [], [1.0])


def test_lists_of_unlike_tensors_arrive_as_they_are():
    class Kept(Registered):
        def __init__(self):
            super().__init__(None, [])

        def update(self, x):
            self.value.append(x)

    unlike = [torch.tensor(True), torch.zeros(2, 0), torch.ones(1, 3, dtype=torch.bfloat16), torch.arange(3)]
    found = merged(Kept, unlike[:1], unlike[1:])
    assert [(item.dtype, item.tolist()) for item in map(torch.as_tensor, found)] == [
        (item.dtype, item.tolist()) for item in unlike
    ]


def test_nothing_keeps_a_metric_alive():
    gc.collect()
    gc.disable()
    try:
        metric = from_torchmetrics(tm.MeanMetric())
        metric.update(torch.ones(3))
        metric.compute()
        watched = weakref.ref(metric)
        del metric
        assert watched() is None
    finally:
        gc.enable()


def test_the_extra_is_named_where_torchmetrics_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchmetrics", None)
    with pytest.raises(MissingExtraError, match=r"shoal\[torchmetrics\]"):
        from_torchmetrics(object())


def test_no_sample_is_not_computable_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NotComputableError):
            from_torchmetrics(collection()).compute()
