"""All figures of a report."""

from kvfw.analysis.sources import Report
from kvfw.report.canvas import Drawing
from kvfw.report.heatmap import heat_maps
from kvfw.report.scatter import scatter_plots


def draw(report: Report) -> list[Drawing]:
    """Those for which there are values, in the order of the page."""
    return [*scatter_plots(report.results), *heat_maps(report.results, report.records)]
