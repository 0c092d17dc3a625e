"""Prints the table and draws the plot."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

Rounds = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Row:
    what: str
    ratio: float
    target: float
    least: bool = False

    @property
    def met(self) -> bool:
        return self.ratio >= self.target if self.least else self.ratio <= self.target


def report(rounds: Rounds, memory: dict[str, float], table: list[Row], out: Path) -> None:
    rounds = rounds | {"KiB in flight": {name: [kib] for name, kib in memory.items()}}
    show(rounds, table)
    plot(rounds, out / "bench.png")
    print(f"\nwritten: {out / 'bench.json'}, {out / 'bench.png'}")


def show(rounds: Rounds, table: list[Row]) -> None:
    """Prints the medians, and the ratios with their targets."""
    for measure, servers in rounds.items():
        print(f"\n{measure}")
        for server, figures in servers.items():
            spread = f"   ({min(figures):.4g} … {max(figures):.4g})" if len(figures) > 1 else ""
            print(f"  {server:20} {statistics.median(figures):10.4g}{spread}")
    print(f"\n{'measure':62} {'ratio':>8} {'target':>8}")
    for row in table:
        target = f"{'≥' if row.least else '≤'} {row.target:g}"
        print(f"{row.what:62} {row.ratio:8.2f} {target:>8}  {'met' if row.met else 'MISSED'}")


def plot(rounds: Rounds, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    titles = {
        "turns/s": "turns per second, 32 peers (more is better)",
        "ms/turn": "ms per turn, one peer (less is better)",
        "2,000 deltas": "seconds for a reply of 2,000 deltas (log scale)",
        "KiB in flight": "KiB for each of 2,000 turns in flight (less is better)",
    }
    figure, axes = plt.subplots(2, 2, figsize=(11, 7))
    for axis, (measure, title) in zip(axes.flat, titles.items(), strict=True):
        servers = rounds[measure]
        medians = [statistics.median(figures) for figures in servers.values()]
        colours = [
            "#888888" if s in ("floor", "sdk-sqlite", "earlier") else "#3366aa" for s in servers
        ]
        bars = axis.barh(list(servers), medians, color=colours)
        axis.bar_label(bars, fmt="%.3g", padding=3)
        axis.set_title(title, fontsize=10)
        axis.invert_yaxis()
        axis.margins(x=0.15)
        if measure == "2,000 deltas":
            axis.set_xscale("log")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
