"""Glossary terms: whole words, the longest first, in their own case but for a sentence's beginning; and their files."""

from pathlib import Path

import pytest

from transformer_cli.errors import UserError
from transformer_cli.protected.spans import Glossary, occurrences


def found(glossary: Glossary, line: str) -> list[tuple[str, str]]:
    return [(line[term.start : term.end], term.translation) for term in glossary.find(line)]


def test_the_longest_term_counts_and_terms_do_not_overlap() -> None:
    glossary = Glossary({"a": "1", "a b": "2", "a b c": "3", "b c": "4", "c": "5"})
    assert found(glossary, "a b c") == [("a b c", "3")]
    assert found(glossary, "a b b c") == [("a b", "2"), ("b c", "4")]
    assert found(glossary, "x a x c") == [("a", "1"), ("c", "5")]


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("Hund", 1),
        ("(Hund).", 1),
        ("Hund-Hund", 2),
        ("Hunde", 0),
        ("Windhund", 0),
        ("ein hund", 0),
        ("HUND", 0),
        ("Hund2", 0),
        ("😀Hund😀", 1),
        ("", 0),
    ],
)
def test_terms_are_whole_words_in_their_own_case(line: str, count: int) -> None:
    assert len(found(Glossary({"Hund": "dog"}), line)) == count


def test_the_last_word_of_a_term_is_whole_too() -> None:
    glossary = Glossary({"rote Katze": "ginger cat", "rote": "red"})
    assert found(glossary, "rote Katzen, rote Katze") == [("rote", "red"), ("rote Katze", "ginger cat")]


def test_a_capital_at_the_beginning_of_a_sentence_is_no_difference() -> None:
    glossary = Glossary({"über uns": "about us", "weiter": "go on"})
    assert found(glossary, "Über uns") == [("Über uns", "About us")]
    assert found(glossary, "Nein! „Weiter“, sagt er. Weiter.") == [("Weiter", "Go on"), ("Weiter", "Go on")]
    assert found(glossary, "Die Seite Über uns") == []
    assert found(glossary, "weiter") == [("weiter", "go on")]


def test_terms_of_signs_and_other_scripts_match() -> None:
    glossary = Glossary({"C++": "C++", "שלום": "hello", "$": "dollar", "a.b": "ab"})
    assert found(glossary, "C++ שלום 5$ a.b") == [("C++", "C++"), ("שלום", "hello"), ("$", "dollar"), ("a.b", "ab")]
    assert found(glossary, "axb שלומי") == []


def test_occurrences_are_whole_words_with_any_first_letter() -> None:
    assert occurrences("Dog, dog; dogs hotdog (dog)", ["dog"]) == 3
    assert occurrences("a b a b", ["a b", "a"]) == 2
    assert occurrences("a", []) == 0


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("# a comment\n\n Hund \thound\nrote Katze\tginger cat\r\nHund\thound\n", encoding="utf-8")
    assert Glossary.read(path).translations == {"Hund": "hound", "rote Katze": "ginger cat"}


@pytest.mark.parametrize("line", ["Hund", "Hund\t", "\tdog", "Hund\tdog\tmore", "Hund dog", "a\t\tb"])
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text(f"# first\na\tb\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"terms\.tsv:3: is not a glossary entry"):
        Glossary.read(path)


def test_two_translations_of_a_term_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("Hund\tdog\nHund\thound\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"terms\.tsv:2: 'Hund' is 'dog' further up"):
        Glossary.read(path)
