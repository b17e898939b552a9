"""What is counted: from many threads, and in words."""

from concurrent.futures import ThreadPoolExecutor

from transformer_cli.decoding.translation import Tally


def test_threads_lose_no_count() -> None:
    tally = Tally()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: tally.add(caught=1, mended=2), range(1000)))
    assert (tally["caught"], tally["mended"], tally["cut_lines"]) == (1000, 2000, 0)


def test_it_tells_what_happened_and_nothing_else() -> None:
    assert Tally().notes == Tally({"protected_lines": 5}).notes == []
    assert Tally({"cut_lines": 1}).notes == [
        "1 line was longer than the model takes: cut into pieces, translated and joined"
    ]
    several = Tally(Tally({"cut_lines": 2, "caught": 3000, "protected_lines": 5, "split_lines": 4}).counts)
    assert several.notes == [
        "2 lines were longer than the model takes: cut into pieces, translated and joined",
        "3,000 translations ran in circles or had no end: searched for again without repetition, 0 mended",
        "4 of 5 lines with protected text: its place could not be told; the text around it was translated in pieces",
    ]
