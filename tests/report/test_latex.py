"""LaTeX tables: read by a strict little parser everywhere, compiled where there is a compiler."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.founding_example import source
from helpers.missing import lacking
from helpers.report_examples import record
from kvfw.analysis.sources import Report, make_report
from kvfw.core.contracts.records import TrialRecord
from kvfw.report.latex import escape, latex_tables

HOSTILE = r"a(b=\input{x},c=%$&#^~<>|\"*[-]):0.5+" + "x" * 60 + ":0.5"
#: Rows that begin with a bracket, which LaTeX would read as an argument of the line break before.
POLICIES = ("full", "[0-1]full;[2-]snapkv@adakv(floor=0.3)|refit", "[-1]full;[0-28]x|y", "kvzip@global|a|b")
COMPILER = shutil.which("pdflatex") or shutil.which("tectonic")
COMMANDS = re.findall(
    "[a-z]+",
    "begin end centering caption label smallskip scriptsize setlength tabcolsep toprule midrule bottomrule "
    "addlinespace multicolumn emph pm times textendash textbackslash textasciicircum textasciitilde ldots",
)


@pytest.fixture(scope="module")
def founding_report() -> Report:
    return make_report([source()], resamples=50)


def hostile_report() -> Report:
    trials = [record(name, seed=seed) for name in ("full", HOSTILE, "*[b]") for seed in range(3)]
    return make_report([source(trials, "中文 & co")], resamples=20)


def small_report(*trials: TrialRecord) -> Report:
    return make_report([source(trials)], resamples=20)


def unexplained(text: str) -> list[str]:
    """What is wrong with a LaTeX text made of tables only; a strict reader of the subset that is written."""
    faults: list[str] = []
    body = "\n".join(line for line in text.split("\n") if not line.startswith("%"))
    if strange := sorted({character for character in body if not (" " <= character <= "~" or character == "\n")}):
        faults.append(f"characters {strange}")
    open_environments: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{([^}]*)\}", body):
        if kind == "begin":
            open_environments.append(name)
        elif not open_environments or open_environments.pop() != name:
            faults.append(f"end of {name}")
    faults += [f"{name} not ended" for name in open_environments]
    bare = re.sub(r"\\\\|\\[{}$&#%_]", "", body)
    for name in re.findall(r"\\([a-zA-Z]+)", bare):
        if name not in COMMANDS:
            faults.append(f"command {name}")
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth < 0:
            faults.append("brace closed too early")
            break
    if depth > 0:
        faults.append("brace not closed")
    if bare.count("$") % 2:
        faults.append("odd number of dollars")
    if re.search("[#%^~]", bare):
        faults.append("special character")
    if re.search("_", bare):
        faults.append("underscore")
    return faults + [fault for part in bodies(body) for fault in wrong_columns(*part)]


def bodies(text: str) -> list[tuple[int, str]]:
    """Number of columns and rows of each outer tabular; inner ones are taken out."""
    inner = re.compile(
        r"\\begin\{tabular\}\[[tb]\]\{@\{\}[lr]@\{\}\}((?:(?!\\begin|\\end).)*)\\end\{tabular\}", re.DOTALL
    )
    flat = inner.sub("stack", text)
    found = re.findall(r"\\begin\{tabular\}\{@\{\}([lr]+)@\{\}\}(.*?)\\end\{tabular\}", flat, re.DOTALL)
    return [(len(columns), rows) for columns, rows in found]


def wrong_columns(columns: int, rows: str) -> list[str]:
    text = re.sub(r"\\(toprule|midrule|bottomrule|addlinespace)", "", rows)
    faults = []
    for row in text.split(r"\\"):
        if not row.strip():
            continue
        span = re.search(r"\\multicolumn\{(\d+)\}", row)
        cells = int(span[1]) if span else len(re.findall(r"(?<!\\)&", row)) + 1
        if cells != columns:
            faults.append(f"{cells} cells in {columns} columns: {row.strip()}")
    return faults


def test_the_reader_finds_faults() -> None:
    assert unexplained(r"\begin{tabular}{@{}ll@{}} a & b \\ \end{tabular}") == []
    for bad in (r"\begin{table*}", "{", "}", "a_b", "50%", "a $ b", "é", r"\input{x}", r"\end{table*}"):
        assert unexplained(bad), bad
    assert unexplained(r"\begin{tabular}{@{}ll@{}} a & b & c \\ \end{tabular}")


def test_the_tables_read_well(founding_report: Report) -> None:
    text = latex_tables(founding_report)
    assert unexplained(text) == []
    assert text.count(r"\begin{table*}") == text.count(r"\toprule") == text.count(r"\caption") >= 6
    assert r"84.4 $\pm$" in text
    assert r"pinned:0.65 \\ +ewmeans\_post:0.35" in text
    assert r"Wilson 95 \% interval, trials taken as independent" in text
    assert "cannot decide" in text
    assert len(set(re.findall(r"\\label\{([^}]*)\}", text))) == text.count(r"\label")


@pytest.mark.parametrize(
    "report",
    [
        hostile_report,
        lambda: small_report(record()),
        lambda: small_report(record(metrics={"ref_ppl": None}, reasons={"ref_ppl": "one % token_"})),
        lambda: small_report(record(metrics={})),
        lambda: small_report(*(record(name, seed=seed) for name in POLICIES for seed in range(2))),
    ],
    ids=["hostile", "one trial", "null", "no metric", "policies"],
)
def test_edges_read_well_and_compile(report: object, tmp_path: Path) -> None:
    assert callable(report)
    text = latex_tables(report())
    assert unexplained(text) == []
    compile_document(text, tmp_path)


@given(st.text())
def test_any_text_is_escaped(text: str) -> None:
    assert unexplained(escape(text)) == []


def test_two_hyphens_are_not_a_dash() -> None:
    assert escape("a--b---c-d") == "a-{}-b-{}-{}-c-d"


def test_the_tables_compile_and_fit_a_page(founding_report: Report, tmp_path: Path) -> None:
    log = compile_document(latex_tables(founding_report), tmp_path)
    wide = [float(points) for points in re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\)", log)]
    # The text of article is 345 pt wide, narrower than the two columns of any conference.
    assert max(wide, default=0.0) < 40


def compile_document(tables: str, folder: Path) -> str:
    if COMPILER is None:
        lacking("neither pdflatex (Debian package texlive-latex-recommended) nor tectonic is installed")
    (folder / "tables.tex").write_text(tables, encoding="utf-8")
    (folder / "paper.tex").write_text(
        "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\nTables.\n\\input{tables}\n\\end{document}\n",
        encoding="utf-8",
    )
    options = ["-interaction=nonstopmode", "-halt-on-error"] if COMPILER.endswith("pdflatex") else ["--print"]
    done = subprocess.run(
        [COMPILER, *options, "paper.tex"], cwd=folder, capture_output=True, text=True, errors="replace", timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (folder / "paper.pdf").stat().st_size > 1000
    return done.stdout
