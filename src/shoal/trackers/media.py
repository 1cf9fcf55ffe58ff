"""What is no number and yet worth recording: texts, images, figures, histograms."""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import torch

from shoal._optional import require
from shoal.errors import UsageError
from shoal.trackers._names import readable

__all__ = ["Figure", "Histogram", "Image", "Medium", "Text", "as_medium"]

_PILLOW = {
    **dict.fromkeys(("P", "CMYK", "YCbCr", "LAB", "HSV", "RGBX"), "RGB"),
    **dict.fromkeys(("PA", "LA", "RGBa"), "RGBA"),
}
"""What Pillow's modes become whose numbers are not brightness."""
_COLOURS = {1: 0, 3: 2, 4: 6}  # PNG's colour type by number of channels: grey, RGB, RGBA


@dataclass(frozen=True, slots=True)
class Text:
    """A text, stored as it is.

    Attributes:
        text: the text; Markdown where a service shows it.

    Raises:
        UsageError: it is no string.
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise UsageError(f"Text was given a {type(self.text).__qualname__}; give a string")
        object.__setattr__(self, "text", readable(self.text))


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """One image.

    Args:
        pixels: a tensor ``(C, H, W)`` or ``(H, W)``, an array ``(H, W, C)`` or ``(H, W)``, or an image of Pillow; C is
            1, 3 or 4; one of Pillow's with a palette or in another colour space becomes RGB. Floats are brightness from
            0 to 1, what lies outside is cut off, NaN is black; integers are 0 to 255.
        caption: shown below it, where the service shows one.

    Attributes:
        pixels: an array ``(H, W, C)`` of uint8, whatever was given.
        caption: as given.

    Raises:
        UsageError: ``pixels`` has another shape, for example that of a batch.
    """

    pixels: Any
    caption: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "pixels", _pixels(self.pixels))

    def png(self) -> bytes:
        """The image as a PNG file (ISO/IEC 15948), written here so that an image needs no further library."""
        height, width, channels = self.pixels.shape
        head = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
        rows = np.zeros((height, 1 + width * channels), np.uint8)  # each row begins with its filter: 0, none
        rows[:, 1:] = self.pixels.reshape(height, -1)
        chunks = (b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b"")
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in chunks
        )


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """A figure of matplotlib or plotly. It is drawn at once; close it yourself afterwards.

    Attributes:
        figure: the figure.

    Raises:
        UsageError: it is neither.
    """

    figure: Any

    def __post_init__(self) -> None:
        if not hasattr(self.figure, "savefig") and not self.is_plotly:
            raise UsageError(
                f"Figure was given a {type(self.figure).__qualname__}; give a figure of matplotlib or of plotly"
            )

    @property
    def is_plotly(self) -> bool:
        """Whether it is plotly's: then it is stored as its JSON or HTML, not as a picture."""
        return hasattr(self.figure, "to_plotly_json")

    def png(self) -> bytes:
        """A figure of matplotlib as a PNG file."""
        stream = io.BytesIO()
        self.figure.savefig(stream, format="png", bbox_inches="tight")
        return stream.getvalue()

    def pixels(self) -> Any:
        """A figure of matplotlib as an array ``(H, W, 4)`` of floats from 0 to 1."""
        module = require("matplotlib.image", extra="plot", purpose="a figure")
        return module.imread(io.BytesIO(self.png()), format="png")

    def json(self) -> str:
        """A figure of plotly as its JSON, which ``plotly.io.from_json`` reads."""
        return str(self.figure.to_json())

    def html(self) -> str:
        """A figure of plotly as a page that takes plotly's script from the web when it is shown."""
        return str(self.figure.to_html(include_plotlyjs="cdn"))


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values lie in which interval. :meth:`of` makes one of the values.

    Attributes:
        counts: values in each bin, (num_bins,).
        edges: the bins' limits, rising, (num_bins + 1,); a bin holds its lower limit, the last one both.
        total: sum of the values.
        total_squares: sum of their squares.
        num_not_finite: how many were NaN or infinite and are in no bin.

    Raises:
        UsageError: there is not one limit more than counts.
    """

    counts: tuple[int, ...]
    edges: tuple[float, ...]
    total: float = 0.0
    total_squares: float = 0.0
    num_not_finite: int = 0

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.counts) + 1 or not self.counts:
            raise UsageError(
                f"Histogram was given {len(self.counts)} counts and {len(self.edges)} edges; give one edge more than "
                "counts, or make it by Histogram.of(values)"
            )

    @classmethod
    def of(cls, values: Any, num_bins: int = 64) -> Self:
        """The histogram of a tensor's or an array's values, whatever its shape, in bins of equal width.

        A tensor is copied to the CPU, which waits for its device.

        Args:
            values: the values, any number of them, none included.
            num_bins: how many bins, from the smallest to the largest finite value.

        Raises:
            UsageError: the values are complex, or no numbers, or ``num_bins`` is no whole number from 1.
        """
        if isinstance(num_bins, bool) or not isinstance(num_bins, int) or num_bins < 1:
            raise UsageError(f"Histogram.of was asked for num_bins={num_bins!r}; give a whole number from 1")
        tensor = _flat(values)
        finite = tensor[torch.isfinite(tensor)]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
        scale = 1.0 if max(abs(low), abs(high)) < 1e300 else 2.0**-4  # their distance must be finite
        low, high = low * scale, high * scale
        if high - low <= 2 * num_bins * np.spacing(max(abs(low), abs(high))):
            # One value only, or no room for limits between two: a bin around it that every format can tell from it.
            margin = max(abs(low) * 1e-3, 1e-3)
            low, high = low - margin, high + margin
        scaled = finite if scale == 1.0 else finite * scale
        counts = torch.histc(scaled, num_bins, low, high) if len(finite) else torch.zeros(num_bins)
        limit = np.finfo(np.float64).max * scale
        edges = np.linspace(low, high, num_bins + 1).clip(-limit, limit)
        return cls(
            counts=tuple(int(count) for count in counts.tolist()),
            edges=tuple((edges / scale).tolist()),
            total=float(finite.sum()),
            total_squares=float(finite.square().sum()),
            num_not_finite=len(tensor) - len(finite),
        )


Medium: TypeAlias = Text | Image | Figure | Histogram


def as_medium(name: str, value: Any) -> Medium:
    """``value``, with a plain text or a bare figure wrapped.

    Raises:
        UsageError: it could be several things, or nothing that is known.
    """
    if isinstance(value, (Text, Image, Figure, Histogram)):
        return value
    if isinstance(value, str):
        return Text(value)
    if hasattr(value, "savefig") or hasattr(value, "to_plotly_json"):
        return Figure(value)
    raise UsageError(
        f"log_media was given a {type(value).__qualname__} as '{name}'; say what it is: Image(value), "
        "Histogram.of(value), Text(value) or Figure(value), all of shoal.trackers"
    )


def _flat(values: Any) -> torch.Tensor:
    """All values in a row on the CPU, as float64: counts of float32 would stop at 2**24."""
    try:
        # A copy of an array: torch knows no strides that run backwards.
        tensor = torch.as_tensor(np.array(values) if isinstance(values, np.ndarray) else values).detach()
        dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"Histogram.of was given a {type(values).__qualname__} that holds no numbers") from error
    if dense.is_complex() or dense.is_meta:
        raise UsageError(f"Histogram.of was given {dense.dtype} on {dense.device}; give numbers, as values.abs()")
    return dense.reshape(-1).to("cpu", torch.float64)


def _pixels(given: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    is_tensor = isinstance(given, torch.Tensor)
    if is_tensor:
        tensor = given.detach()
        array = (tensor.float() if tensor.dtype.is_floating_point else tensor).cpu().numpy()
    else:
        array = np.asarray(given.convert(_PILLOW[given.mode]) if getattr(given, "mode", None) in _PILLOW else given)
    shape, layout = array.shape, "(C, H, W)" if is_tensor else "(H, W, C)"
    if array.ndim == 3 and is_tensor:
        array = array.transpose(1, 2, 0)
    elif array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in _COLOURS or 0 in array.shape or array.dtype.kind not in "fiub":
        kind = "a tensor" if is_tensor else "an array"
        raise UsageError(
            f"Image was given {kind} of shape {tuple(shape)} and type {array.dtype}; "
            f"give one image, {layout} or (H, W), with 1, 3 or 4 channels"
        )
    if array.dtype.kind in "fb":
        array = np.nan_to_num(array.astype(np.float32), nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1) * 255 + 0.5
    return np.ascontiguousarray(array.clip(0, 255).astype(np.uint8))
