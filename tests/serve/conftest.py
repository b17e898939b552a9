"""Two small models, German to English and back, of random weights, and an application that serves them."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.cli.conftest import CONFIG, write_corpus, write_run
from transformer_cli.data.quality.languages import FILE, LanguageIdentifier
from transformer_cli.decoding.loading import FoundModel
from transformer_cli.jobs.translating import TranslationOptions
from transformer_cli.serve.app import create_app
from transformer_cli.serve.limits import Limits, Meter
from transformer_cli.serve.models import Serving
from transformer_cli.serve.translating import Service
from transformer_cli.storage.publishing import publish

GERMAN, ENGLISH = "der hund und das wasser laufen mit diesem ding", "the dog and the water run with this thing"
Client = Callable[..., TestClient]


def identifier() -> LanguageIdentifier:
    draw = random.Random(1)
    sides = [[" ".join(draw.choices(text.split(), k=6)) for _ in range(300)] for text in (GERMAN, ENGLISH)]
    found = LanguageIdentifier.learn(sides[0], sides[1], languages=("de", "en"))
    assert found is not None
    return found


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run folders, by their languages; that of `de-en` can tell both languages."""
    folder = tmp_path_factory.mktemp("served")
    write_corpus(folder)
    runs = {}
    for name, languages in (("de-en", ("de", "en")), ("en-de", ("en", "de"))):
        text = CONFIG.format(folder=folder, tokenizer="sentencepiece", positions="sinusoidal")
        for key, old, new in zip(("source", "target"), ("de", "en"), languages, strict=True):
            text = text.replace(f"{key}_language: {old}", f"{key}_language: {new}")
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        runs[name] = folder / name
        write_run(folder / f"{name}.yaml", runs[name], [2, 4])
    publish(runs["de-en"] / "vocab", lambda new: identifier().save(new / FILE))
    return runs


@pytest.fixture(scope="session")
def serving(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Serving]:
    """What is served: both models with a glossary, or those that are named; `limits` as keywords."""
    glossary = tmp_path_factory.mktemp("glossaries") / "terms.tsv"
    glossary.write_text("hund\thound\n", encoding="utf-8")

    def make(*names: str, **limits: Any) -> Serving:
        found = [TranslationOptions(FoundModel.at(models[name])) for name in names or models]
        return Serving(tuple(found), {"terms": glossary}, Limits(**limits))

    return make


@pytest.fixture(scope="module")
def make_client(serving: Callable[..., Serving]) -> Iterator[Client]:
    """Open an application: with limits as keywords, and `service` for what else a `Service` may have."""
    opened: list[TestClient] = []

    def make(*names: str, service: dict[str, Any] | None = None, **limits: Any) -> TestClient:
        what = serving(*names, **limits)
        client = TestClient(create_app(Service(what, what.load(), Meter(what.limits), **(service or {}))))
        client.__enter__()
        opened.append(client)
        return client

    yield make
    for client in opened:
        client.__exit__()


@pytest.fixture(scope="module")
def client(make_client: Client) -> TestClient:
    return make_client()


def translate(**more: Any) -> dict[str, Any]:
    """Return the parameters of most requests."""
    return {"source": "de", "target": "en", **more}
