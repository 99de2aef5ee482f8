"""The verbs `report` and `plot`: from their arguments to a file."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from rlx.cli import VERBS, Parser
from rlx.errors import UserError, shown
from rlx.files import write_atomically
from rlx.report.analysis import Analysis, analyse
from rlx.report.curves import AXES
from rlx.report.page import optional, page_of
from rlx.report.pictures import picture_of
from rlx.report.tables import Table, columns_of
from rlx.report.text import as_json, markdown
from rlx.report.watch import watch
from rlx.reporting import counted, shortest

log = logging.getLogger("rlx")

FORMATS = ("html", "md", "csv", "json", "png")
PICTURES = ("png", "svg")


def report(arguments: list[str]) -> int:
    parser = Parser(prog="python -m rlx report", add_help=False, allow_abbrev=False)
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--out")
    parser.add_argument("--format", choices=FORMATS)
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    flags = parser.parse_intermixed_args(arguments)
    _need_paths(flags, "report")
    kind = flags.format or _ending(flags.out, FORMATS, "html")
    out = Path(flags.out) if flags.out else default_out(flags.paths, "report", kind)
    if flags.watch:
        if kind != "html":
            raise UserError("--watch shows the page in a browser; leave --format out.")
        _need_packages(kind)
        if not 0 <= flags.port < 2**16:
            raise UserError(f"--port must be between 0 and 65535 (--port {flags.port}).")
        watch(flags.paths, flags.port, lambda stamp: _built(flags.paths, stamp))
        _write(out, page_of(analyse(flags.paths)))
        return 0
    if flags.port:
        raise UserError("--port says where --watch serves the page; add --watch, or leave it out.")
    _need_packages(kind)
    analysis = analyse(flags.paths)
    _write(out, render(analysis, kind))
    _tell(analysis, out)
    return 0


def plot(arguments: list[str]) -> int:
    parser = Parser(prog="python -m rlx plot", add_help=False, allow_abbrev=False)
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--out")
    parser.add_argument("--metric")
    parser.add_argument("--over", choices=tuple(AXES))
    parser.add_argument("--line", choices=("iqm", "mean"), default="iqm")
    flags = parser.parse_intermixed_args(arguments)
    _need_paths(flags, "plot")
    kind = _ending(flags.out, PICTURES, "png")
    out = Path(flags.out) if flags.out else default_out(flags.paths, "plot", kind)
    optional("matplotlib", "plot")
    analysis = analyse(flags.paths)
    _write(out, picture_of(analysis, kind, "plot", flags.metric, flags.over, flags.line))
    _tell(analysis, out)
    return 0


def render(analysis: Analysis, kind: str) -> bytes:
    """The bytes of a report."""
    if kind == "html":
        return page_of(analysis)
    if kind == "png":
        return picture_of(analysis, "png", "report")
    if kind == "csv":
        return Table(columns_of(analysis.collection)).to_csv().encode()
    return (markdown(analysis) if kind == "md" else as_json(analysis)).encode()


def default_out(paths: list[str], name: str, kind: str) -> Path:
    """Beside what it is about where that is one folder, else in the working folder."""
    return (Path(paths[0]) if len(paths) == 1 else Path()) / f"{name}.{kind}"


def _built(paths: list[str], stamp: str) -> tuple[bytes, bool]:
    analysis = analyse(paths)
    return page_of(analysis, stamp), analysis.collection.under_way


def _need_paths(flags: argparse.Namespace, verb: str) -> None:
    if not flags.paths:
        raise UserError(f"A path is missing; type: python -m rlx {VERBS[verb].usage}")


def _need_packages(kind: str) -> None:
    """Before anything is read: what is missing is said at once."""
    if kind == "html":
        optional("plotly", "report")
    if kind == "png":
        optional("matplotlib", "report")


def _ending(out: str | None, kinds: tuple[str, ...], otherwise: str) -> str:
    if out is None:
        return otherwise
    kind = Path(out).suffix.lstrip(".").lower()
    if kind not in kinds:
        raise UserError(f"--out {shown(out)} must end in {', '.join('.' + k for k in kinds[:-1])} or .{kinds[-1]}.")
    return kind


def _write(out: Path, data: bytes) -> None:
    try:
        write_atomically(out, data)
    except OSError as error:
        raise UserError(f"{shown(out)} cannot be written ({error.strerror}); choose another --out FILE.") from error


def _tell(analysis: Analysis, out: Path) -> None:
    log.info("%s: %s", shortest(out), counted(len(analysis.runs), "run"))
