"""The report in a browser while runs go on."""

import http.client
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import MISSING, PROGRAM, browser
from test_report import RECORDS, TABLE
from test_site import log_of

from shared.command import reproduce
from shared.command.places import Places
from shared.command.serving import Site, server
from shared.errors import UserError
from shared.report.measuring import measure
from shared.report.page import write_site

ADDRESS = "graph/mmcl/table-4/mmcl/mutag/seed-0"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    log_of(tmp_path / "runs" / ADDRESS / "log.jsonl")
    return Places(tmp_path / "runs", tmp_path / "results", tmp_path)


@pytest.fixture
def site(places: Places) -> Site:
    return Site(places, lambda: write_site(places.results, [measure(TABLE, "paper", RECORDS, {})]))


@pytest.fixture
def port(site: Site) -> Iterator[int]:
    site.refresh()
    with server(site, 0) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found.server_port
        found.shutdown()
        thread.join()


def asked(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_it_serves_the_report_and_the_live_curve_of_every_run(port: int, places: Places) -> None:
    status, first = asked(port, "/")
    assert (status, "What holds of the papers" in first) == (200, True)
    assert '<a href="/live">' in first
    assert asked(port, "/site/site.css")[0] == 200
    assert asked(port, "/claims.json")[1] == (places.results / "claims.json").read_text()
    _, runs = asked(port, "/live")
    assert f'<a href="/live/{ADDRESS}">{ADDRESS}</a>: running' in runs
    _, live = asked(port, f"/live/{ADDRESS}")
    assert 'class="curve c0"' in live
    assert "setTimeout(() => location.reload()" in live
    log = places.runs / ADDRESS / "log.jsonl"
    os.utime(log, (0, 0))
    assert "nothing was logged for" in asked(port, f"/live/{ADDRESS}")[1]
    (log.parent / "failure.json").write_text(json.dumps({"why": "a <reason>"}))
    assert "failed: a &lt;reason&gt;" in asked(port, f"/live/{ADDRESS}")[1]
    (log.parent / "result.json").write_text("{}")
    done = asked(port, f"/live/{ADDRESS}")[1]
    assert "<p>done</p>" in done
    assert "location.reload()" not in done


@pytest.mark.parametrize(
    "path", ["/live/nothing", "/live/../../secret", "/../secret.html", "/%2e%2e/secret.html"]
)
def test_nothing_else_is_served(port: int, places: Places, path: str) -> None:
    (places.results.parent / "secret.html").write_text("a secret")
    (places.results.parent / "secret").mkdir()
    log_of(places.results.parent / "secret/log.jsonl")
    status, text = asked(port, path)
    assert status == 404
    assert "secret</" not in text


def test_it_is_written_anew_when_results_change_and_only_then(site: Site, places: Places) -> None:
    assert site.refresh()
    stamp = site.stamp
    assert not site.refresh()
    own = places.runs / "own/graph/mine/result.json"  # no report takes it
    own.parent.mkdir(parents=True)
    own.touch()
    assert not site.refresh()
    (places.runs / ADDRESS / "result.json").touch()
    assert site.refresh()
    assert site.stamp != stamp
    assert site.stamp in (site.page("/") or "")


def test_a_port_that_is_taken_and_one_without_serve_are_refused(
    port: int, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=f"port {port} cannot be served .*--port"):
        server(site, port)
    assert reproduce.main(["report", "--port", "9000"]) == 2
    assert "--port is of --serve" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason=MISSING)
def test_a_browser_loads_a_page_anew_once_it_was_rewritten(
    port: int, site: Site, places: Places, tmp_path: Path
) -> None:
    with browser(tmp_path / "profile") as window:
        window.open(f"http://127.0.0.1:{port}/")
        assert window.ask("document.title") == "What holds of the papers' claims"
        window.ask("window.before = true")
        (places.runs / ADDRESS / "result.json").touch()
        assert site.refresh()
        waited = "new Promise((done) => setTimeout(() => done(window.before === true), 1000))"
        still = True
        for _ in range(20):
            try:
                still = window.ask(waited)
            except RuntimeError:  # the page went while it was asked
                still = False
            if not still:
                break
        assert not still
        window.open(f"http://127.0.0.1:{port}/live/{ADDRESS}")
        assert window.ask("document.querySelectorAll('svg .curve').length") == 2
    assert window.faults == []
