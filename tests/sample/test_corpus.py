"""The sample corpus: the same every time, its splits share nothing, unseen is unseen, and every phenomenon is there."""

import gzip
import hashlib
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from data.sample.make.corpus import SPLITS, Corpus, Drawn, build_corpus, draw, main, write_corpus
from data.sample.make.dice import Dice
from data.sample.make.events import VERB
from data.sample.make.grammar import sentence
from data.sample.make.lexicon import NOUNS
from data.sample.make.sentences import Sentence

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "data" / "sample"
SHIPPED = ROOT / "transformer_cli" / "demo" / "corpus"
NUMBER = re.compile(r".*(zehn|zwanzig|zig|ßig)|(fif|six|seven|eigh|nine|thir|four|twen|for)\w*(teen|ty)")


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    return draw()


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return build_corpus()


@pytest.fixture(scope="module")
def train(drawn: Drawn) -> list[Sentence]:
    return drawn.sentences["train"]


@pytest.fixture(scope="module")
def everything(drawn: Drawn) -> list[Sentence]:
    return [one for split in drawn.sentences.values() for one in split]


def words(text: object) -> list[str]:
    assert isinstance(text, str)
    return re.findall(r"[^\W\d]+", text)


@pytest.mark.medium
def test_the_corpus_in_the_repository_is_the_one_that_is_made(tmp_path: Path) -> None:
    write_corpus(tmp_path / "new" / "folder")
    made = {path.name: path.read_bytes() for path in (tmp_path / "new" / "folder").iterdir()}
    assert made == {path.name: path.read_bytes() for path in SAMPLE.glob("*.[de][en]")}
    assert sorted(made) == sorted(f"{split}.{code}" for split in (*SPLITS, "test-unseen") for code in ("de", "en"))


@pytest.mark.medium
def test_the_package_ships_the_corpus_that_is_made(tmp_path: Path) -> None:
    """Compared uncompressed: another zlib may compress otherwise."""
    write_corpus(tmp_path, compressed=True)
    made, shipped = (
        {path.name: gzip.decompress(path.read_bytes()) for path in folder.iterdir()} for folder in (tmp_path, SHIPPED)
    )
    assert made == shipped == {f"{path.name}.gz": path.read_bytes() for path in SAMPLE.glob("*.[de][en]")}
    assert all(path.read_bytes()[4:8] == bytes(4) for path in (*tmp_path.iterdir(), *SHIPPED.iterdir())), "no time"


@pytest.mark.slow  # in each run of CI the test above compares with files that another process made
def test_hash_order_changes_nothing(corpus: Corpus) -> None:
    code = (
        "import hashlib; from data.sample.make.corpus import build_corpus;"
        "print(hashlib.sha256(repr(build_corpus()).encode()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONHASHSEED": "7"}, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == hashlib.sha256(repr(corpus).encode()).hexdigest()


def test_splits_have_their_sizes_and_share_nothing(corpus: Corpus) -> None:
    splits = [corpus.train, corpus.valid, corpus.test]
    assert [len(split) for split in splits] == [20_000, 500, 500] == list(SPLITS.values())
    pairs = [pair for split in splits for pair in split]
    assert len({german for german, _ in pairs}) == len({english for _, english in pairs}) == 21_000


def test_unseen_files_repeat_the_unseen_sentences_of_test(corpus: Corpus) -> None:
    for column, code in enumerate(("de", "en")):
        lines = (SAMPLE / f"test-unseen.{code}").read_text(encoding="utf-8").splitlines()
        assert lines == [corpus.test[at][column] for at in corpus.unseen]
    assert corpus.unseen == sorted(set(corpus.unseen))
    assert len(corpus.unseen) >= 200


def test_unseen_combinations_are_nowhere_in_training(drawn: Drawn, train: list[Sentence]) -> None:
    seen = set().union(*(one.combinations for one in [*train, *drawn.sentences["valid"]]))
    for at in drawn.unseen:
        assert set(drawn.sentences["test"][at].objects) - seen, drawn.sentences["test"][at].german


