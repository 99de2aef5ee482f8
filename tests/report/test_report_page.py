"""The page in headless Chromium, without a network: filter, sort, toggle, what is drawn, and no word on the console."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runs import write_sweep

from rlx.report.analysis import analyse
from rlx.report.page import page_of

for package in ("plotly", "jinja2", "selenium"):
    pytest.importorskip(package, reason="it comes with the dev extra")
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("chromium and chromedriver are not here (Debian: chromium, chromium-driver)", allow_module_level=True)

DRAWN = """return [...document.querySelectorAll(arguments[0])].every(c => c.dataset.drawn)
           && document.querySelectorAll(arguments[0]).length > 0"""


class Browser:
    def __init__(self) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                     "--enable-unsafe-swiftshader", "--window-size=1300,1000"):  # fmt: skip
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        self.driver.set_script_timeout(60)
        self.driver.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)

    def __call__(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def open(self, path: Path) -> None:
        self.driver.get_log("browser")
        self.driver.get(path.as_uri())

    def until(self, script: str, *arguments: Any) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 120, 0.05).until(lambda _: self(script, *arguments))

    def show(self, selector: str) -> None:
        """Scroll there, and wait for what is drawn then."""
        self("document.documentElement.style.scrollBehavior = 'auto'")
        self("for (const c of document.querySelectorAll(arguments[0])) c.scrollIntoView({block: 'center'})", selector)
        self.until(DRAWN, selector)

    def click(self, selector: str, n: int = 0) -> None:
        self("document.querySelectorAll(arguments[0])[arguments[1]].click()", selector, n)

    def choose(self, name: str, value: str) -> None:
        self("const s = document.getElementById(arguments[0]); s.value = arguments[1];"
             "s.dispatchEvent(new Event('change'))", name, value)  # fmt: skip

    def messages(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.driver.quit()


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "sweep"
    write_sweep(folder, metrics=1)
    (folder / "report.html").write_bytes(page_of(analyse([folder])))
    return folder


@pytest.fixture
def page(browser: Browser, sweep: Path) -> Iterator[Browser]:
    browser.open(sweep / "report.html")
    yield browser
    assert browser.messages() == []


ROWS = "return [...document.querySelectorAll('#run-table tbody tr:not(.detail)')].filter(r => !r.hidden)"


def test_runs_are_filtered(page: Browser) -> None:
    def filtered(text: str) -> list[str]:
        page(
            "const f = document.getElementById('filter'); f.value = arguments[0]; f.dispatchEvent(new Event('input'))",
            text,
        )
        return page(f"{ROWS}.map(r => r.cells[0].textContent)")

    assert len(filtered("")) == 30
    assert len(filtered("td3 clip_1")) == 5
    assert filtered("a weight is NAN") == ["007_algo=sac,reward=clip_1,seed=2"]  # by its reason
    assert page("return document.getElementById('shown').textContent") == "1 of 30 shown"
    assert filtered("nothing like it") == []
    filtered("")
    page.click("#state-filter button[data-state=done]")
    assert page(f"{ROWS}.length") == 1


def test_runs_are_sorted_by_value(page: Browser, sweep: Path) -> None:
    finals = f"{ROWS}.map(r => r.cells[4].dataset.value === undefined ? null : Number(r.cells[4].dataset.value))"
    page.click("#run-table th", 4)
    down = page(finals)
    assert down == sorted(down, reverse=True)
    assert page("return document.querySelectorAll('#run-table th')[4].getAttribute('aria-sort')") == "descending"
    page.click("#run-table th", 4)
    assert page(finals) == sorted(down)
    summaries = [json.loads(path.read_text()) for path in sweep.glob("*/summary.json")]
    assert down[0] == max(summary["eval_return_mean"] for summary in summaries)


def test_a_run_opens_with_its_command_and_log(page: Browser) -> None:
    page.click("#run-table button.link", 7)
    text = page("return document.querySelector('#run-table .detail').textContent")
    assert "python -m rlx algo=sac reward=clip_1 seed=2" in text
    assert "Training diverged" in text
    page.click("#run-table button.link", 7)
    assert page("return document.querySelectorAll('#run-table .detail').length") == 0


def test_the_config_of_two_runs_differs_where_they_do(page: Browser) -> None:
    page.choose("left", "0")
    page.choose("right", "29")
    rows = page(
        "return [...document.querySelectorAll('#diff tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    assert rows == [["algo.name", "sac", "ddpg"], ["reward.name", "identity", "clip_1"], ["seed", "0", "4"]]
    page.choose("right", "0")
    assert page("return document.querySelector('#diff tbody').textContent") == "Their configs are the same."


def test_groups_are_switched_and_single_seeds_are_shown(page: Browser) -> None:
    names = "return document.querySelector('#charts .chart').data.filter(t => t.name).map(t => t.name)"
    page.show("#charts .chart")
    assert len(page(names)) == 6
    page.click("#methods button", 0)
    page.until(f"{names}.length === 5".replace("return ", "return (", 1).replace(".length", ").length"))
    assert "sac · identity" not in page(names)
    page.click("#methods button", 0)
    page("document.getElementById('seeds').click()")
    page.show("#charts .chart")
    assert len(page(names)) == 36
    page.choose("facet", "reward")
    page.show("#charts .chart")
    titles = page("return [...document.querySelectorAll('#charts figcaption')].map(c => c.textContent)")
    assert titles == ["Pendulum-v1 · identity", "Pendulum-v1 · clip_1"]


def test_what_is_drawn_is_what_the_files_say(page: Browser, sweep: Path) -> None:
    page.choose("statistic", "mean")
    page.show("#charts .chart")
    (trace,) = page("return document.querySelector('#charts .chart').data.filter(t => t.name === 'td3 · identity')"
                    ".map(t => ({x: t.x, y: t.y}))")  # fmt: skip
    files = sorted(sweep.glob("*_algo=td3,reward=identity,*/metrics.jsonl"))
    rows = [[json.loads(line) for line in path.read_text().splitlines()] for path in files]
    returns = np.array([[row["eval/return_mean"] for row in run if row["kind"] == "eval"] for run in rows])
    assert len(returns) == 5
    assert trace["x"] == [100 * (i + 1) for i in range(12)]
    assert trace["y"] == pytest.approx(returns.mean(0), rel=2e-5)
    page.choose("axis", "wall_time")
    page.show("#charts .chart")
    seconds = page("return document.querySelector('#charts .chart').data.filter(t => t.name === 'td3 · identity')[0].x")
    assert (min(seconds), max(seconds)) == (1, pytest.approx(12 * 1.4))
    page.choose("metric", "loss/0")
    page.show("#charts .chart")
    assert page("return document.querySelector('#charts .chart').layout.yaxis.title.text") == "loss/0"


def test_every_chart_is_drawn(page: Browser) -> None:
    for name in ("aggregate", "profile", "efficiency", "improvement"):
        page.show(f"#{name}-chart")
        assert page(f"return document.querySelectorAll('#{name}-chart .main-svg').length") > 0
    page.show("#effects .chart")
    assert page("return document.querySelectorAll('#effects .main-svg').length") >= 2


def test_a_narrow_screen_scrolls_down_only(page: Browser) -> None:
    page.driver.set_window_size(500, 900)
    try:
        page.show("#charts .chart")
        page.show("#aggregate-chart")
        assert page("return document.documentElement.scrollWidth <= window.innerWidth")
    finally:
        page.driver.set_window_size(1300, 1000)


def test_markup_from_runs_is_shown_as_it_is(browser: Browser, tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)><b>bold</b>"
    write_sweep(tmp_path / "sweep", algos=("sac", evil), rewards=("identity",), seeds=2, points=3, failed=())
    (tmp_path / "sweep" / "report.html").write_bytes(page_of(analyse([tmp_path / "sweep"])))
    browser.open(tmp_path / "sweep" / "report.html")
    browser.show("#aggregate-chart")
    browser.show("#effects .chart")
    assert browser("return document.querySelectorAll('img, svg b, td b b').length") == 0
    ticks = browser("return [...document.querySelectorAll('#effects .ytick text')].map(t => t.textContent)")
    assert any("<b>" in tick for tick in ticks)
    assert browser.messages() == []


def test_a_search_has_parallel_coordinates_and_importance(browser: Browser, tmp_path: Path) -> None:
    search = {"direction": "maximize", "importance": {"algo": 0.8, "reward": 0.2}}
    write_sweep(tmp_path / "sweep", seeds=1, points=3, failed=(), search=search)
    (tmp_path / "sweep" / "report.html").write_bytes(page_of(analyse([tmp_path / "sweep"])))
    browser.open(tmp_path / "sweep" / "report.html")
    browser.show("#searches .chart")
    labels = browser("return document.querySelector('#searches .chart').data[0].dimensions.map(d => d.label)")
    assert labels == ["algo", "reward", "final return"]
    assert browser("return document.querySelectorAll('#searches .chart')[1].data[0].x") == [0.8, 0.2]
    severe = [text for text in browser.messages() if "WebGL" not in text and "GPU" not in text]
    assert severe == []
