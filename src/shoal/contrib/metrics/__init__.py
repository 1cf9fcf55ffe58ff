"""Import paths of metrics that programs written for Ignite use; the code is in ``shoal.metrics``."""

from __future__ import annotations

from shoal.handlers import GpuInfo
from shoal.metrics import ROC_AUC, AveragePrecision, CohenKappa, PrecisionRecallCurve, RocCurve

__all__ = [
    "ROC_AUC",
    "AveragePrecision",
    "CohenKappa",
    "GpuInfo",
    "PrecisionRecallCurve",
    "RocCurve",
]
