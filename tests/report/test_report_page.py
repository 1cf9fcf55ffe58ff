"""The page as a browser shows it: opened in real headless Chromium."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shoal.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

HOSTILE = "<script>document.title='taken'</script><b>cat</b>\"'&amp;"


@contextmanager
def opened(browser: Browser, page_file: Path, **options: Any) -> Iterator[Page]:
    """The page, drawn; its script says nothing, and it asks for nothing but itself."""
    context = browser.new_context(**options)
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(page_file.as_uri())
    page.wait_for_selector("html[data-drawn]")
    yield page
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [page_file.as_uri()]
    context.close()


def headings(page: Page) -> list[str]:
    return page.locator("h2").all_inner_texts()


def assert_drawn(page: Page, at_least: int) -> None:
    charts = page.locator("figure.chart")
    assert charts.count() >= at_least
    for place in range(charts.count()):
        assert charts.nth(place).locator("svg.main-svg").count() > 0
        assert len(charts.nth(place).locator(".plot").get_attribute("aria-label") or "") > 30
    mistakes = page.evaluate(
        "[...document.querySelectorAll('.plot')].map((plot) => Plotly.validate(plot.data, plot.layout)).filter(Boolean)"
    )
    assert mistakes == []


def test_a_page_shows_curves_times_mistakes_and_the_set_up(browser: Browser, run: Path) -> None:
    with opened(browser, run / "report.html", viewport={"width": 1280, "height": 900}) as page:
        assert headings(page) == ["Curves", "Time", "Classes", "Most wrong predictions", "Set-up", "Go on"]
        assert page.title() == "shufflenet_v2_x0_5 on digits, 1 process"
        titles = page.locator("figure.chart figcaption").all_inner_texts()
        assert titles == ["Loss", "Accuracy", "Learning rate", "Seconds by epoch", "Images per second, in training"]
        assert_drawn(page, 5)
        found = json.loads((run / "predictions.json").read_text(encoding="utf-8"))
        cells = page.locator("table.confusion tbody td").all_inner_texts()
        assert list(map(int, cells)) == [count for row in found["confusion"] for count in row]
        images = page.locator(".wrong img")
        assert images.count() == len(found["most_wrong"]) > 0
        assert page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth === 32)")
        assert all("taken for" in alt for alt in images.evaluate_all("all => all.map((image) => image.alt)"))
        assert page.locator("table").count() == page.locator("table caption").count()


@pytest.mark.parametrize("several", [False, True])
def test_nothing_is_wider_than_a_phone(
    several: bool, browser: Browser, run: Path, other_run: Path, tmp_path: Path
) -> None:
    page_file = write_report([run, other_run], tmp_path / "both.html") if several else run / "report.html"
    with opened(browser, page_file, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        cut = page.evaluate(
            "[...document.querySelectorAll('figure.chart, .tiles, .wrong, table.confusion, table.numbers, h1, pre')]"
            ".filter((e) => e.getBoundingClientRect().right > 390 || e.scrollWidth > e.clientWidth + 1)"
            ".map((e) => e.className)"
        )
        assert cut == []


def test_light_and_dark_follow_the_system_also_in_charts_and_at_once(browser: Browser, run: Path) -> None:
    colours = """() => {
        const line = document.querySelector("figure.chart .scatterlayer .js-line");
        return [getComputedStyle(document.body).backgroundColor, getComputedStyle(line).stroke,
                getComputedStyle(document.querySelector("figure.chart .xtick text")).fill];
    }"""
    with opened(browser, run / "report.html", color_scheme="light") as page:
        light = page.evaluate(colours)
        page.emulate_media(color_scheme="dark")
        page.wait_for_function(f"before => ({colours})()[1] !== before", arg=light[1])
        dark = page.evaluate(colours)
    assert all(a != b for a, b in zip(light, dark, strict=True))
    assert brightness(light[0]) > 200 > 60 > brightness(dark[0])
    assert brightness(light[2]) < 60 < 200 < brightness(dark[2])


def brightness(colour: str) -> float:
    return sum(map(float, colour.removeprefix("rgb(").removesuffix(")").split(","))) / 3


def test_a_name_in_the_legend_hides_its_curves(browser: Browser, run: Path) -> None:
    with opened(browser, run / "report.html") as page:
        chart = page.locator("figure.chart").first
        assert chart.locator(".scatterlayer .trace").count() == 3
        chart.get_by_role("button", name="Validation set").click()
        assert chart.locator(".scatterlayer .trace").count() == 2
        assert chart.get_by_role("button", name="Validation set").get_attribute("aria-pressed") == "false"


def test_runs_are_compared_on_one_page(browser: Browser, run: Path, other_run: Path, tmp_path: Path) -> None:
    page_file = write_report([run, other_run], tmp_path / "both.html")
    with opened(browser, page_file) as page:
        assert headings(page) == ["Scores", "Options", "Curves", "Time", "Classes"]
        assert_drawn(page, 5)
        options = page.locator("#options table tbody tr").all_inner_texts()
        differing = {line.split()[0]: line.split()[1:] for line in options}
        assert differing["learning_rate"] == ["0.05", "0.02"]
        assert "batch_size" not in differing
        assert page.locator("#scores tbody tr").first.locator("strong").count() >= 1
        assert page.locator(".key li").all_inner_texts()[1].startswith("B")


def test_no_text_of_a_run_becomes_markup(browser: Browser, copied: Path) -> None:
    found = json.loads((copied / "predictions.json").read_text(encoding="utf-8"))
    found["classes"][0] = HOSTILE
    (copied / "predictions.json").write_text(json.dumps(found), encoding="utf-8")
    state = json.loads((copied / "state.json").read_text(encoding="utf-8"))
    state["plan"]["title"], state["state"], state["reason"] = HOSTILE, "failed", HOSTILE
    (copied / "state.json").write_text(json.dumps(state), encoding="utf-8")
    with (copied / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": 1.0, "axis": "iteration", "step": 10, f"val/{HOSTILE}": 1.0}) + "\n")
    with (copied / "config.yaml").open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(HOSTILE)}: {json.dumps(HOSTILE)}\n")
    page_file = write_report([copied], copied / "report.html")
    with opened(browser, page_file) as page:
        assert page.title() == HOSTILE
        assert page.locator("h1").inner_text() == HOSTILE
        assert HOSTILE in page.locator("table.confusion thead th").first.inner_text()
        assert HOSTILE in page.locator("#setup").inner_text()
        assert page.locator("b", has_text="cat").filter(has_not_text="<").count() == 0


def test_many_classes_and_many_steps_are_drawn_too(browser: Browser, copied: Path) -> None:
    count = 30
    found = json.loads((copied / "predictions.json").read_text(encoding="utf-8"))
    found["classes"] = [f"class <{number}>" for number in range(count)]
    found["confusion"] = [[4 if i == j else (i * j) % 3 for j in range(count)] for i in range(count)]
    (copied / "predictions.json").write_text(json.dumps(found), encoding="utf-8")
    with (copied / "metrics.jsonl").open("a", encoding="utf-8") as file:
        for step in range(11, 5000):
            value = "NaN" if step == 1234 else 1000.0 if step == 1235 else 1 / step
            row = {"time": 1.0, "axis": "iteration", "step": step, "batch/loss": value, "val/not a number": "NaN"}
            file.write(json.dumps(row) + "\n")
    page_file = write_report([copied], copied / "report.html")
    with opened(browser, page_file) as page:
        assert_drawn(page, 6)
        loss = page.evaluate(
            "document.querySelector('.plot').data.map((trace) => [trace.x.length, Math.max(...trace.y)])"
        )
        assert max(points for points, _ in loss) <= 1300
        assert max(greatest for _, greatest in loss) == 1000  # thinned, and the outlier is there
        assert "class <3>" in page.locator(".heatmaplayer").locator("xpath=ancestor::figure").inner_text()


def test_names_of_any_length_and_script_leave_the_numbers_where_they_are(browser: Browser, copied: Path) -> None:
    found = json.loads((copied / "predictions.json").read_text(encoding="utf-8"))
    found["classes"] = [f"class_{number}_" + 60 * "x" for number in range(9)] + ["\N{HEBREW LETTER ALEF}"]
    found["most_wrong"] = [found["most_wrong"][0] | {"label": 9, "predicted": 9}]
    (copied / "predictions.json").write_text(json.dumps(found), encoding="utf-8")
    for width in (1280, 390):
        page_file = write_report([copied], copied / "report.html")
        with opened(browser, page_file, viewport={"width": width, "height": 900}) as page:
            cut = page.evaluate(
                "[...document.querySelectorAll('#classes table.numbers')].filter((e) => e.scrollWidth > "
                "e.parentElement.clientWidth).length"
            )
            assert cut == 0
            # By places, as they are seen: the name, the number, the sign.
            order = page.evaluate("""() => {
                const [name, rest] = document.querySelector(".wrong figcaption span").childNodes;
                const range = document.createRange();
                range.selectNodeContents(rest);
                return [name.getBoundingClientRect().right, range.getBoundingClientRect().left];
            }""")
            assert order[0] <= order[1] + 1


def test_classes_named_as_numbers_dates_or_colours_keep_their_names_and_order(browser: Browser, copied: Path) -> None:
    found = json.loads((copied / "predictions.json").read_text(encoding="utf-8"))
    names = ["9", "10", "2024-01-01", "$ink", "1", *(f"n{number}" for number in range(20))]
    count = len(names)
    found |= {"classes": names, "confusion": [[int(i == j) for i in range(count)] for j in range(count)]}
    found["most_wrong"] = []
    (copied / "predictions.json").write_text(json.dumps(found), encoding="utf-8")
    with opened(browser, write_report([copied], copied / "report.html")) as page:
        axes = page.evaluate("""() => {
            const plot = document.querySelector("#classes .plot");
            return ["xaxis", "yaxis"].map((axis) => plot._fullLayout[axis]._categories);
        }""")
        assert axes == [names, names]


def test_the_first_record_of_a_run_is_seen(browser: Browser, copied: Path) -> None:
    first = (copied / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0]
    (copied / "metrics.jsonl").write_text(first + "\n", encoding="utf-8")
    with opened(browser, write_report([copied], copied / "report.html")) as page:
        curves = page.locator("#curves figure.chart")
        assert curves.count() == 3
        assert all(curves.nth(place).locator(".scatterlayer .point").count() == 1 for place in range(3))


def test_a_scale_of_many_decades_has_labels_that_do_not_meet(browser: Browser, copied: Path) -> None:
    rows = [{"time": 1.0, "axis": "iteration", "step": i, "val/loss": 10.0 ** (i // 2 - 5)} for i in range(1, 60)]
    (copied / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with opened(browser, write_report([copied], copied / "report.html")) as page:
        places = page.evaluate(
            "[...document.querySelector('#curves .plot').querySelectorAll('.ytick text')]"
            ".map((e) => e.getBoundingClientRect()).map((box) => [box.top, box.bottom]).sort((a, b) => a[0] - b[0])"
        )
    assert len(places) >= 4
    assert all(above[1] <= below[0] for above, below in itertools.pairwise(places))
