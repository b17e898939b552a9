"""Evaluating is translating and scoring: in order, in windows, with faults found before the first sentence."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transformer_cli.errors import UserError
from transformer_cli.evaluation import evaluate as module
from transformer_cli.evaluation.evaluate import (
    METRICS,
    bleu_tokenizer,
    corpus_metric,
    corpus_scores,
    evaluate,
    read_test_set,
    suggests_language,
)

HYPOTHESES = ["A dog runs through the snow .", "Two men are sitting on a bench.", ""]
REFERENCES = ["A dog is running through the snow.", "Two men sit on a bench.", "Nothing"]

EAST_ASIAN = {  # lines of hypothesis and reference
    "ja": [
        ("犬が雪の中を走っています。", "一匹の犬が雪の中を走っている。"),
        ("二人の男がベンチに座っている。", "二人の男性がベンチに座っています。"),
        ("彼女はToyotaの車を2台買いました。", "彼女はトヨタの車を2台買った。"),
        ("「はい」と言った。", "「はい」と答えた。"),
    ],
    "zh": [
        ("一只狗在雪地里跑。", "一只狗正在雪地里奔跑。"),
        ("两个男人坐在长椅上。", "两名男子坐在长凳上。"),
        ("她买了2辆Toyota汽车。", "她买了两辆Toyota汽车。"),
        ("他说：“好的，谢谢！”", "他回答：“好，谢谢！”"),
    ],
    "ko": [
        ("개가 눈 속을 달리고 있다.", "개 한 마리가 눈 속을 달리고 있다."),
        ("두 남자가 벤치에 앉아 있습니다.", "두 남자가 벤치에 앉아 있다."),
        ("그녀는 Toyota 차를 2대 샀다.", "그녀는 Toyota 자동차를 2대 샀다."),
        ('그는 "네"라고 말했다.', '그는 "네"라고 대답했다.'),
    ],
}


class Shouter:
    """Translates by upper-casing, and remembers what it was asked for."""

    def __init__(self, language: str = "en") -> None:
        self.config: Any = SimpleNamespace(data=SimpleNamespace(target_language=language))
        self.windows: list[int] = []
        self.now = 100.0  # a window takes two seconds

    def translate_batch(
        self, texts: Sequence[str], options: Any = None, *, alignments: bool, tag: str | None
    ) -> list[Any]:
        assert not alignments
        self.now += 2.0
        self.windows.append(len(texts))
        return [SimpleNamespace(text=text.upper()) for text in texts]


def test_translations_keep_their_order_over_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 3)
    sources = [f"line {number}" for number in range(8)]
    translator: Any = Shouter()
    monkeypatch.setattr("time.monotonic", lambda: translator.now)
    reported: list[int] = []
    evaluation = evaluate(translator, sources, [[line.upper() for line in sources]], report=reported.append)
    assert evaluation.translations == [line.upper() for line in sources]
    assert translator.windows == [3, 3, 2]
    assert reported == [3, 6, 8]
    assert [score.name for score in evaluation.scores] == ["BLEU", "chrF2", "TER"]
    assert evaluation.scores[1].score == pytest.approx(100.0)
    assert evaluation.seconds == 3 * 2.0, "of translating alone"


def test_an_unknown_metric_is_found_before_translating() -> None:
    translator: Any = Shouter()
    with pytest.raises(UserError, match="no metric"):
        evaluate(translator, ["a"], [["b"]], metrics=["bleu", "meteor"])
    assert translator.windows == []


def test_reading_drops_and_counts_carriage_returns_and_marks(tmp_path: Path) -> None:
    source, reference = tmp_path / "source", tmp_path / "reference"
    source.write_bytes("\ufeffa\r\nb\u2028c\r\nd".encode())
    reference.write_bytes(b"1\n2\n3\n")
    test_set = read_test_set(source, [reference, reference])
    assert test_set.sources == ["a", "b\u2028c", "d"]
    assert test_set.references == [["1", "2", "3"]] * 2
    assert len(test_set.notes) == 2
    assert all(note.startswith(f"{source}: dropped") for note in test_set.notes)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"a\n", "has 1 lines, but"), (b"a\n\xff\n", ":2: is not valid UTF-8")],
)
def test_files_that_do_not_fit_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    source, reference = tmp_path / "source", tmp_path / "reference"
    source.write_bytes(b"" if content == b"" else b"a\nb\n")
    reference.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_test_set(source, [reference])


# --- metrics: sacreBLEU's own numbers, each with the signature that says how it was counted ---


def test_bleu_of_short_lines_may_leave_out_what_none_is_long_enough_for() -> None:
    short, longer = ["good day", "yes", "the house"], ["a b c d e f", "yes"]
    assert corpus_metric("bleu", short, [short], "en").score == 0.0
    assert corpus_metric("bleu", short, [short], "en", effective_order=True).score == pytest.approx(100.0)
    references = [["a b c d x y", "yes no"]]
    both = [corpus_metric("bleu", longer, references, "en", effective_order=order).score for order in (False, True)]
    assert both[0] == both[1] > 0.0


def test_equals_sacrebleus_own_functions() -> None:
    import sacrebleu

    bleu, chrf, chrf_words, ter = corpus_scores(HYPOTHESES, [REFERENCES], "en", METRICS)
    assert bleu.score == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert chrf.score == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert chrf_words.score == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES], word_order=2).score
    assert ter.score == sacrebleu.corpus_ter(HYPOTHESES, [REFERENCES]).score
    assert [score.name for score in (bleu, chrf, chrf_words, ter)] == ["BLEU", "chrF2", "chrF2++", "TER"]


def test_intervals_are_those_of_sacrebleus_own_bootstrap() -> None:
    """Mean, 95 % interval and signature of `n_bootstrap=1000`; without them the signature says so."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    hypotheses, references = HYPOTHESES * 20, REFERENCES[:1] * 20 + REFERENCES * 10 + REFERENCES[2:] * 10
    found = corpus_scores(hypotheses, [references], "en", METRICS, intervals=True)
    for scorer, score in zip([BLEU(force=True), CHRF(), CHRF(word_order=2), TER()], found, strict=True):
        expected = scorer.corpus_score(hypotheses, [references], n_bootstrap=1000)
        assert score.score == expected.score
        assert score.mean == pytest.approx(float(expected._mean), rel=1e-6)
        assert score.interval == pytest.approx(float(expected._ci), rel=1e-6)
        assert (score.signature, score.short_signature) == (
            str(scorer.get_signature()),
            scorer.get_signature().format(short=True),
        )
    (plain,) = corpus_scores(HYPOTHESES, [REFERENCES], "en", ["bleu"])
    assert (plain.mean, plain.interval) == (None, None)
    assert "bs:" not in plain.signature


