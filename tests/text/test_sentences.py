"""Sentences are found in every language, and what is no sentence for sure is never cut off."""

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer_cli.text import sentences
from transformer_cli.text.sentences import share_of_several, split_sentences


def cut(text: str, language: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text, language)]


@pytest.mark.parametrize("language", ["en", "el", "my", "xx"])
@given(
    text=st.text(st.characters(categories=["L", "N"]) | st.sampled_from(" ,'-_"), max_size=200),
    end=st.text(".!?… \n»", max_size=4),
)
def test_words_without_marks_are_one_sentence_without_asking(language: str, text: str, end: str) -> None:
    taken = split_sentences(text + end, language)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "_ONE_SENTENCE", re.compile("(?!)"))
        assert split_sentences(text + end, language) == taken


# As they are to be cut: at each |, where languages that are written with spaces have one.
TEXTS = [
    ("de", "Der Hund ist im Garten.|Peter suchte das Fahrrad."),
    ("de", "Dr. Weber kam am 3. Mai, z. B. um 8 Uhr.|Er ging."),
    ("de", "Er wohnt im 2. Stock.|Sie auch."),
    ("de", "Prof. Dr. h. c. Müller sprach.|Alle hörten zu."),
    ("de", "Er kam 1995.|Dann ging er."),
    ("de", "Das kostet 3.50 Euro.|Das ist viel."),
    ("de", "„Komm!“, rief er.|Sie kam."),
    ("de", "„Ich gehe.“|Sie blieb."),
    ("de", "„Wer bist du?“ fragte sie.|Er schwieg."),
    ("de", "Ja… vielleicht.|Nein!"),
    ("de", "Das war Friedrich II. von Preußen.|Er lebte lange."),
    ("de", "Was?!|Ja."),
    ("en", "Mr. Smith lives at 5 St. James St. in the U.S. today.|He left."),
    ("en", "J. R. R. Tolkien wrote it.|It is long."),
    ("en", 'He said "Go."|Then he left.'),
    ("en", '"Stop!" he cried.|She ran.'),
    ("en", "Wait... what?|No!"),
    ("en", "I am here...|You are not."),
    ("en", "It costs $3.50 (approx. 3 euros).|Cheap."),
    ("en", "A boy with a t-shirt that says FROG! stands there."),
    ("en", "this is lower case.|so is this."),
    ("en", "See Fig. 3, e.g. the line on p. 12.|It is red."),
    ("en", "Visit www.example.com.|It is free."),
    ("en", "Is it 5 p.m.?|Yes, it is 5 p.m. now."),
    ("en", "Yahoo!Answers and note.¹ are one.|Two."),
    ("en", "1. Open the door.|2. Close it."),
    ("en", "Born in 1984.|1984. That was it."),
    ("fr", "M. Dupont est là.|Il mange."),
    ("fr", "Mme. Dupont et le Dr. Petit sont là.|Ils mangent."),
    ("fr", "« Bonjour ! » dit-il.|Elle rit."),
    ("fr", "Que fais-tu\u00a0?|Je dors\u00a0!|Bien."),
    ("es", "¿Qué haces?|¡Nada!|Adiós, Sr. García."),
    ("it", "Il sig. Rossi è qui.|Mangia."),
    ("pt", "O Sr. Silva chegou.|A Sra. Silva não."),
    ("pl", "To jest np. dom.|To jest kot."),
    ("cs", "Je to 3. dům.|Je velký."),
    ("ru", "А. С. Пушкин родился в Москве.|Он писал."),
    ("el", "Τι κάνεις;|Καλά."),
    ("tr", "Bu bir ev.|Dr. Ali geldi."),
    ("ka", "ეს სახლია.|ის დიდია."),
    ("hi", "यह एक है।|वह दो है।"),
    ("ar", "ما هذا؟|هذا كتاب."),
    ("he", "מה זה?|זה ספר."),
    ("ja", "「そうです。」と言った。|彼は行った。"),
    ("ja", "これは本です。|あれは何ですか？|はい！"),
    ("ja", "彼は「行こう。今すぐ！」と言った。|私は待った。"),
    ("zh", "这是一本书。|那是什么？|好！"),
    ("zh-TW", "他說：“走吧。”|她走了。"),
    ("ko", "안녕하세요.|저는 학생입니다.|네!"),
    ("th", "สวัสดี ฉันไป"),
    ("my", "ဒါက စာအုပ်ပါ။|ဟုတ်တယ်။"),
    ("am", "ይህ ቤት ነው።|ትልቅ ነው።"),
    ("xx", "Abc def.|Ghi jkl."),
]


