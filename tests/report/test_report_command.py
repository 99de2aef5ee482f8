"""The verbs `report` and `plot`: every format, every mistake in a sentence, and text from runs that stays text."""

from __future__ import annotations

import csv
import html
import http.client
import importlib
import io
import json
import re
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runs import write_run, write_sweep

from rlx.cli import main
from rlx.errors import UserError
from rlx.report.analysis import analyse
from rlx.report.command import render
from rlx.report.data import Curve, Run
from rlx.report.page import page_of
from rlx.report.payload import payload_of, points_of
from rlx.report.watch import stamp_of, watch

for package in ("plotly", "jinja2", "matplotlib"):
    pytest.importorskip(package, reason="it comes with the extra `report`")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command") / "sweep"
    write_sweep(folder, metrics=2)
    return folder


class Page(HTMLParser):
    """The elements of a page, and the text of those with an id."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id") or "" if tag == "script" else ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[self._inside] = self.texts.get(self._inside, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


def returns_of(folder: Path) -> list[float]:
    """Without rlx: the evaluations of a run."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["eval/return_mean"] for row in rows if row["kind"] == "eval"]


def test_every_format_is_written(sweep: Path, tmp_path: Path) -> None:
    for kind in ("html", "md", "csv", "json", "png"):
        assert main(["report", str(sweep), "--format", kind, "--out", str(tmp_path / f"made.{kind}")]) == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "made.csv").read_text())))
    assert len(rows) == 30
    assert rows[0]["final"] == str(returns_of(sweep / rows[0]["run"])[-1])
    assert (tmp_path / "made.png").read_bytes().startswith(b"\x89PNG")
    value = json.loads((tmp_path / "made.json").read_text())
    finals = [returns_of(sweep / name)[-1] for name in value["runs"]["run"][:5]]
    (result,) = [r for r in value["results"] if r["method"] == "sac · identity"]
    assert result["mean"]["value"] == pytest.approx(np.mean(finals))
    text = (tmp_path / "made.md").read_text()
    assert "| td3 · identity |" in text
    assert "Training diverged: a weight is nan." in text
    assert "What cannot be concluded" in text


def test_the_default_place_is_the_folder_it_is_about(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(sweep), "--format", "md"]) == 0
    assert (sweep / "report.md").is_file()
    assert "report.md: 30 runs" in capsys.readouterr().out
    (sweep / "report.md").unlink()


