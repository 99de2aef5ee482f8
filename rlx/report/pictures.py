"""Curves for a paper, PNG or SVG, by matplotlib: the same lines and bands as the page."""

from __future__ import annotations

import io

from rlx.errors import UserError, nearest, shown
from rlx.report.analysis import Analysis
from rlx.report.curves import AXES, RETURN, line, metrics_of, over_seeds
from rlx.report.page import optional

POINTS = 500
MOST_METHODS = 12  # lines that one can tell apart; the best are drawn
COLORS = ("#2b5fd9", "#d2691e", "#1c8a5f", "#b0307a", "#7a5af0", "#008ba3", "#c0392b", "#6b7a1a", "#8d5a3b", "#4a5568")


def picture_of(
    analysis: Analysis, kind: str, verb: str, metric: str | None = None, axis: str | None = None, statistic: str = "iqm"
) -> bytes:
    """One panel per environment, one line per method."""
    optional("matplotlib", verb).use("Agg")
    plt = optional("matplotlib.pyplot", verb)
    runs, grouping = analysis.runs, analysis.grouping
    metric = metric_of(analysis, metric)
    axis = axis_of(analysis, axis)
    order = analysis.comparison.methods if analysis.comparison else []
    order = [*order, *(m for m in range(len(grouping.methods)) if m not in order)]
    drawn = sorted(order[:MOST_METHODS])
    columns = min(3, len(grouping.envs))
    rows = -(-len(grouping.envs) // columns)
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rlx", "font.size": 9}):
        figure, axes = plt.subplots(rows, columns, figsize=(4.6 * columns, 3.3 * rows), squeeze=False)
        for place in axes.flat[len(grouping.envs) :]:
            place.set_visible(False)
        for env, place in zip(range(len(grouping.envs)), axes.flat, strict=False):
            for group in grouping.groups:
                if group.env != env or group.method not in drawn:
                    continue
                lines = [line(runs[i].curves[metric], axis) for i in group.runs if metric in runs[i].curves]
                band = over_seeds(lines, statistic, POINTS)
                if band is None:
                    continue
                color = COLORS[group.method % len(COLORS)]
                label = _plain(grouping.methods[group.method].label)
                place.plot(band.x, band.value, color=color, linewidth=1.6, label=label)
                if band.runs.max() > 1:
                    place.fill_between(band.x, band.low, band.high, color=color, alpha=0.16, linewidth=0)
            place.set_title(_plain(grouping.envs[env] or "no environment"))
            place.set(xlabel=AXES[axis], ylabel=_plain(metric))
            place.spines[["top", "right"]].set_visible(False)
        handles = {
            label: handle
            for place in axes.flat
            for handle, label in zip(*place.get_legend_handles_labels(), strict=True)
        }
        if len(grouping.methods) > 1 and handles:
            figure.legend(
                handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(handles)), frameon=False
            )
        figure.set_layout_engine("constrained")
        data = io.BytesIO()
        figure.savefig(data, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else None)
        plt.close(figure)
    return data.getvalue()


def metric_of(analysis: Analysis, name: str | None) -> str:
    """The metric to draw, which some run has written; evaluation returns unless told otherwise."""
    names = metrics_of(analysis.runs)
    if not names:
        raise UserError("These runs have written no metric yet; there is nothing to draw.")
    if name is None:
        return RETURN if RETURN in names else names[0]
    if name not in names:
        guess = nearest(name, names)
        meant = f"did you mean {guess}?" if guess else f"there are {', '.join(names[:20])}."
        raise UserError(f"No run has a metric {shown(name)!r}; {meant}")
    return name


def axis_of(analysis: Analysis, name: str | None) -> str:
    if name is not None:
        return name
    online = any(curve.env_steps.any() for run in analysis.runs for curve in run.curves.values())
    return "env_steps" if online else "updates"


def _plain(text: str) -> str:
    """Text from a run: a dollar sign begins no formula."""
    return text.replace("$", r"\$")
