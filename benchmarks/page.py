"""docs/benchmarks.md or docs/results.md: each program puts what it measured between its own two markers there."""

import re
import shlex
import sys
from datetime import date
from pathlib import Path

import torch
from machine import describe_machine

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = PAGE.with_name("results.md")
END = "<!-- end -->"
UNSAID = ("--write", "--table")  # arguments that change nothing of what is measured


def describe_run(threads: int, *versions: str, device: str = "cpu") -> str:
    """The command, the machine, the threads, versions and date, as one sentence."""
    # Where files lay on this machine is nobody's business: their names will do.
    arguments = [re.sub(r"(^|=)/.*/", r"\1", argument) for argument in sys.argv[1:] if argument not in UNSAID]
    command = shlex.join(["python", program(), *arguments])
    names = dict.fromkeys([f"torch {torch.__version__}", *versions])
    return (
        f"`{command}`; {describe_machine(device)}; {threads} threads; {', '.join(names)}; {date.today().isoformat()}."
    )


def report(lines: list[str], write: bool, page: Path = PAGE) -> None:
    """Print the lines; with `write`, they also replace what stands in the page's section of this program."""
    print("\n".join(lines))
    if write:
        page.write_text(replace_section(page.read_text(encoding="utf-8"), program(), lines), encoding="utf-8")


def program() -> str:
    """The program that runs, as one calls it from the repository's folder: `benchmarks/training.py`."""
    path = Path(sys.argv[0]).resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def replace_section(page: str, program: str, lines: list[str]) -> str:
    """The page with these lines in the program's section."""
    begin = f"<!-- written by {program} --write -->"
    sections = list(re.finditer(f"{re.escape(begin)}.*?{re.escape(END)}", page, re.DOTALL))
    assert len(sections) == 1, f"the page has {len(sections)} sections '{begin}' … '{END}'"
    section = "\n".join([begin, "", *lines, "", END])
    return page[: sections[0].start()] + section + page[sections[0].end() :]
