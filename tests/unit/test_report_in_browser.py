"""The page in a real browser without network: charts drawn, nothing asked for."""

from __future__ import annotations

import html
import http.server
import importlib.resources
import json
import os
import re
import shutil
import subprocess
import threading

import pytest

from reports import write_reports
from tests.kit.results_factory import write_results

QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        reason = "no browser found (chromium, google-chrome); on Debian: apt-get install chromium"
        if "browser" in os.environ.get("RINGSIDE_REQUIRE", ""):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


class Watched(http.server.BaseHTTPRequestHandler):
    """A proxy that notes what is asked for and gives nothing."""

    asked: list[str]

    def do_GET(self):
        self.asked.append(self.path)
        self.send_error(502)

    do_CONNECT = do_POST = do_HEAD = do_GET  # noqa: N815

    def log_message(self, *args):
        pass


@pytest.fixture
def asked():
    """Addresses that a page asks for, which a proxy notes."""
    return []


@pytest.fixture
def shown(browser, tmp_path, asked):
    """What a browser makes of a report in the test's folder, everything unfolded."""
    handler = type("Noting", (Watched,), {"asked": asked})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def dump(*flags):
        argv = [
            browser,
            *QUIET,
            *flags,
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--proxy-server=127.0.0.1:{server.server_address[1]}",
            "--virtual-time-budget=30000",
            "--timeout=90000",
            "--dump-dom",
            f"{(tmp_path / 'report.html').as_uri()}#all",
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    yield dump
    server.shutdown()
    server.server_close()


@pytest.mark.process
@pytest.mark.slow
def test_charts_are_drawn_and_nothing_is_asked_for(shown, asked, tmp_path):
    statuses = {("horovod-mpi", launch): "failed" for launch in range(3)}
    log = "</pre><script>document.title = 'hacked'</script>"
    write_reports(write_results(tmp_path, statuses=statuses, log=log))
    page = shown()
    drawn = re.findall(r'data-chart="([\w-]+)"[^>]*>\s*<div class="plot-container', page)
    assert drawn == ["terms", "launches"]
    assert 'class="point"' in page or 'class="points"' in page
    assert "<title>hacked</title>" not in page
    # the browser's own
    assert [path for path in asked if not re.search("google|gvt1|gstatic", path)] == []


AXE = """
<script>%s</script>
<script>setTimeout(() => axe.run().then((found) => {
  const told = document.createElement("pre");
  told.id = "axe";
  told.textContent = JSON.stringify({
    violations: found.violations.map((one) => [one.impact, one.id, one.nodes.slice(0, 3).map((node) => node.html)]),
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  });
  document.body.append(told);
}), 4000)</script>
</body>"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        "--window-size=1400,900",
        "--window-size=500,844 --blink-settings=preferredColorScheme=0",
    ],
)
def test_everybody_can_read_it_light_and_dark_and_nothing_is_wider_than_the_screen(
    shown, tmp_path, flags
):
    """axe-core's rules (WCAG AA: contrast, names, keyboard) on the whole page."""
    statuses = {("horovod-mpi", launch): "failed" for launch in range(3)}
    write_reports(write_results(tmp_path, statuses=statuses, loaded_rounds=range(4)))
    axe = (importlib.resources.files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    path = tmp_path / "report.html"
    page = path.read_text(encoding="utf-8").replace("</body>", AXE % axe)
    path.write_text(page, encoding="utf-8")
    told = re.search('<pre id="axe">(.*?)</pre>', shown(*flags.split()), re.DOTALL)[1]
    result = json.loads(html.unescape(told))
    assert [rule for rule in result["violations"] if rule[0] in ("serious", "critical")] == []
    assert result["wide"] <= 0
