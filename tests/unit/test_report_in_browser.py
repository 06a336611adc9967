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
from tests.kit.results_factory import Truth, write_results

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-default-apps",
]

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser():
    path = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if path is None:
        reason = f"no browser found (looked for {', '.join(BROWSERS)}); on Debian: apt-get install chromium"
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
def proxy():
    asked = []
    handler = type("Noting", (Watched,), {"asked": asked})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], asked
    server.shutdown()
    server.server_close()


def run(browser, folder, port, *what):
    profile = folder / "profile"
    argv = [
        browser,
        *QUIET,
        f"--user-data-dir={profile}",
        f"--proxy-server=127.0.0.1:{port}",
        "--proxy-bypass-list=<-loopback>",
    ]
    page = f"{(folder / 'report.html').as_uri()}#all"
    done = subprocess.run(
        [*argv, *what, page], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.process
@pytest.mark.slow
def test_charts_are_drawn_and_nothing_is_asked_for(browser, proxy, tmp_path):
    port, asked = proxy
    statuses = {("horovod-mpi", launch): "failed" for launch in range(3)}
    truth = Truth(statuses=statuses, log="</pre><script>document.title = 'hacked'</script>")
    write_reports(write_results(tmp_path, truth=truth))
    page = run(
        browser, tmp_path, port, "--virtual-time-budget=10000", "--timeout=60000", "--dump-dom"
    )
    assert 'data-drawn="yes"' in page
    drawn = re.findall(r'data-chart="([\w-]+)"[^>]*>\s*<div class="plot-container', page)
    assert drawn == ["terms", "launches"]
    assert page.count('class="point"') + page.count('class="points"') > 0
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
    "how",
    [
        ["--window-size=1400,900"],
        ["--window-size=500,844", "--blink-settings=preferredColorScheme=0"],
    ],
)
def test_everybody_can_read_it_light_and_dark_and_nothing_is_wider_than_the_screen(
    browser, proxy, tmp_path, how
):
    """axe-core's rules (WCAG AA: contrast, names, keyboard) on the whole page, everything
    unfolded."""
    statuses = {("horovod-mpi", launch): "failed" for launch in range(3)}
    write_reports(write_results(tmp_path, truth=Truth(statuses=statuses, loaded_rounds=range(4))))
    axe = (importlib.resources.files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    page = tmp_path / "report.html"
    page.write_text(
        page.read_text(encoding="utf-8").replace("</body>", AXE % axe), encoding="utf-8"
    )
    shown = run(
        browser,
        tmp_path,
        proxy[0],
        *how,
        "--virtual-time-budget=30000",
        "--timeout=90000",
        "--dump-dom",
    )
    result = json.loads(html.unescape(re.search('<pre id="axe">(.*?)</pre>', shown, re.DOTALL)[1]))
    assert [
        violation for violation in result["violations"] if violation[0] in ("serious", "critical")
    ] == []
    assert result["wide"] <= 0