def test_records_tell_what_the_text_has(everything: list[Sentence]) -> None:
    """Noun by noun: what a sentence records is in it, and no noun of the lexicon is in it unrecorded."""
    forms: dict[str, set[str]] = {}
    for name, noun in NOUNS.items():
        for form in (noun.german, noun.plural):
            if form.strip("-"):
                forms.setdefault(form, set()).add(name)
    for one in everything:
        there = [forms[word] for word in words(re.sub(r"\b[Uu]m .*? Uhr|^Essen ", "", one.german)) if word in forms]
        recorded = set(one.nouns)
        assert all(names & recorded for names in there), one
        text = one.german.lower()
        assert all(name.lower() in text or NOUNS[name].plural.lower() in text for name in recorded), one


def test_training_has_no_form_of_an_unseen_verb_beside_its_noun(drawn: Drawn, train: list[Sentence]) -> None:
    """Without the records: participles, which no two verbs share, and the noun's two stems."""
    by_word: dict[str, set[int]] = {}
    for at, one in enumerate(train):
        for word in words(one.german):
            by_word.setdefault(word, set()).add(at)
    for verb, noun in drawn.held_out:
        forms = {NOUNS[noun].german, NOUNS[noun].plural}
        beside = set().union(*(by_word.get(form, set()) for form in forms))
        assert beside
        if VERB[verb].participle not in ("übersetzt", "verkauft", "bezahlt", "bestellt", "vergessen", "besucht"):
            assert not beside & by_word.get(VERB[verb].participle, set()), (verb, noun)


def test_training_knows_both_words_of_an_unseen_combination_well(drawn: Drawn, train: list[Sentence]) -> None:
    verbs = Counter(verb for one in train for verb, _ in set(one.objects))
    nouns = Counter(noun for one in train for noun in set(one.nouns))
    partners = {pair for one in train for pair in one.objects}
    for verb, noun in drawn.held_out:
        assert verbs[verb] >= 50, verb
        assert nouns[noun] >= 40, noun
        assert sum(pair[0] == verb for pair in partners) >= 4, verb
        assert sum(pair[1] == noun for pair in partners) >= 4, noun
    assert len({verb for verb, _ in drawn.held_out}) >= 25
    assert len({noun for _, noun in drawn.held_out}) >= 50


@pytest.mark.parametrize("column", [0, 1])
def test_there_are_words_enough(train: list[Sentence], column: int) -> None:
    counts = Counter(word.lower() for one in train for word in words(one[column]))
    plain = [word for word in counts if not NUMBER.fullmatch(word)]
    assert len(plain) >= 600
    assert sum(counts[word] >= 10 for word in plain) >= 500


def test_hardly_a_word_of_test_is_new(drawn: Drawn, train: list[Sentence]) -> None:
    for column in (0, 1):
        known = {word.lower() for one in train for word in words(one[column])}
        new = {word.lower() for one in drawn.sentences["test"] for word in words(one[column])} - known
        assert len(new) <= 5, new


@pytest.mark.slow  # ten thousands of sentences are made anew
def test_the_same_german_has_one_english() -> None:
    dice, english_of = Dice(99), dict[str, str]()
    for _ in range(30_000):
        made = sentence(dice)
        assert english_of.setdefault(made.german, made.english) == made.english


def test_sentences_are_sentences(everything: list[Sentence]) -> None:
    for one in everything:
        for text in (one.german, one.english):
            assert re.fullmatch(r"[A-ZÄÖÜ][\w ,.:'-]*[^ ,][.?]", text), text
            assert not re.search(r"  | [.,?]|\.\.|\bNone\b", text), text
        assert (one.german[-1] == "?") == (one.english[-1] == "?"), one
        assert 4 <= len(one.german.split()) <= 14, one
        assert len(one.english.split()) <= 14, one
        digits = re.findall(r"\d+", one.german), re.findall(r"\d+", one.english)
        assert digits[0] == digits[1], one


def test_english_articles_and_doubles(everything: list[Sentence]) -> None:
    for one in everything:
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", one.english), one
        assert not any(first == second for first, second in pairwise(one.english.split())), one


