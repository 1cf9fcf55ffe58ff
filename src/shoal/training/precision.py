"""Mixed precision: which dtype the forward pass runs in, and whether gradients are scaled."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch

from shoal import runtime
from shoal._registry import nearest
from shoal.errors import UsageError
from shoal.training.batches import map_tensors

__all__ = ["Precision", "left_out_by_scaler"]

_LOGGER = "shoal.training.precision"
_MODES = ("amp", "bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Precision:
    """What the forward pass computes in.

    Attributes:
        device_type: ``"cpu"``, ``"cuda"``, ….
        dtype: of autocast, or None for full precision.
        scaler: scales the loss so that small fp16 gradients do not vanish, or None.
    """

    device_type: str
    dtype: torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = None

    @classmethod
    def resolve(
        cls, mode: str | None, device: torch.device | str | None, scaler: torch.amp.GradScaler | bool = False
    ) -> Precision:
        """What a mode means on a device.

        Args:
            mode: None: full precision. ``"amp"``: fp16 on CUDA, bf16 elsewhere. ``"bf16"`` and ``"fp16"`` as they say,
                except that fp16 on a CPU, whose operators mostly lack it, runs in bf16; a log line says so.
            device: where the model computes; None is the CPU.
            scaler: True: a ``torch.amp.GradScaler`` where the dtype is fp16 (bf16 needs none, a log line says so);
                or one of the caller's own; False: none.

        Raises:
            UsageError: an unknown mode, or a scaler without mixed precision.
        """
        try:
            device_type = torch.device(device if device is not None else "cpu").type
        except RuntimeError as error:
            raise UsageError(f"device={device!r} was given, which is none ({error}); give 'cpu', 'cuda', …") from error
        if mode is None:
            if scaler is not False:
                raise UsageError(
                    f"scaler={scaler!r} was given without mixed precision, where it has no effect; pass "
                    "amp_mode='amp' too, or scaler=False"
                )
            return cls(device_type)
        if mode not in _MODES:
            raise UsageError(
                f"amp_mode={mode!r} was given{nearest(mode, list(_MODES))}; choose one of {', '.join(_MODES)}, or None"
            )
        wants_half = mode in ("amp", "fp16")
        has_half = device_type != "cpu"
        dtype = torch.float16 if wants_half and has_half else torch.bfloat16
        if wants_half and not has_half:
            runtime.get_logger(_LOGGER).info(
                "amp_mode='%s' on a CPU runs in bfloat16%s", mode, ", without a gradient scaler" if scaler else ""
            )
        if isinstance(scaler, torch.amp.GradScaler):
            return cls(device_type, dtype, scaler)
        if scaler and dtype is torch.float16:
            return cls(device_type, dtype, torch.amp.GradScaler(device_type))
        if scaler and not (wants_half and not has_half):
            runtime.get_logger(_LOGGER).info("scaler=True has no effect with bfloat16, which needs no scaling")
        return cls(device_type, dtype)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """The context of the forward pass and the loss."""
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype)

    def full(self, output: object) -> object:
        """A model's output in float32 where autocast made it 16 bits wide; other tensors stay as they are."""
        if self.dtype is None:
            return output
        return map_tensors(lambda t: t.float() if t.dtype in (torch.float16, torch.bfloat16) else t, output)


def left_out_by_scaler(optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
    """Whether the call of ``optimizer.step()`` that is ending was to do nothing; asked in a hook after the step.

    A gradient scaler calls a fused optimizer also for a step that it leaves out, and tells it so by ``found_inf``, for
    the time of the call. Other optimizers it doesn't call then.

    Returns:
        1 or 0, without dimensions, on the device, for which nobody waits; None where the optimizer is told nothing.
    """
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf.detach().ne(0).sum() if isinstance(found_inf, torch.Tensor) else None
