"""Names of checkpoint files, and the steps that can be read back from them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import UsageError

__all__ = ["Naming", "default_pattern", "is_file_name", "step_in_name"]

_FIELDS = ("filename_prefix", "name", "global_step", "score_name", "score", "ext")


def default_pattern(
    *, with_prefix: bool = True, with_score: bool = True, with_score_name: bool = True, with_global_step: bool = True
) -> str:
    """The file-name pattern with the parts that are asked for, e.g.
    ``{filename_prefix}_{name}_{global_step}_{score_name}={score}.{ext}``.

    Raises:
        UsageError: a score's name is asked for without the score.
    """
    if with_score_name and not with_score:
        raise UsageError("asked for with_score_name=True with with_score=False: a score's name needs the score")
    parts = ["{filename_prefix}"] if with_prefix else []
    parts.append("{name}")
    if with_global_step:
        parts.append("{global_step}")
    if with_score:
        parts.append("{score_name}={score}" if with_score_name else "{score}")
    return "_".join(parts) + ".{ext}"


@dataclass(frozen=True, kw_only=True)
class Naming:
    """How a checkpoint's file is called.

    Attributes:
        name: what is saved: ``"checkpoint"``, or the object's own name where there is only one.
        prefix: put before it.
        score_name: put before the score.
        pattern: a format string with any of the fields filename_prefix, name, global_step, score_name, score and
            ext; None for the default, which has each part that there is a value for.
        ext: the file's ending, without the dot.
    """

    name: str = "checkpoint"
    prefix: str = ""
    score_name: str | None = None
    pattern: str | None = None
    ext: str = "pt"

    def __post_init__(self) -> None:
        for label, part in (("name", self.name), ("filename_prefix", self.prefix), ("score_name", self.score_name)):
            if part and not is_file_name(part):
                raise UsageError(f"asked for {label}={part!r} in a file name; use a name without folders")
        if self.pattern is not None:
            if not isinstance(self.pattern, str):
                raise UsageError(f"asked for filename_pattern={self.pattern!r}; give a format string")
            try:
                sample = self.pattern.format(**dict.fromkeys(_FIELDS, "0") | {"global_step": 0})
            except (KeyError, IndexError, ValueError) as error:
                raise UsageError(
                    f"asked for filename_pattern={self.pattern!r}, which does not work ({error!r}); "
                    f"it may use the fields {', '.join('{' + field + '}' for field in _FIELDS)}"
                ) from error
            if not is_file_name(sample):
                raise UsageError(f"asked for filename_pattern={self.pattern!r}; use a pattern without folders")

    def filename(self, *, step: int | None = None, score: float | None = None) -> str:
        """The file's name for a step and a score, either of which may be absent.

        A score has four decimals (``0.6588``), an integral one none.
        """
        pattern = self.pattern
        if pattern is None:
            pattern = default_pattern(
                with_prefix=bool(self.prefix),
                with_score=score is not None,
                with_score_name=score is not None and self.score_name is not None,
                with_global_step=step is not None,
            )
        return pattern.format(
            filename_prefix=self.prefix,
            name=self.name,
            global_step=step,
            score_name=self.score_name,
            score=None if score is None else _format_score(score),
            ext=self.ext,
        )


def step_in_name(filename: str) -> int | None:
    """The step in a name such as ``training_checkpoint_200.pt``: its last part that is an integer, or None."""
    for part in reversed(Path(filename).stem.split("_")):
        if re.fullmatch(r"\d+", part):
            return int(part)
    return None


def is_file_name(text: str) -> bool:
    """Whether a file in a folder may be called that; not where it leads out of the folder."""
    return Path(text).name == text and text not in ("", "..") and "\0" not in text


def _format_score(score: float) -> str:
    if isinstance(score, int):
        return str(score)
    return f"{score:.4f}" if math.isfinite(score) else str(float(score))