def test_one_sentence_has_an_interval_of_no_width() -> None:
    (bleu,) = corpus_scores(HYPOTHESES[:1], [REFERENCES[:1]], "en", ["bleu"], intervals=True)
    assert bleu.mean == pytest.approx(bleu.score)
    assert bleu.interval == 0.0


@pytest.mark.medium
def test_the_bootstrap_holds_one_resample_at_a_time() -> None:
    """sacreBLEU's own holds all 1,000: of these 3,000 sentences 144 MB for BLEU."""
    import tracemalloc

    corpus_scores(HYPOTHESES[:1], [REFERENCES[:1]], "en", ["bleu"], intervals=True)  # imports
    tracemalloc.start()
    corpus_scores(["a dog runs"] * 3_000, [["a dog ran"] * 3_000], "en", ["bleu"], intervals=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


@pytest.mark.parametrize("text", ["他喜欢吃苹果", "りんご", "カタカナ", "사과를"])
def test_texts_without_spaces_suggest_a_language(text: str) -> None:
    assert suggests_language(["An apple.", f"x {text}"])
    assert not suggests_language(["An apple.", "Äpfel – яблоко…"])


@pytest.mark.parametrize("metric", METRICS)
def test_perfect_translations_get_the_best_score_and_a_second_reference_never_hurts(metric: str) -> None:
    (best,) = corpus_scores(REFERENCES, [REFERENCES], "en", [metric])
    assert best.score == pytest.approx(0.0 if metric == "ter" else 100.0)
    (one,) = corpus_scores(HYPOTHESES, [REFERENCES], "en", [metric])
    (two,) = corpus_scores(HYPOTHESES, [REFERENCES, HYPOTHESES], "en", [metric])
    assert two.score <= one.score if metric == "ter" else two.score >= one.score
    assert "nrefs:1" in one.signature
    assert "nrefs:2" in two.signature


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        ("en", "13a"),
        ("zh", "zh"),
        ("zh-CN", "zh"),
        ("ZH_tw", "zh"),
        ("zho", "zh"),
        ("ja", "ja-mecab"),
        ("ko_KR", "ko-mecab"),
        ("zha", "13a"),
    ],
)
def test_tokenizer_follows_the_target_language(language: str, tokenizer: str) -> None:
    assert bleu_tokenizer(language) == tokenizer


