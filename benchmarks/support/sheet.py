"""A table of text, drawn for the terminal or as markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

# Wide tables are better scrolled than squeezed.
LEAST_WIDTH = 240


@dataclass(frozen=True)
class Sheet:
    """A title, heads of columns, and lines of as many texts."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]

    def rich(self) -> Table:
        """Returns it for the terminal."""
        table = Table(title=self.title, box=box.SIMPLE, padding=(0, 1))
        for column in self.columns:
            table.add_column(column, justify="right")
        for line in self.lines:
            table.add_row(*line)
        return table

    def markdown(self) -> str:
        """Returns it as markdown."""
        lines = [self.columns, ["---"] * len(self.columns), *self.lines]
        return f"### {self.title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def report(
    console: Console, before: Sequence[str], sheets: Sequence[Sheet], after: Sequence[str], output: Path | None
) -> None:
    """Prints texts and sheets, and writes them as markdown where a file is asked for."""
    for text in before:
        console.print(text, highlight=False)
    wide = Console(width=max(console.width, LEAST_WIDTH))
    for sheet in sheets:
        wide.print(sheet.rich())
    for text in after:
        console.print(text, highlight=False)
    if output:
        output.write_text("\n\n".join([*before, *(sheet.markdown() for sheet in sheets), *after]) + "\n")
