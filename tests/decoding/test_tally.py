"""What is counted: from many threads, and in words."""

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


def test_it_tells_what_happened_and_nothing_else() -> None:
    assert Tally().notes == Tally({"protected_lines": 5}).notes == []
    assert Tally({"cut_lines": 1}).notes == [
        "1 line was longer than the model takes: cut into chunks, translated and joined"
    ]
    assert Tally({"flagged": 1, "repaired": 1}).notes == [
        "1 translation repeats itself or never ends: searched again without repetition, 1 repaired"
    ]
    several = Tally(Tally({"cut_lines": 2, "flagged": 3000, "protected_lines": 5, "split_lines": 4}).counts)
    assert several.notes == [
        "2 lines were longer than the model takes: cut into chunks, translated and joined",
        "3,000 translations repeat themselves or never end: searched again without repetition, 0 repaired",
        "4 of 5 lines with protected text: its place could not be found; the text around it was translated in segments",
    ]
