"""The page of a sweep under way: rebuilt as its files change, served on the loopback address, reloaded by itself.

The server knows two addresses, the page and its stamp, and answers only to requests that name the loopback address as
their host: a site that points its own name here gets nothing.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rlx.errors import UserError
from rlx.report.data import records

log = logging.getLogger("rlx")

HOST = "127.0.0.1"
PAUSE = 2.0  # seconds between two looks at the files


class Server(ThreadingHTTPServer):
    """Holds the newest page."""

    daemon_threads = True
    page = b""
    stamp = ""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        allowed = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        if self.headers.get("Host") not in allowed:
            self.send_error(403, "This page is for this machine")
        elif self.path == "/":
            self._send(self.server.page, "text/html; charset=utf-8")
        elif self.path == "/stamp":
            self._send(self.server.stamp.encode(), "text/plain; charset=utf-8")
        else:
            self.send_error(404)

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal belongs to the sweep."""


def stamp_of(paths: Sequence[str | Path]) -> str:
    """Changes whenever a record of a run or a sweep does: by their sizes and times."""
    marks = []
    for file in records(paths):
        with suppress(OSError):  # not there yet
            info = file.lstat()
            marks.append((str(file), info.st_size, info.st_mtime_ns))
    return hashlib.sha256(repr(marks).encode()).hexdigest()[:16]


def watch(
    paths: Sequence[str | Path],
    port: int,
    build: Callable[[str], tuple[bytes, bool]],
    stop: threading.Event | None = None,
    pause: float = PAUSE,
) -> None:
    """Serve what `build(stamp)` makes, anew whenever the stamp changes, until interrupted or nothing is under way."""
    try:
        server = Server((HOST, port), Handler)
    except OSError as error:
        raise UserError(
            f"Port {port} cannot be used ({error.strerror}); give another one, or leave --port out."
        ) from error
    stop = stop or threading.Event()
    with server:
        server.stamp = stamp_of(paths)
        server.page, under_way = build(server.stamp)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        log.info("Watching on http://%s:%d/ (Ctrl-C ends it)", HOST, server.server_port)
        try:
            while not stop.wait(pause):
                stamp = stamp_of(paths)
                if stamp != server.stamp:
                    started = time.monotonic()
                    server.page, still = build(stamp)
                    server.stamp = stamp
                    if under_way and not still:
                        log.info("Everything has ended; the page stays until Ctrl-C.")
                    under_way = still
                    stop.wait(min(60.0, 2 * (time.monotonic() - started)))  # a large page is not built all the time
        except KeyboardInterrupt:
            pass
        finally:
            server.shutdown()
