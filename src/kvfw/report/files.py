"""Renders the files of a report."""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Literal, get_args

from kvfw.analysis.sources import Report

if TYPE_CHECKING:  # it imports matplotlib
    from kvfw.report.scatter import XAxis

Form = Literal["html", "markdown", "csv", "latex"]
FORMS: tuple[Form, ...] = get_args(Form)
DEFAULT: tuple[Form, ...] = ("html",)


def report_files(
    report: Report, forms: Collection[Form] = DEFAULT, x: "XAxis" = "kv_mb"
) -> Iterator[tuple[str, bytes]]:
    """Yields the name and content of each file as it is made.

    ``html``: ``report.html`` and ``figures/`` as PNG (300 dpi) and PDF; ``markdown``: ``tables.md``; ``csv``:
    ``tables.csv`` and ``comparisons.csv``; ``latex``: ``tables.tex``. ``x``: what figures draw the scores against.
    """
    if "html" in forms:
        # Imported here, so that tables alone do not import matplotlib.
        from kvfw.report.heatmap import heat_maps
        from kvfw.report.html import html_page
        from kvfw.report.scatter import scatter_plots

        drawings = [*scatter_plots(report.results, x), *heat_maps(report.results, report.records)]
        yield "report.html", html_page(report, drawings).encode()
        for drawing in drawings:
            yield f"figures/{drawing.name}.png", drawing.save("png")
            yield f"figures/{drawing.name}.pdf", drawing.save("pdf")
    if "markdown" in forms:
        from kvfw.report.markdown import markdown_tables

        yield "tables.md", markdown_tables(report).encode()
    if "csv" in forms:
        from kvfw.report.csv_files import comparisons_csv, metrics_csv

        yield "tables.csv", metrics_csv(report.results).encode()
        yield "comparisons.csv", comparisons_csv(report.results).encode()
    if "latex" in forms:
        from kvfw.report.latex import latex_tables

        yield "tables.tex", latex_tables(report).encode()