def test_plots_for_a_paper(sweep: Path, tmp_path: Path) -> None:
    assert main(["plot", str(sweep), "--out", str(tmp_path / "a.svg"), "--line", "mean", "--over", "wall_time"]) == 0
    drawn = (tmp_path / "a.svg").read_text()
    assert "wall time (s)" in drawn
    assert "sac · identity" in drawn
    assert main(["plot", str(sweep), "--out", str(tmp_path / "b.png"), "--metric", "loss/0"]) == 0
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report"], "A path is missing"),
        (["report", "nowhere"], "not a folder"),
        (["report", ".", "--format", "pdf"], "pdf"),
        (["report", "SWEEP", "--out", "page.pdf"], "must end in"),
        (["report", "SWEEP", "--out", "no/such/page.html"], "cannot be written"),
        (["report", "SWEEP", "--port", "8000"], "add --watch"),
        (["report", "SWEEP", "--watch", "--format", "md"], "leave --format out"),
        (["report", "SWEEP", "--watch", "--port", "99999"], "65535"),
        (["plot", "SWEEP", "--out", "x.gif"], "must end in"),
        (["plot", "SWEEP", "--metric", "eval/return_meen"], "did you mean eval/return_mean?"),
        (["plot", "SWEEP", "--over", "days"], "days"),
    ],
)
def test_mistakes_cost_a_sentence(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main([str(sweep) if word == "SWEEP" else word for word in arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize(("verb", "package"), [("report", "plotly"), ("plot", "matplotlib")])
def test_a_missing_package_is_named(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str, package: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    whole = importlib.import_module

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return whole(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    assert main([verb, str(sweep)]) == 2
    assert f"`{verb}` needs {package}; type: pip install -e '.[report]'" in capsys.readouterr().err


# -- text from runs ----------------------------------------------------------------------------------------------------

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with markup in a name, a reason, a config, a log, a metric, a command and a choice."""
    folder = tmp_path_factory.mktemp("evil") / "sweep"
    sweep = write_sweep(folder, algos=("sac",), rewards=(EVIL, "clip_1"), seeds=2, points=3, failed=())
    sweep.command = EVIL
    sweep.jobs[0].state, sweep.jobs[0].reason = "failed", EVIL
    (folder / sweep.jobs[0].folder / "log.txt").write_text(EVIL)
    sweep.save()
    named = folder.parent / "<script>alert(3)<"
    rows = [{"kind": "train", "env_steps": 1, "updates": 1, "wall_time": 1, EVIL: 1.0}]
    write_run(named, [1.0], [f"+x={EVIL}"], algo=EVIL, env=EVIL, config={"note": EVIL}, rows=rows)
    return folder.parent


def test_markup_in_runs_stays_text(evil: Path) -> None:
    text = render(analyse([evil]), "html").decode()
    page = Page(text)
    assert sum(tag == "script" for tag, _ in page.tags) == 3  # data, library, ours
    assert not any(tag == "img" or any(name.startswith("on") for name in attrs) for tag, attrs in page.tags)
    assert "alert(1)" in text
    payload = json.loads(page.texts["data"])
    assert EVIL in payload["curves"]
    assert any(EVIL in run["reason"] for run in payload["runs"])
    assert "<script>alert" not in text


def test_markup_in_runs_stays_text_in_markdown(evil: Path) -> None:
    text = render(analyse([evil]), "md").decode()
    assert not re.search(r"(?<!\\)<(script|img)", "\n".join(x for x in text.splitlines() if not x.startswith("    ")))


def test_the_page_is_closed_to_the_world(sweep: Path) -> None:
    page = Page(render(analyse([sweep]), "html").decode())
    (policy,) = [a["content"] or "" for t, a in page.tags if t == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'none'" in policy
    assert "unsafe-eval" not in policy
    elsewhere = [a for _, a in page.tags for name in ("src", "href") if (a.get(name) or "").startswith(("http", "//"))]
    assert elsewhere == []


# -- figures, by an independent computation ----------------------------------------------------------------------------


def test_figures_in_the_page_are_those_of_the_files(sweep: Path) -> None:
    """From metrics.jsonl to the page without a function of rlx.report."""
    text = render(analyse([sweep]), "html").decode()
    payload = json.loads(Page(text).texts["data"])
    curves = payload["curves"]["eval/return_mean"]
    manifest = json.loads((sweep / "sweep.json").read_text())
    for group, bands in zip(payload["groups"], curves["groups"], strict=True):
        choices = payload["methods"][group["method"]]["choices"]
        jobs = [job for job in manifest["jobs"] if choices.items() <= job["choices"].items()]
        runs = [returns_of(sweep / job["folder"]) for job in jobs]
        x, mean, low, high, count = (payload["arrays"][i] for i in bands["env_steps"]["mean"])
        longest = max(len(run) for run in runs)
        expected = [np.mean([run[i] for run in runs if len(run) > i]) for i in range(longest)]
        assert x == [100 * (i + 1) for i in range(longest)]
        assert mean == pytest.approx(expected, rel=2e-5)
        assert count == [sum(len(run) > i for run in runs) for i in range(longest)]
        spread = [np.std([run[i] for run in runs if len(run) > i]) for i in range(longest)]
        wide = [(b - a) / (2 * 1.96 * s / np.sqrt(n)) for a, b, s, n in zip(low, high, spread, count, strict=True)]
        assert np.allclose(wide, 1, atol=0.25)  # about the width of a normal interval
        label = html.escape(payload["methods"][group["method"]]["label"])
        finals = [run[-1] for run, job in zip(runs, jobs, strict=True) if job["state"] == "done"]
        row = re.search(rf"<tr><td>{re.escape(label)}</td>(.*?)</tr>", text, re.DOTALL)
        assert row is not None
        shown = re.findall(r'data-value="([^"]+)"', row[1])
        assert float(shown[2]) == pytest.approx(np.mean(finals))
    for i, run in enumerate(payload["runs"]):
        x, y = (payload["arrays"][k] for k in curves["runs"][i]["env_steps"])
        assert y == pytest.approx(returns_of(sweep / run["name"]), rel=2e-5)


def test_several_environments_and_offline_runs(tmp_path: Path) -> None:
    for env in ("Hopper-v5", "Ant-v5"):
        for seed in range(2):
            folder = write_run(tmp_path / f"{env}{seed}", [1.0, 2.0], ["algo=iql", f"env={env}"], env=env, seed=seed)
            rows = [json.loads(line) | {"env_steps": 0} for line in (folder / "metrics.jsonl").read_text().splitlines()]
            (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    analysis = analyse([tmp_path])
    payload = payload_of(analysis.collection, analysis.grouping, analysis.comparison, analysis.effects)
    assert payload["envs"] == ["Ant-v5", "Hopper-v5"]
    assert (payload["keys"], len(payload["methods"])) == ([], 1)
    assert list(payload["axes"]) == ["updates", "wall_time"]
    x, y = (payload["arrays"][k] for k in payload["curves"]["eval/return_mean"]["runs"][0]["env_steps"])
    assert (x, y) == ([50, 100], [1, 2])


def test_a_run_without_a_word_is_still_shown(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("{")
    for kind in ("html", "md", "csv", "json"):
        assert render(analyse([tmp_path / "run"]), kind)
    with pytest.raises(UserError, match="no metric yet"):
        render(analyse([tmp_path / "run"]), "png")


def test_curves_of_many_runs_stay_within_a_budget() -> None:
    """What is thinned or left out is said; `benchmarks/report_page.py` makes and opens a page of 500 runs."""
    curve = Curve(*np.arange(4 * 300, dtype=float).reshape(4, 300))
    names = ["eval/return_mean", "eval/length_mean", *(f"loss/{i}" for i in range(40))]
    runs = [Run(Path(f"{i}"), f"{i}", "done", curves=dict.fromkeys(names, curve)) for i in range(500)]
    points, dropped = points_of(runs, 100)
    assert points["eval/return_mean"] == 200
    assert points["eval/length_mean"] == 25
    assert len(dropped) == 42 - len(points) > 0
    assert points_of(runs[:20], 4) == (dict.fromkeys(points | dict.fromkeys(dropped), 200), [])


def test_a_page_with_thinned_curves_says_so(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", algos=("sac",), rewards=("identity",), seeds=2, points=450, failed=())
    payload = json.loads(Page(page_of(analyse([tmp_path / "sweep"])).decode()).texts["data"])
    assert payload["thinned"]
    x, _ = (payload["arrays"][k] for k in payload["curves"]["eval/return_mean"]["runs"][0]["env_steps"])
    assert (len(x), x[0], x[-1]) == (200, 100, 45_000)


# -- watch -------------------------------------------------------------------------------------------------------------


def ask(port: int, path: str, host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_watching_serves_the_newest_page_to_this_machine_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = write_run(tmp_path / "run", [1.0], ended=False)
    stop, built = threading.Event(), []
    changed = threading.Event()

    def build(stamp: str) -> tuple[bytes, bool]:
        built.append(stamp)
        if len(built) > 1:
            changed.set()
        return f"page {len(built)}".encode(), True

    with caplog.at_level("INFO", "rlx"):
        thread = threading.Thread(target=watch, args=([tmp_path], 0, build, stop, 0.05))
        thread.start()
        try:
            while not (said := re.search(r"http://127\.0\.0\.1:(\d+)/", caplog.text)):
                stop.wait(0.02)
            port = int(said[1])
            assert ask(port, "/") == (200, b"page 1")
            assert ask(port, "/stamp") == (200, built[0].encode())
            assert ask(port, "/../../etc/passwd")[0] == 404
            assert ask(port, "/", "evil.example")[0] == 403
            with (run / "metrics.jsonl").open("a") as file:
                file.write("{}\n")
            assert changed.wait(60)
            while ask(port, "/stamp")[1].decode() != built[-1]:
                stop.wait(0.02)
            assert ask(port, "/")[1].decode() == f"page {len(built)}"
        finally:
            stop.set()
            thread.join()


def test_the_stamp_changes_with_the_files_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [1.0])
    before = stamp_of([tmp_path])
    (run / "report.html").write_text("")
    assert stamp_of([tmp_path]) == before
    with (run / "metrics.jsonl").open("a") as file:
        file.write("{}\n")
    assert stamp_of([tmp_path]) != before


def test_a_watched_page_asks_its_own_server(sweep: Path) -> None:
    page = Page(page_of(analyse([sweep]), "abc").decode())
    (policy,) = [a["content"] or "" for t, a in page.tags if t == "meta" and "http-equiv" in a]
    assert "connect-src 'self'" in policy
    assert json.loads(page.texts["data"])["watch"] == "abc"
