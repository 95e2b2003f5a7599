"""The report in a browser while runs go on: written anew when runs change, with live curves.

A server of the standard library on this machine alone. Its pages are those that ``report`` writes,
with a line of script that loads them anew once they were rewritten; ``/live`` lists the runs, and
``/live/ADDRESS`` draws what a run has logged so far.
"""

import functools
import json
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from markupsafe import Markup

from shared.command.places import Places
from shared.errors import UserError
from shared.experiment.runs import OWN
from shared.report import curves, drawings
from shared.report.site import forms

LOOK = 5.0  # seconds between two looks at the runs
RECENT = 120.0  # seconds since its log grew in which a run without a result is taken to go on
SHOWN = 300  # runs in the list, the latest first
RELOAD = """<script>
setInterval(async () => {
  const now = await (await fetch("/stamp")).text().catch(() => "");
  if (now && now !== "%s") location.reload();
}, 3000);
</script>"""


class Site:
    """The written report and the runs behind it.

    Args:
        places: where both lie.
        write: writes the report.
    """

    def __init__(self, places: Places, write: Callable[[], object]) -> None:
        self.places = places
        self.write = write
        self.stamp = ""
        self._seen: dict[str, int] = {}

    def refresh(self) -> bool:
        """Write the report if results of runs came, went or changed; returns whether it did."""
        seen = {str(file): file.stat().st_mtime_ns for file in self._results()}
        if self.stamp and seen == self._seen:
            return False
        self.write()
        self._seen, self.stamp = seen, str(time.time_ns())
        return True

    def watch(self) -> None:
        """Refresh for ever; what goes wrong is said, and tried again at the next look."""
        while True:
            try:
                self.refresh()
            except (UserError, OSError) as error:
                print(f"the report was not written anew: {error}", flush=True)
            time.sleep(LOOK)

    def page(self, path: str) -> str | None:
        """The page of a run, the list of runs, or a page of the report; None if there is none."""
        if path == "/live":
            return self._reloading(self._list())
        if path.startswith("/live/"):
            return self._live(path.removeprefix("/live/"))
        results = self.places.results.resolve()
        file = (results / (path.lstrip("/") or "index.html")).resolve()
        if file.suffix != ".html" or not file.is_relative_to(results) or not file.is_file():
            return None
        return self._reloading(file.read_text(encoding="utf-8"))

    def _results(self) -> Iterator[Path]:
        for file in self.places.runs.rglob("result.json"):
            if file.relative_to(self.places.runs).parts[0] != OWN:
                yield file

    def _reloading(self, text: str) -> str:
        link = '<p><a href="/live">The runs, live</a></p>\n'
        return text.replace("</body>", f"{link}{RELOAD % self.stamp}\n</body>")

    def _list(self) -> str:
        logs = [(log.stat().st_mtime, log) for log in self.places.runs.rglob(curves.LOG)]
        now = time.time()
        runs = []
        for at, log in sorted(logs, reverse=True)[:SHOWN]:
            address = log.parent.relative_to(self.places.runs).as_posix()
            runs.append((address, quote(address), _state(log.parent, now - at)))
        form = forms().get_template("live.html.j2")
        return form.render(up="/", title="Runs", runs=runs, address="", curve="", state="", every=0)

    def _live(self, address: str) -> str | None:
        runs = self.places.runs.resolve()
        folder = (runs / address).resolve()
        log = folder / curves.LOG
        if not folder.is_relative_to(runs) or not log.is_file():
            return None
        state = _state(folder, time.time() - log.stat().st_mtime)
        found = {name: some for name, some in curves.logged(log).items() if len(some[0]) > 1}
        told = f"What {address} has logged, by step."
        return (
            forms()
            .get_template("live.html.j2")
            .render(
                up="/",
                title=address,
                runs=[],
                address=address,
                curve=Markup(drawings.curves(found, "step", "", told)),
                state=state,
                every=0 if state.startswith("done") else round(LOOK),
            )
        )


class _Handler(SimpleHTTPRequestHandler):
    """Pages of a :class:`Site`; other files as they lie below the results."""

    def __init__(self, *arguments: object, site: Site) -> None:
        self.site = site
        super().__init__(*arguments, directory=str(site.places.results))  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer."""
        path = unquote(urlsplit(self.path).path)
        if path == "/stamp":
            self._answer(self.site.stamp, "text/plain")
        elif (text := self.site.page(path)) is not None:
            self._answer(text, "text/html")
        elif path.startswith("/live/"):
            self.send_error(HTTPStatus.NOT_FOUND, "no run has logged anything there")
        else:
            super().do_GET()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: the terminal belongs to the runs."""

    def _answer(self, text: str, kind: str) -> None:
        content = text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)


def server(site: Site, port: int) -> ThreadingHTTPServer:
    """A server of a site on this machine alone.

    Args:
        site: what it shows.
        port: where; 0 takes a free one.

    Raises:
        UserError: the port is taken.
    """
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), functools.partial(_Handler, site=site))
    except OSError as error:
        raise UserError(
            f"port {port} cannot be served ({error.strerror}); choose another with --port"
        ) from None


def serve(places: Places, write: Callable[[], object], port: int) -> int:
    """Serve the report until it is interrupted; returns the exit code."""
    site = Site(places, write)
    with server(site, port) as found:
        site.refresh()
        print(f"http://127.0.0.1:{found.server_port}/ (Ctrl-C ends it)", flush=True)
        threading.Thread(target=site.watch, daemon=True).start()
        try:
            found.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def _state(folder: Path, quiet: float) -> str:
    """What became of a run, in few words."""
    if (folder / "result.json").exists():
        return "done"
    if (folder / "failure.json").exists():
        try:
            why = json.loads((folder / "failure.json").read_text(encoding="utf-8"))["why"]
        except (OSError, ValueError, KeyError, TypeError):
            why = "no reason can be read"
        return f"failed: {why}"
    return "running" if quiet < RECENT else f"nothing was logged for {quiet / 60:.0f} minutes"
