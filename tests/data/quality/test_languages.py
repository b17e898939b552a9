"""Two languages are told apart by what the corpus looks like; what was saved with a run answers the same."""

import random
from pathlib import Path

import numpy as np
import pytest

from tests.data.quality.conftest import Pair
from transformer_cli.data.quality.languages import FILE, LanguageIdentifier, find_identifier
from transformer_cli.errors import UserError
from transformer_cli.storage.publishing import publish


@pytest.fixture(scope="module")
def identifier(sample: list[Pair]) -> LanguageIdentifier:
    sources, targets = zip(*sample[:4000], strict=True)
    found = LanguageIdentifier.learn(sources, targets, languages=("de", "en"))
    assert found is not None
    return found


def test_texts_are_identified(identifier: LanguageIdentifier, sample: list[Pair]) -> None:
    for source, target in sample[4000:4100]:
        assert (identifier.identify(source)[0], identifier.identify(target)[0]) == ("de", "en")
    name, certainty = identifier.identify("Der Hund schläft im Garten.")
    assert name == "de"
    assert 0.99 < certainty <= 1
    assert identifier.identify("")[1] == 0.5


def test_what_is_saved_answers_the_same(identifier: LanguageIdentifier, sample: list[Pair], tmp_path: Path) -> None:
    identifier.save(tmp_path / FILE)
    assert (tmp_path / FILE).stat().st_size <= 1_000_000
    back = LanguageIdentifier.load(tmp_path / FILE)
    assert back.languages == ("de", "en")
    texts = [text for pair in sample[:300] for text in pair]
    for side in (0, 1):
        one, other = identifier.score(texts, side), back.score(texts, side)
        assert np.allclose(one.odds, other.odds, atol=0.01)
        assert identifier.is_other(one, side).tolist() == back.is_other(other, side).tolist()


def test_a_tenth_of_swapped_pairs_is_not_learned(sample: list[Pair]) -> None:
    draw = random.Random(1)
    is_swapped = [draw.random() < 0.1 for _ in range(3000)]
    pairs = [pair[::-1] if swapped else pair for pair, swapped in zip(sample[:3000], is_swapped, strict=True)]
    found = LanguageIdentifier.learn([source for source, _ in pairs], [target for _, target in pairs])
    assert found is not None
    scores = found.score([source for source, _ in pairs], 0)
    assert found.is_other(scores, 0).tolist() == [
        swapped and count >= 12 for swapped, count in zip(is_swapped, scores.characters, strict=True)
    ]


def test_one_language_on_both_sides_is_not_told_apart(sample: list[Pair]) -> None:
    texts = [target for _, target in sample[:4000]]
    assert LanguageIdentifier.learn(texts[:2000], texts[2000:]) is None
    assert LanguageIdentifier.learn(*zip(*sample[:100], strict=True)) is None


def test_numbers_say_nothing_of_languages(identifier: LanguageIdentifier) -> None:
    scores = identifier.score(["1234 x 5678 mm", "12345678901234567890"], 0)
    assert scores.characters.tolist() == [8, 2]  # with the spaces around
    assert not identifier.is_foreign(scores, 0).any()


def test_it_is_found_beside_a_model(identifier: LanguageIdentifier, tmp_path: Path) -> None:
    model = tmp_path / "run" / "step-00000001"
    model.mkdir(parents=True)
    assert find_identifier(model) is None
    publish(tmp_path / "run" / "vocab", lambda folder: identifier.save(folder / FILE))
    (tmp_path / "link").symlink_to(model)
    for path in (model, tmp_path / "link"):
        found = find_identifier(path)
        assert found is not None
        assert found.languages == ("de", "en")
    (tmp_path / "run" / "vocab" / FILE).write_bytes(b"damaged")
    with pytest.raises(UserError, match="the file is damaged"):
        find_identifier(model)
