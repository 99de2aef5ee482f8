"""The report as one HTML file that needs nothing else: tables that are there without a script, and charts by plotly.

Text from runs is data. The template escapes all of it, the JSON cannot end its element, and a content security policy
lets nothing run but the one script of this page, wherever a text may have got through, and lets nothing out.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from rlx.errors import UserError
from rlx.report.analysis import Analysis
from rlx.report.payload import payload_of
from rlx.report.text import duration, number, results_of, scale_sentence, within

HERE = Path(__file__).parent


def optional(name: str, verb: str) -> ModuleType:
    """A package of the extra `report`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UserError(f"`{verb}` needs {package}; type: pip install -e '.[report]'") from error


def page_of(analysis: Analysis, watch: str = "") -> bytes:
    """The page; `watch` is the stamp of one that asks its server for a newer one."""
    jinja2 = optional("jinja2", "report")
    library = optional("plotly.offline", "report").get_plotlyjs()
    payload = payload_of(analysis.collection, analysis.grouping, analysis.comparison, analysis.effects)
    script = (HERE / "page.js").read_text()
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    env.filters |= {"number": number, "duration": duration, "moment": moment}
    env.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    text = env.get_template("page.html").render(
        analysis=analysis,
        results=results_of(analysis),
        method_of=method_of(analysis),
        within=within,
        scale_sentence=scale_sentence,
        payload={**payload, "watch": watch},
        policy=policy(script, bool(payload["searches"]), bool(watch)),
        style=jinja2.utils.markupsafe.Markup((HERE / "page.css").read_text()),
        script=jinja2.utils.markupsafe.Markup(script),
        library=packed(library),
        made=datetime.now().astimezone(),
    )
    return str(text).encode()


def method_of(analysis: Analysis) -> dict[int, str]:
    """The label of the method of each run."""
    grouping = analysis.grouping
    return {i: grouping.methods[group.method].label for group in grouping.groups for i in group.runs}


def policy(script: str, search: bool, watch: bool) -> str:
    """Only our own script runs, and nothing is fetched; parallel coordinates compile their shaders."""
    ours = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    compiled = " 'unsafe-eval'" if search else ""
    return (
        f"default-src 'none'; script-src 'sha256-{ours}' blob:{compiled}; style-src 'unsafe-inline'; "
        f"img-src data: blob:; connect-src {chr(39)}{'self' if watch else 'none'}{chr(39)}; base-uri 'none'; "
        "form-action 'none'"
    )


def packed(script: str) -> str:
    """Compressed to two fifths; the browser unpacks it."""
    return base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode()


def moment(text: Any) -> str:
    """A time that a file gives, or what it gives instead."""
    try:
        return datetime.fromisoformat(str(text)).strftime("%-d %b %Y, %H:%M")
    except ValueError:
        return str(text)