def test_chinese_is_split_into_characters_by_bleu_and_ter() -> None:
    hypotheses, references = ["他喜欢吃苹果和梨。"], ["他喜欢吃苹果和桃。"]
    bleu, ter = corpus_scores(hypotheses, [references], "zh", ["bleu", "ter"])
    assert "tok:zh" in bleu.signature
    assert "asian:yes" in ter.signature
    assert 0 < bleu.score < 100
    assert ter.score == pytest.approx(100 / len(references[0]))  # one character replaced


@pytest.mark.medium
@pytest.mark.parametrize(("language", "package"), [("ja", "MeCab"), ("ko", "mecab_ko")])
def test_a_missing_tokenizer_is_named_with_the_extra_to_install(language: str, package: str) -> None:
    program = f"""
import sys
sys.modules[{package!r}] = None
from transformer_cli.errors import UserError
from transformer_cli.evaluation.evaluate import corpus_scores
corpus_scores(["a"], [["a"]], {language!r}, ["chrf"])  # needs no tokenizer
try:
    corpus_scores(["a"], [["a"]], {language!r}, ["bleu"])
except UserError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"pip install 'sacrebleu[{language}]'" in result.stdout
    assert result.stdout.count("\n") == 1


@pytest.mark.parametrize("language", EAST_ASIAN)
def test_scores_and_signatures_are_those_of_the_sacrebleu_command(language: str, tmp_path: Path) -> None:
    """It chooses BLEU's tokenizer by the language pair itself."""
    if package := {"ja": "MeCab", "ko": "mecab_ko"}.get(language):
        pytest.importorskip(package, reason=f"BLEU's tokenizer is not installed: pip install 'sacrebleu[{language}]'")
    hypotheses, references = map(list, zip(*EAST_ASIAN[language], strict=True))
    for name, lines in (("hypothesis", hypotheses), ("reference", references)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = [str(tmp_path / "reference"), "--input", str(tmp_path / "hypothesis")]
    options = f"--metrics bleu chrf ter --width 10 --format json --language-pair de-{language}".split()
    if language != "ko":  # no spaces between words
        options += ["--ter-normalized", "--ter-asian-support"]
    command = [sys.executable, "-m", "sacrebleu", *files, *options]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    ours = corpus_scores(hypotheses, [references], language)
    assert [(one.name, round(one.score, 10)) for one in ours] == [(one["name"], one["score"]) for one in found]
    assert all(0 < one.score < 100 for one in ours)
    for one, other in zip(ours, found, strict=True):
        assert set(one.signature.split("|")) == set(other["signature"].split("|"))


def test_an_unknown_metric_is_refused_with_the_choices() -> None:
    with pytest.raises(UserError, match=r"meteor.*bleu, chrf, chrf\+\+ or ter"):
        corpus_scores(HYPOTHESES, [REFERENCES], "en", ["meteor"])


def test_tokenized_looking_lines_put_no_advice_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    corpus_scores(["a b ."] * 200, [["a b ."] * 200], "en", ["bleu"])
    assert capfd.readouterr() == ("", "")
