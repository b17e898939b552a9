"""The table of `growth.py`, and the picture: time and memory against lines, both logarithmic."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from transformer_cli.plots.style import add_title, line_look, style


@dataclass(frozen=True)
class Growth:
    """What a stage took, at rising numbers of lines."""

    name: str
    lines: Sequence[int]
    seconds: Sequence[float]  # of CPU time
    peaks: Sequence[int]  # bytes

    def per_line(self, values: Sequence[float]) -> list[float]:
        """What each further line takes, from each size to the next: (sizes - 1,)."""
        places = range(1, len(values))
        return [(values[i] - values[i - 1]) / (self.lines[i] - self.lines[i - 1]) for i in places]


def gather(results: Path, names: Mapping[str, str]) -> list[Growth]:
    """Return what is known of each stage, by what the table calls it; at rising numbers of lines."""
    found = []
    for stage, name in names.items():
        files = sorted(results.glob(f"{stage}-*.json"), key=lambda file: int(file.stem.rpartition("-")[2]))
        if known := [json.loads(file.read_text()) for file in files]:
            found.append(Growth(name, *([one[key] for one in known] for key in ("lines", "seconds", "peak"))))
    return found


def describe(found: Sequence[Growth]) -> Iterator[str]:
    """Yield the table."""
    yield "| | lines | CPU, s | a further million, s | than before | memory, MB | a further line, bytes |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for growth in found:
        slopes, weights = growth.per_line(growth.seconds), growth.per_line(growth.peaks)
        for place, lines in enumerate(growth.lines):
            seconds = growth.seconds[place]
            slope = f"{1e6 * slopes[place - 1]:.3g}" if place else "–"
            change = f"{round(100 * (slopes[place - 1] / slopes[place - 2] - 1)):+} %" if place > 1 else "–"
            weight = f"{round(weights[place - 1])}" if place > 1 else "–"
            yield (
                f"| {growth.name} | {lines:,} | {seconds:{',.0f' if seconds >= 100 else '.3g'}} | {slope} | {change} | "
                f"{growth.peaks[place] / 1e6:,.0f} | {weight} |"
            )


MARKERS = "osD^v<>"


def draw(found: Sequence[Growth]) -> Figure:
    """A line for each stage; dashed, where ten times the lines take ten times as long."""
    with style():
        figure = Figure(figsize=(9.6, 4.6), layout="constrained")
        time, memory = figure.subplots(1, 2)
        for number, growth in enumerate(found):
            look = {**line_look(number), "marker": MARKERS[number], "linewidth": 1.2}
            time.plot(growth.lines, growth.seconds, label=growth.name.replace("`", ""), **look)
            memory.plot(growth.lines, [peak / 1e6 for peak in growth.peaks], **look)
        for axes, name in ((time, "CPU time (s)"), (memory, "memory (MB)")):
            axes.set(xscale="log", yscale="log", title=name, xlabel="lines")
            axes.xaxis.set_major_formatter(_plain)
            axes.yaxis.set_major_formatter(_plain)
            axes.minorticks_off()
        memory.set_yticks([30, 100, 300, 1000, 3000])
        memory.set_ylim(20, 4000)
        low, high = time.get_ylim()
        lines = np.array([min(growth.lines[0] for growth in found), max(growth.lines[-1] for growth in found)])
        for power in range(-8, 0):
            label = "linear" if power == -1 else None
            time.plot(lines, lines * 10.0**power, color="#999999", linestyle="--", linewidth=0.6, zorder=0, label=label)
        time.set_ylim(low, high)
        figure.legend(loc="outside lower center", ncols=4)
        add_title(figure, "Growth with the number of lines")
    return figure


_plain = FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
