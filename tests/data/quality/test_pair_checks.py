"""Each check finds its fault, and is silent about what may well be right."""

import pytest

from transformer_cli.data.quality.pair_checks import PairChecks, mojibake

CHECK = PairChecks(max_length=20)


@pytest.mark.parametrize(
    ("kind", "source", "target"),
    [
        ("empty_side", " \u00a0", "a"),
        ("length_ratio", "ein Mann", "a man who walks along a very long street in the evening with a dog"),
        ("too_long", "a " * 30, "b " * 30),
        ("encoding_damage", "MÃ¤nner", "men"),
        ("encoding_damage", "it\u2019s", "itâ€™s"),
        ("encoding_damage", "M\ufffdnner", "men"),
        ("encoding_damage", "привет", "Ð¿Ñ€Ð¸Ð²ÐµÑ‚"),
        ("encoding_damage", "привет", "РїСЂРёРІРµС‚"),
        ("encoding_damage", "Haus", "hРѕuse"),
        ("encoding_damage", "שלום", "×©×œ×•×"),
        ("control_characters", "a\x01b", "ab"),
        ("control_characters", "a\u202eb", "ab"),
        ("control_characters", "ä\x86", "ab"),
        ("control_characters", "Wort\u00adtrennung", "hyphenation"),
        ("control_characters", "a\u200bb", "ab"),
        ("markup", "<b>a</b>", "a"),
        ("markup", "a &amp; b", "a and b"),
        ("number_mismatch", "im Jahr 1998", "in 1989"),
        ("number_mismatch", "3,5 km", "3.6 km"),
        ("number_mismatch", "5 Hunde", "7 dogs"),
        ("number_mismatch", "345 Hunde", "some dogs"),
        ("url_mismatch", "siehe https://a.org/b", "see it"),
        ("url_mismatch", "mail a@b.de", "mail a@b.com"),
        ("url_mismatch", "siehe ftp://a.org/b", "see it"),
        ("mixed_scripts", "Hаus", "house"),
        ("mixed_scripts", "house", "дoм"),
    ],
)
def test_a_fault_is_found(kind: str, source: str, target: str) -> None:
    assert CHECK(source, target) == [kind]
    if kind != "length_ratio":
        assert CHECK(target, source) == [kind]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("12 Hunde", "twelve dogs"),
        ("40 Winks", "forty winks"),
        ("1.000.000 Euro", "1,000,000 euros"),
        ("1 000 km", "1,000 km"),
        ("um 11h30", "at 11:30"),
        ("am 05.03.", "on 3/5"),
        ("٣٤٥", "345"),
        ("3,50 €", "3.5 €"),
        ("<b>ja</b>", "<b>yes</b>"),
        ("a < b und c > d", "a < b and c > d"),
        ("AT&T", "AT&T"),
        ("(siehe www.a.de).", "(see www.a.de)"),
        ("È già là", "Ça était âgé"),
        ("SÃO PAULO", "Sao Paulo"),
        ("5 µm und 3 kΩ", "5 µm and 3 kΩ"),
        ("a\u200db", "ab"),
        ("ผม\u200bรัก", "I love"),
        ("(\u200fשלום)", "hello"),
        ("Рёрих и Сёстры", "Roerich"),
        ("ĂŞTIA, PÄŤ, Ăştia", "those"),
        ("—Él —dijo", "he said"),
        ("NEMÔŽE TÝŽDEŇ “RIALÚ” SUPPRIMÉ\u00a0?", "it cannot be a week, was it deleted?"),
        ("Москва и Moskau", "Moskau"),
    ],
)
def test_what_may_well_be_right_is_left(source: str, target: str) -> None:
    assert CHECK(source, target) == []
    assert CHECK(target, source) == []


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "cp850", "mac_roman"])
@pytest.mark.parametrize("text", ["für", "où déjà", "naïve", "„Ja“", "æøå", "Łódź"])
def test_text_read_in_the_wrong_encoding_is_seen(text: str, encoding: str) -> None:
    assert mojibake(text) is None
    assert mojibake(text.encode().decode(encoding, errors="replace"))


@pytest.mark.parametrize("text", ["fünf Männer", "où il était", "Příliš žluťoučký kůň"])
def test_text_read_in_the_code_page_of_eastern_europe_is_seen(text: str) -> None:
    assert mojibake(text) is None
    assert mojibake(text.encode().decode("cp1250", errors="replace"))


def test_the_number_in_an_entity_is_none() -> None:
    assert CHECK("der &#39;Hund", "the dog") == ["markup"]