@pytest.mark.parametrize(("language", "text"), TEXTS)
def test_where_sentences_end(language: str, text: str) -> None:
    wanted = text.split("|")
    between = "" if language[:2] in ("ja", "zh", "my") else " "
    assert cut(between.join(wanted), language) == wanted
    if between:
        assert cut(f" {'   '.join(wanted)}\u2028", language) == wanted, "white space is of no sentence"


@pytest.mark.parametrize("alone", ["...", '"..."', "!", "—", "😀", "( )"])
def test_what_holds_no_word_is_no_sentence(alone: str) -> None:
    assert cut(f"{alone} Der Hund bellt. {alone} Er frisst. {alone}", "de") in (
        [f"{alone} Der Hund bellt. {alone}", f"Er frisst. {alone}"],
        [f"{alone} Der Hund bellt.", f"{alone} Er frisst. {alone}"],
    )
    assert cut(alone, "de") == [alone]


CHARACTERS = st.text(st.characters()) | st.lists(
    st.sampled_from(
        [*".!?…。？\"'“”„«»「」』() aAbB1é漢は😀ا؟ह।న\u2028\xa0\x85\n\ud800", "Dr. ", "z. B. ", "3. ", "\n\n"]
    ),
    max_size=40,
).map("".join)


@settings(max_examples=300)
@given(text=CHARACTERS, language=st.sampled_from("de en fr ja zh th te hi ar xx".split()))  # noqa: SIM905
@example(text="\xa0B. A\xa0.\U0001f600z. B. .", language="te")  # at which sentencex itself fails
@example(text="", language="de")
def test_nothing_is_lost_or_cut_in_words(text: str, language: str) -> None:
    end = 0
    for start, stop in split_sentences(text, language):
        assert not text[end:start].strip()
        assert text[start:stop].strip() == text[start:stop] != ""
        assert not (stop < len(text) and text[stop - 1].isalnum() and text[stop].isalnum())
        end = stop
    assert not text[end:].strip()


@pytest.mark.parametrize(
    "unit", [".", ". ", "漢。", "「あ。", '"', "“", "„", '"A. ', "(A. ", "1. ", "x", "One two. ", " \u2028"]
)
def test_a_line_of_100_000_characters_takes_no_time(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    began = time.process_time()
    found = cut(text, "en")
    assert time.process_time() - began < 4, "else longer lines take hours"
    assert "".join("".join(found).split()) == "".join(text.split())


def test_long_text_is_cut_as_its_parts_are(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(text.replace("|", " ") for language, text in TEXTS if language == "en")
    whole = cut(text, "en")
    assert len(whole) > 20
    monkeypatch.setattr(sentences, "BLOCK", 120)
    assert cut(text, "en") == whole
    monkeypatch.setattr(sentences, "BLOCK", 7)
    assert cut("Alle Menschen werden Brüder. Ja.", "de")[-1].endswith("Ja."), "a block without any end"


@pytest.mark.medium
def test_the_share_of_lines_with_several_sentences() -> None:
    lines = ["Eins. Zwei.", "", "Drei.", " ", "Vier", "Dr. Fünf."]
    assert share_of_several(lines, "de") == 0.25
    assert share_of_several([], "de") == 0.0
    sentences_read = iter(["Eins. Zwei."] * (sentences.COUNTED_LINES + 5))
    assert share_of_several(sentences_read, "de") == 1.0
    assert len(list(sentences_read)) == 5, "a bounded sample"
