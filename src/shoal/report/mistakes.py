"""How a classifier errs: the matrix, the classes, the pairs that it mixes up, and the images that it got most wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shoal.report.html import Chart, apart, chart, number, percent, table, text
from shoal.report.load import ReportedRun
from shoal.runs import ClassifiedImages

__all__ = ["class_table", "compared_classes", "confusion", "pair_table", "wrong_images"]

_TABLE_CLASSES = 20
"""More classes than this are drawn as a picture: no table of theirs can be read."""
_MAP_CLASSES = 150
_SHORT_NAME = 3
_STRONG = 0.7
"""From here on a cell's text needs the other colour, in light and in dark."""
_MOST_ROWS = 30
_MOST_PAIRS = 10


def confusion(found: ClassifiedImages) -> str:
    """The confusion matrix: a table of few classes, a picture of many, nothing of very many."""
    count = len(found.classes)
    if count > _MAP_CLASSES:
        return ""
    return _matrix(found) if count <= _TABLE_CLASSES else chart(_heat_map(found))


_MATRIX_CAPTION = (
    "Confusion matrix: rows are the classes of the images, columns what they were taken for; "
    "the stronger the colour, the larger the part of the row"
)


def _matrix(found: ClassifiedImages) -> str:
    heads = "".join(f'<th scope="col" title="{text(name)}"><span>{text(name)}</span></th>' for name in found.classes)
    rows = []
    for label, counts in enumerate(found.confusion):
        name = text(found.classes[label])
        total = sum(counts) or 1
        cells = "".join(
            _cell(images, images / total, found.classes[label], found.classes[predicted], right=label == predicted)
            for predicted, images in enumerate(counts)
        )
        rows.append(f'<tr><th scope="row" title="{name}">{name}</th>{cells}</tr>')
    short = " short" if max(map(len, found.classes)) <= _SHORT_NAME else ""
    return (
        '<div class="scroll" role="region" aria-label="Table: confusion matrix" tabindex="0">'
        f'<table class="confusion{short}"><caption>{_MATRIX_CAPTION}</caption>'
        f"<thead><tr><td></td>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(images: int, share: float, label: str, predicted: str, *, right: bool) -> str:
    kind = " ".join(["right"] * right + ["none"] * (not images) + ["strong"] * (share > _STRONG))
    told = f"{images} of {label} taken for {predicted}, {percent(share)}"
    return f'<td class="{kind}" style="--p:{round(100 * share)}%" title="{text(told)}">{images}</td>'


def _heat_map(found: ClassifiedImages) -> Chart:
    shares = [[round(images / (sum(row) or 1), 4) for images in row] for row in found.confusion]
    # plotly reads a little HTML in names, and gives entities back as the characters that they stand for.
    names = [text(name) for name in found.classes]
    return Chart(
        title="Confusion matrix, as parts of each class",
        description=f"Confusion matrix of {len(names)} classes. The table of mixed-up classes has its largest numbers.",
        traces=[
            {
                "type": "heatmap",
                "z": shares,
                "x": names,
                "y": names,
                "zmin": 0,
                "zmax": 1,
                "colorscale": [[0, "$surface"], [1, "$heat"]],
                "showscale": False,
                "hovertemplate": "%{y} taken for %{x}: %{z:.1%}<extra></extra>",
            }
        ],
        layout={
            # Names such as 7 or 2024-01-01 would make axes of numbers or dates, in another order.
            "xaxis": {
                "type": "category",
                "title": {"text": "Taken for"},
                "tickangle": -90,
                "gridcolor": "rgba(0,0,0,0)",
            },
            "yaxis": {
                "type": "category",
                "title": {"text": "Class"},
                "autorange": "reversed",
                "gridcolor": "rgba(0,0,0,0)",
            },
            "hovermode": "closest",
        },
        wide=True,
        height=640,
    )


def class_table(found: ClassifiedImages) -> str:
    """Accuracy and precision of each class, the worst first."""
    classes = sorted(_by_class(found), key=lambda row: (row[2] is None, row[2] or 0.0))
    rows = [
        [text(name), number(images), _bar(accuracy), percent(precision)]
        for name, images, accuracy, precision in classes[:_MOST_ROWS]
    ]
    more = f"; the {_MOST_ROWS} worst of {len(classes)}" if len(classes) > _MOST_ROWS else ""
    caption = f"Accuracy by class: the part of its images that was recognised{more}"
    return table(caption, ["Class", "Images", "Accuracy", "Precision"], rows, kind="numbers")


def compared_classes(runs: Sequence[tuple[str, ReportedRun]]) -> str:
    """Accuracy of each class in each run, where they know the same classes."""
    known = [(letter, run.predictions) for letter, run in runs if run.predictions is not None]
    if len(known) < 2 or len({found.classes for _, found in known}) > 1:
        return ""
    columns = [[accuracy for _, _, accuracy, _ in _by_class(found)] for _, found in known]
    names = known[0][1].classes
    order = sorted(range(len(names)), key=lambda place: _worst(columns, place))[:_MOST_ROWS]
    rows = [[text(names[place]), *(_bar(column[place]) for column in columns)] for place in order]
    heads = ["Class", *(f"Run {letter}" for letter, _ in known)]
    return table("Accuracy by class, at each run's best evaluation", heads, rows, kind="numbers")


def _worst(columns: Sequence[Sequence[float | None]], place: int) -> float:
    """The least accuracy of a class; one without images comes last."""
    return min((part for column in columns if (part := column[place]) is not None), default=math.inf)


def pair_table(found: ClassifiedImages) -> str:
    """The classes that are mixed up most often."""
    pairs = [
        (images, label, predicted)
        for label, counts in enumerate(found.confusion)
        for predicted, images in enumerate(counts)
        if images and label != predicted
    ]
    pairs.sort(key=lambda pair: (-pair[0], pair[1:]))
    rows = [
        [
            f"{apart(found.classes[label])} <span class=arrow>taken for</span> {apart(found.classes[predicted])}",
            number(images),
            percent(images / sum(found.confusion[label])),
        ]
        for images, label, predicted in pairs[:_MOST_PAIRS]
    ]
    if not rows:
        return ""
    return table("Classes that are mixed up most often", ["Class", "Images", "Of the class"], rows, kind="numbers")


def wrong_images(found: ClassifiedImages) -> str:
    """The most wrong predictions, each with its image."""
    figures = []
    for image in found.most_wrong:
        label, predicted = found.classes[image.label], found.classes[image.predicted]
        alt = f"Validation image {image.index}: {label}, taken for {predicted}"
        figures.append(
            f'<figure><img src="data:image/png;base64,{image.png}" alt="{text(alt)}">'
            f"<figcaption><span><b>{apart(predicted)}</b> {percent(image.probability)}</span>"
            f"<span>is {apart(label)} {percent(image.label_probability)}</span></figcaption></figure>"
        )
    return f'<div class="wrong">{"".join(figures)}</div>' if figures else ""


def _by_class(found: ClassifiedImages) -> list[tuple[str, int, float | None, float | None]]:
    """Name, images, accuracy and precision of each class; None where there is nothing to divide by."""
    predicted = [sum(column) for column in zip(*found.confusion, strict=True)]
    rows = []
    for place, (name, counts) in enumerate(zip(found.classes, found.confusion, strict=True)):
        right, images = counts[place], sum(counts)
        accuracy = right / images if images else None
        rows.append((name, images, accuracy, right / predicted[place] if predicted[place] else None))
    return rows


def _bar(part: float | None) -> str:
    return f'<span class="bar" style="--p:{100 * (part or 0):.0f}%">{percent(part)}</span>'
