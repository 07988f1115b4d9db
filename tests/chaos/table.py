"""The table of results in docs/reliability.md: one row for each case and fault, written by the suite."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.counting import POST, SETUP, counts
from tests.chaos.system import Played, System

BEGIN, END = "<!-- results: written by the chaos suite -->", "<!-- end of results -->"
HEADINGS = (
    "case",
    "fault",
    "runs",
    "executions",
    "effects expected",
    "seen",
    "twice",
    "replies paid",
    "used",
    "lost",
    "left over",
)


@dataclass
class Row:
    """Sums over the runs of one fault."""

    runs: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    expected: int = 0
    seen: int = 0
    twice: int = 0
    paid: int = 0
    used: int = 0
    lost: int = 0
    left: int = 0

    def cells(self) -> list[str]:
        """As the table shows it."""
        endings = ", ".join(f"{ending} ({number})" if number > 1 else ending for ending, number in self.endings.items())
        numbers = (self.expected, self.seen, self.twice, self.paid, self.used, self.lost, self.left)
        return [str(self.runs), endings, *map(str, numbers)]


class Table:
    """Rows by (case, fault)."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Row] = {}

    def add(self, case: int, fault: str, system: System, *played: Played, turns: int = 3) -> None:
        """Take down runs of one fault, after they were checked."""
        row = self._rows.setdefault((str(case), fault), Row())
        for run in played:
            row.runs += 1
            row.endings[" → ".join(run.kinds)] += 1
            row.paid += sum(run.generations)
            row.used += len(run.generations)
            row.lost += not run.result.outcome.score and run.kinds[-1] == "agent_done"
            if run.counts is not None:
                seen = Counter(run.counts.gui + run.counts.setup + run.counts.post)
                row.expected += len(counts(turns) + SETUP + POST)
                row.seen += sum(seen.values())
                row.twice += sum(number - 1 for number in seen.values())
        row.left += len(system.leftovers())

    def note(self, case: int, fault: str, ending: str, system: System) -> None:
        """Take down a run that left no result of its own."""
        row = self._rows.setdefault((str(case), fault), Row())
        row.runs += 1
        row.endings[ending] += 1
        row.left += len(system.leftovers())

    def write(self, path: Path) -> None:
        """Put the rows of this run into the document; rows of cases that were not run stay."""
        before, _, rest = path.read_text().partition(BEGIN)
        old, _, after = rest.partition(END)
        rows = {tuple(cells[:2]): cells[2:] for line in old.splitlines() if (cells := _cells(line))}
        rows |= {key: row.cells() for key, row in self._rows.items()}
        lines = [_line(HEADINGS), _line(["---"] * len(HEADINGS))]
        lines += [
            _line([*key, *cells]) for key, cells in sorted(rows.items(), key=lambda item: (int(item[0][0]), item[0][1]))
        ]
        path.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}")


def _cells(line: str) -> list[str]:
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    return cells if len(cells) == len(HEADINGS) and cells[0].isdigit() else []


def _line(cells) -> str:
    return f"| {' | '.join(cells)} |"