def test_german_contracts_its_prepositions(everything: list[Sentence]) -> None:
    for one in everything:
        assert not re.search(r"\b(in|an|zu|bei) dem\b|\b(in|an) das\b", one.german), one


def test_articles_fit_their_nouns(everything: list[Sentence]) -> None:
    """An article right before a noun in the singular has a gender; these forms leave but one."""
    genders = {"das": "n", "im": "mn", "ins": "n", "einen": "m", "eine": "f", "einer": "f", "einem": "mn", "des": "mn",
               "dieses": "mn", "keinen": "m", "meinem": "mn", "meinen": "m", "dieser": "mf", "dem": "mn"}  # fmt: skip
    singular = {noun.german: noun.gender for noun in NOUNS.values() if noun.german != noun.plural}
    checked = 0
    for one in everything:
        for article, noun in re.findall(r"\b(\w+) ([A-ZÄÖÜ]\w+)", one.german):
            if article in genders and noun in singular and not NOUNS[noun].weak:
                assert singular[noun] in genders[article], one
                checked += 1
    assert checked > 4000


def test_mixed_and_strong_adjectives_show_the_gender(everything: list[Sentence]) -> None:
    checked = 0
    for one in everything:
        for ending, noun in re.findall(
            r"\b(?:[Ee]in|[mdsk]ein|[Mm]ein|[Uu]nser) [a-zäöüß]+(e[rs]) ([A-ZÄÖÜ]\w+)", one.german
        ):
            if noun in NOUNS:
                assert NOUNS[noun].gender == {"er": "m", "es": "n"}[ending], one
                checked += 1
    assert checked > 300


def test_verbs_agree_with_their_pronouns(everything: list[Sentence]) -> None:
    """`sie` with a plural is they, with a singular she; du has its st or t."""
    for one in everything:
        if found := re.match(r"Sie (\w+) ", one.german):
            plural = found[1] == "sind" or (found[1].endswith("n") and found[1] != "kann")
            assert one.english.startswith("They" if plural else "She"), one
        if found := re.match(r"Du (\w+) ", one.german):
            assert found[1].endswith("t"), one
        assert not re.match(r"(He|She|It) (are|were|have|do) |(They|We) (is|was|has|does) ", one.english), one


