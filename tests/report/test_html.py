"""The page: whole, escaped, and loading nothing, read by a parser and by a browser."""

import base64
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from helpers.founding_example import founding, source
from helpers.missing import lacking
from helpers.report_examples import HYBRID, record
from kvfw.analysis.sources import Report, make_report
from kvfw.core.contracts.records import TrialRecord
from kvfw.report.canvas import Drawing
from kvfw.report.files import FORMS, report_files
from kvfw.report.heatmap import heat_maps
from kvfw.report.html import html_page
from kvfw.report.scatter import scatter_plots

HOSTILE = '</bdi></td><script>alert(1)</script><img src="http://x.test/a.png" onerror="alert(2)">{{ 7*7 }}\x00\u202e'
NOTHING_INSIDE = {"meta", "img", "br", "wbr"}
ALLOWED = NOTHING_INSIDE | set(
    re.findall(
        "[a-z0-9]+",
        "html head title style body header main section h1 h2 h3 dl dt dd div table caption thead tbody tr th td p "
        "span figure figcaption details summary ul li bdi",
    )
)


def draw(report: Report) -> list[Drawing]:
    return [*scatter_plots(report.results), *heat_maps(report.results, report.records)]


def page_of(*trials: TrialRecord, name: str = "run", model: str = "m") -> str:
    report = make_report([source(list(trials), name, changed={"model": model})], resamples=20)
    return html_page(report, draw(report))


class Reader(HTMLParser):
    """Collects what a page loads, and everything that is not as it should be."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.faults: list[str] = []
        self.texts: list[str] = []
        self.pictures: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ALLOWED:
            self.faults.append(f"element {tag}")
        if tag not in NOTHING_INSIDE:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data", "background", "poster", "xlink:href"):
                if tag == "img" and (value or "").startswith("data:image/svg+xml;base64,"):
                    self.pictures.append(value or "")
                else:
                    self.faults.append(f"{tag} {name}={value}")
            if name.startswith("on"):
                self.faults.append(f"{tag} {name}")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"end of {tag}")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            if "url(" in data or "@import" in data:
                self.faults.append("style that loads")
        else:
            self.texts.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    reader.faults += [f"{tag} not ended" for tag in reader.open]
    return reader


@pytest.fixture(scope="module")
def founding_report() -> Report:
    return make_report([source(problems=("trials.jsonl line 7 skipped: torn",))], resamples=100)


@pytest.fixture(scope="module")
def founding_page(founding_report: Report) -> str:
    return html_page(founding_report, draw(founding_report))


def test_the_page_holds_everything(founding_page: str) -> None:
    reader = read(founding_page)
    assert reader.faults == []
    said = " ".join(" ".join(reader.texts).split())
    for text in (
        "smollm2-135m",
        "question-aware: the question is in the prompt",
        "Some CPU, 2 cores",
        "Recall against full",
        "cannot decide",
        "Recall by depth",
        "trials.jsonl line 7 skipped: torn",
        "timed in the first trial of each length only",
        "context 1024, depth 10, seed 0, answer",
        "prompts_sha256",
    ):
        assert text in said, text
    assert len(reader.pictures) == 3
    for picture in reader.pictures:
        svg = base64.b64decode(picture.partition(",")[2]).decode()
        assert svg.rstrip().endswith("</svg>")
    assert "default-src 'none'" in founding_page


def test_hostile_text_is_shown_and_does_nothing() -> None:
    page = page_of(
        record(response=HOSTILE, metrics={"recall": 0.0}),
        record("full", "ratio=1", metrics={"recall": None}, reasons={"recall": HOSTILE}),
        name=HOSTILE,
        model=HOSTILE,
    )
    reader = read(page)
    assert reader.faults == []
    said = "".join(reader.texts)
    assert "<script>alert(1)</script>" in said
    assert "{{ 7*7 }}\\u0000\\u202e" in said
    assert "\x00" not in page
    assert "\u202e" not in page


@pytest.mark.parametrize(
    "trials",
    [
        [record()],
        [record(metrics={})],
        [record(metrics={"recall": None}, reasons={"recall": "why"})],
        [record("a" * 300 + ":0.5+b:0.5", response=""), record("full", "ratio=1", response=" \n")],
        [record("[0-1]full;[2-]snapkv@adakv(floor=0.3)|refit"), record("full", "ratio=1")],
    ],
    ids=["one", "no metric", "null", "long name", "policies"],
)
def test_edges_make_a_page(trials: list[TrialRecord]) -> None:
    assert read(page_of(*trials)).faults == []


def test_several_runs_are_shown_with_their_settings() -> None:
    both = [source([record("full", "ratio=1"), record(HYBRID)], name) for name in ("first", "second")]
    report = make_report(both, resamples=20)
    reader = read(html_page(report, draw(report)))
    assert reader.faults == []
    said = " ".join(reader.texts)
    assert "full [first]" in said
    assert "[second]" in said


def test_every_form_has_its_files(founding_report: Report) -> None:
    names = [name for name, _ in report_files(founding_report, FORMS)]
    assert names == [
        "report.html",
        "figures/pareto.png",
        "figures/pareto.pdf",
        "figures/retained.png",
        "figures/retained.pdf",
        "figures/heatmap.png",
        "figures/heatmap.pdf",
        "tables.md",
        "tables.csv",
        "comparisons.csv",
        "tables.tex",
    ]
    assert [name for name, _ in report_files(founding_report, ["csv"])] == ["tables.csv", "comparisons.csv"]


FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--enable-logging=stderr",
    "--v=0",
)


def browser() -> str:
    """Path of a Chromium; without one the test is skipped, and fails in continuous integration."""
    found = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
    if found is None:
        lacking("chromium is not installed (Debian package chromium)")
    return found


def opened(page: Path, folder: Path) -> tuple[list[str], list[str], str]:
    """Console messages, network requests of the page, and the document, after a browser opened the page."""
    log = folder / "net.json"
    done = subprocess.run(
        [
            browser(),
            *FLAGS,
            # Requests are logged, and reach nobody: neither the page's nor the browser's own.
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder / 'profile'}",
            f"--log-net-log={log}",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=180,
        check=True,
    )
    console = [line for line in done.stderr.splitlines() if ":CONSOLE:" in line]
    data = json.loads(log.read_text(encoding="utf-8"))
    start = data["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    requests = [event["params"] for event in data["events"] if event["type"] == start and "url" in event["params"]]
    # The browser asks for updates and the time by itself; such requests come from no page.
    own = [each["url"] for each in requests if each.get("initiator") != "not an origin"]
    return console, [url for url in own if not url.startswith(("file:", "data:"))], done.stdout


@pytest.mark.real
def test_a_browser_opens_the_page_without_error_or_request(founding_page: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(founding_page, encoding="utf-8")
    console, requests, document = opened(page, tmp_path)
    assert console == []
    assert requests == []
    assert "Recall by depth" in document


@pytest.mark.real
def test_hostile_text_does_nothing_in_a_browser(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(page_of(record(response=HOSTILE), name=HOSTILE), encoding="utf-8")
    console, requests, _ = opened(page, tmp_path)
    assert (console, requests) == ([], [])


@pytest.mark.real
def test_the_browser_would_tell(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text('<script>console.error("boom")</script><img src="http://127.0.0.1:9/x.png">', encoding="utf-8")
    console, requests, _ = opened(page, tmp_path)
    assert len(console) == 1
    assert requests == ["http://127.0.0.1:9/x.png"]


def test_samples_stand_side_by_side(founding_page: str) -> None:
    assert founding_page.count('<table class="answers">') == 15
    assert founding()[0].references[0] in founding_page
