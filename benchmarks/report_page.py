"""How large the page of a sweep is, how long it takes to make and to open: 500 runs with 200 evaluations by default.

python benchmarks/report_page.py [--runs 500] [--points 200]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / "tests" / "report")]

from fake_runs import write_sweep  # noqa: E402

from rlx.report.analysis import analyse  # noqa: E402
from rlx.report.page import page_of  # noqa: E402

DRAWN = "return document.querySelector('#charts .chart').dataset.drawn === 'true'"


def opened(path: Path) -> tuple[float, float, float]:
    """Seconds until Chromium has loaded the page and until its first chart is drawn, and of its own work for it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1300,4000"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        driver.get("about:blank")
        start = time.monotonic()
        driver.get(path.as_uri())
        loaded = time.monotonic() - start
        while not driver.execute_script(DRAWN):
            time.sleep(0.02)
        drawn = time.monotonic() - start
        metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return loaded, drawn, next(m["value"] for m in metrics if m["name"] == "TaskDuration")
    finally:
        driver.quit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--points", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sweep = Path(folder) / "sweep"
        algos = [f"algo{i}" for i in range(args.runs // 50)]
        rewards = [f"reward{i}" for i in range(10)]
        write_sweep(sweep, algos, rewards, seeds=5, points=args.points, metrics=10)
        start = time.monotonic()
        (sweep / "report.html").write_bytes(page_of(analyse([sweep])))
        made = time.monotonic() - start
        size = (sweep / "report.html").stat().st_size
        print(f"{len(algos) * 50} runs x {args.points} points: {size / 1e6:.1f} MB, made in {made:.1f} s")
        if shutil.which("chromium") and shutil.which("chromedriver"):
            loaded, drawn, work = opened(sweep / "report.html")
            print(f"loaded after {loaded:.2f} s, first chart after {drawn:.2f} s, {work:.2f} s of them its own work")


if __name__ == "__main__":
    main()