_APART = r"\b(macht|machte|räumt|ruft|lädt|zieht|probiert|packt|holt|hört)\w* .*\b(auf|zu|an|aus|ein|ab)[.,?]"
_TOGETHER = r", (dass|ob|weil|wenn) .*(auf|zu|an|aus|ein|ab|mit)(macht|ruft|zieht|lädt|packt|holt|bringt|kauft)\w*[.,?]"
_PLACES = r"(Garten|Park|See|Stadt|Küche|Markt|Sofa|Baum|Kirche|Tisch)"
PHENOMENA = {  # at least so often in training, in German
    "separable verb, apart": (_APART, 400),
    "separable verb, together in the participle": (r"(auf|zu|an|aus|ein|ab|mit|vor|zurück)ge\w+(t|en)\b", 400),
    "separable verb, together in a clause": (_TOGETHER, 40),
    "perfect with haben": (r"\b(habe|hast|hat|haben)\b.* (ge\w+|\w+ge\w+(t|en)|\w+iert)\b", 2000),
    "perfect with sein": (r"\b(bin|bist|ist|sind)\b.* \w*ge(gangen|fahren|reist|flogen|laufen|kommen|standen)\b", 250),
    "future": (r"\b(werde|wirst|wird|werden)\b", 1000),
    "modal": (r"\b(kann|muss|will|darf|soll|möchte|konnte|musste|wollte|durfte)\w*\b", 1000),
    "nicht": (r"\bnicht\b", 500),
    "kein": (r"\bkein\w*\b", 500),
    "dass": (r", dass ", 700),
    "ob": (r", ob ", 300),
    "weil": (r", weil ", 400),
    "wenn": (r"\b[Ww]enn ", 600),
    "relative der": (r", der \w+", 100),
    "relative den": (r", den \w+", 80),
    "relative dem or denen": (r", (dem|denen|der) ", 60),
    "zu with an infinitive": (r"\bzu \w+en\.|(auf|an|aus|ein|ab|vor|zu|mit)zu\w+en\.", 250),
    "genitive": (r"\b(des|meines|meiner|deines|unserer|unseres) [A-ZÄÖÜ]", 800),
    "genitive of a name": (r"\b(Annas|Marias|Julias|Lenas|Peters|Pauls|Martins|Simons) ", 600),
    "dative of a person": (r"\b(dem|meinem|unserem|deiner|meiner) (Mann|Kind|Bruder|Lehrer|Schwester|Mutter)", 150),
    "ones before tens": (r"\b\w+und(zwanzig|dreißig|vierzig|fünfzig|sechzig|siebzig|achtzig|neunzig)\b", 500),
    "half past": (r"\bum halb \w+", 200),
    "clock in digits": (r"\bum \d+\.\d\d Uhr\b", 150),
    "date": (r"\bam \d+\. [A-Z]", 400),
    "year": (r"\bim Jahr \d{4}\b", 40),
    "direction": (r"\b(ins|auf den|in den|in die|nach|unter das|hinter die|neben das) [A-ZÄÖÜ]", 500),
    "place": (r"\b([Ii]m|[Aa]m|[Ii]n der|[Aa]uf dem|[Uu]nter dem|[Vv]or der) " + _PLACES, 1000),
    "time in front": (r"^(Gestern|Morgen|Heute|Jetzt|Am|Um|Im|Vor|In|Letzte|Nächste|Jeden) .*", 1500),
    "object in front": (r"^(Den|Dem|Diesen|Meinen|Meinem|Deinen|Unseren) .*", 100),
    "because of": (r"\bwegen des\b", 40),
    "comparison": (r"er als (der|die|das|dies|mein|dein|unser)", 200),
}  # fmt: skip


@pytest.mark.parametrize("name", PHENOMENA)
def test_every_phenomenon_is_there_often(train: list[Sentence], name: str) -> None:
    pattern, least = PHENOMENA[name]
    assert sum(bool(re.search(pattern, one.german)) for one in train) >= least


def test_every_kind_of_sentence_is_there(train: list[Sentence]) -> None:
    kinds = Counter(one.kind for one in train)
    expected = {"statement", "yes-no", "wer", "was", "wen", "wem", "welch", "wo", "wohin", "wann", "dass", "ob", "weil",
                "wenn", "relative-nom", "relative-acc", "relative-dat", "zu", "als", "sein", "liegen", "gehören",
                "gefallen", "es gibt", "Jahre", "Euro"}  # fmt: skip
    assert set(kinds) == expected
    assert min(kinds.values()) >= 40


@pytest.mark.parametrize(
    ("pattern", "least"),
    [
        (r"\b(does|do|did) not \w+", 500),
        (r"^(Does|Do|Did) .*\?", 500),
        (r"\b(am|is|are) \w+ing\b", 1500),
        (r"\b(will|cannot|would like to|has to|had to|wants to)\b", 800),
        (r"\bwho (is|are|was|had|will) ", 100),
        (r"s' ", 100),
        (r"\bbecause\b", 400),
    ],
)
def test_english_has_its_own(train: list[Sentence], pattern: str, least: int) -> None:
    assert sum(bool(re.search(pattern, one.english)) for one in train) >= least


def test_the_program_writes_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path / "out")])
    assert "20,000 train" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "inner"):
        with pytest.raises(SystemExit, match="2"):
            main([str(folder)])
        assert re.search(r"error: .*file.*: cannot write .*\n$", capsys.readouterr().err)


def test_the_readme_beside_the_corpus_is_current(drawn: Drawn) -> None:
    text = (SAMPLE / "README.md").read_text(encoding="utf-8")
    assert f"| {len(drawn.unseen)} |" in text
    assert f"Of the {len(drawn.held_out)} combinations" in text
    example = re.search(r"\(`(\w+)` with `(\w+)`", text)
    assert example is not None
    assert example.groups() in drawn.held_out
