"""What is counted: from many threads, and in words."""

import re
from concurrent.futures import ThreadPoolExecutor

from transformer_cli.decoding.translation import Tally


def test_threads_lose_no_count() -> None:
    tally = Tally()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: tally.add(flagged=1, repaired=2), range(1000)))
    assert (tally["flagged"], tally["repaired"], tally["cut_lines"]) == (1000, 2000, 0)


def test_counts_that_were_kept_under_their_old_names_count() -> None:
    assert Tally({"caught": 2, "mended": 1, "cut_lines": 3}).counts == Tally(
        {"flagged": 2, "repaired": 1, "cut_lines": 3}
    ).counts  # fmt: skip


def test_it_reports_what_happened_and_nothing_else() -> None:
    assert Tally().notes == Tally({"protected_lines": 5}).notes == []
    (cut,) = Tally({"cut_lines": 1}).notes
    assert cut.startswith("1 line was ")
    (flagged,) = Tally({"flagged": 1, "repaired": 1}).notes
    assert re.match(r"1 translation repeats .*, 1 repaired$", flagged)
    several = Tally(Tally({"cut_lines": 2, "flagged": 3000, "protected_lines": 5, "split_lines": 4}).counts)
    for note, said in zip(several.notes, ("2 lines were ", "3,000 translations repeat ", "4 of 5 lines "), strict=True):
        assert note.startswith(said)
