"""The models that are served: loaded, each with the queue before it, found by the languages of a request. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from transformer_cli.data.quality.languages import find_identifier
from transformer_cli.decoding.loading import FoundModel
from transformer_cli.decoding.translation import Translation
from transformer_cli.errors import UserError
from transformer_cli.jobs.translating import LineTranslator, TranslationOptions
from transformer_cli.protected.protector import Protector
from transformer_cli.protected.spans import Glossary
from transformer_cli.serve.batching import Batcher, Wish
from transformer_cli.serve.languages import Detected, detect, match, name_of, plain
from transformer_cli.serve.limits import Limits

SURE = 90.0  # how sure it must be that a text is in the target's language already, to leave it as it is


@dataclass(frozen=True)
class Serving:
    """What is served, and how: it can be loaded again."""

    options: tuple[TranslationOptions, ...]  # of each model
    glossaries: Mapping[str, Path] = field(default_factory=dict)  # by the names that requests use
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Raise `UserError` where two models are of the same languages, or a glossary cannot be read."""
        pairs: dict[tuple[str, str], Path] = {}
        for one in self.options:
            data = one.model.config.data
            pair = plain(data.source_language), plain(data.target_language)
            if pair in pairs:
                raise UserError(
                    f"{pairs[pair]} and {one.model.name}: both translate {' to '.join(pair)}; serve one of them"
                )
            pairs[pair] = one.model.name
        for path in self.glossaries.values():
            Glossary.read(path)

    def found_again(self) -> "Serving":
        """Return the same with the models that are there now. Raises `UserError` where one is not."""
        again = (replace(one, model=FoundModel.at(one.model.name)) for one in self.options)
        return replace(self, options=tuple(again))

    def load(self) -> "Models":
        """Load all models. Raises `UserError` as `TranslationOptions.load` does."""
        glossaries = {name: Glossary.read(path) for name, path in self.glossaries.items()}
        return Models(
            [ServedModel(one.load(), glossaries, self.limits) for one in self.options],
            sorted(glossaries),
        )


class ServedModel:
    """A model with its languages and its queue."""

    def __init__(self, loaded: LineTranslator, glossaries: Mapping[str, Glossary], limits: Limits) -> None:
        data = loaded.options.model.config.data
        self.source, self.target = data.source_language, data.target_language
        self.name = loaded.options.model.name.name
        self.loaded = loaded
        self.identifier = find_identifier(loaded.options.model.folder)
        self.batcher = Batcher(self._search, most_waiting=limits.max_waiting, cached=limits.cache)
        self._protectors = {
            name: Protector(loaded.translator, glossary) for name, glossary in [(None, None), *glossaries.items()]
        }

    def _search(self, texts: list[str], wish: Wish) -> list[Translation]:
        """Translate lines as `tfm translate` does; a list of several asks for a beam of as many at least."""
        own = self.loaded.options
        options = own.search_options
        if wish.n_best > 1:
            beam = max(wish.n_best, options.beams)
            changes = {"method": "beam", "beam_size": beam, "n_best": wish.n_best}
            options = own.model.search_options({**own.search, **changes})
        protected = wish.protect or wish.glossary is not None
        translator = self._protectors[wish.glossary] if protected else self.loaded.translator
        return list(translator.translate_lines(texts, options, alignments=wish.alignments))


class Models:
    """Some models that are served together."""

    def __init__(self, models: Sequence[ServedModel], glossaries: Sequence[str]) -> None:
        self.models = models
        self.glossaries = glossaries
        self.users = 0  # requests that are using them

    @property
    def languages(self) -> list[str]:
        """All languages, sources first."""
        return list(dict.fromkeys([*(one.source for one in self.models), *(one.target for one in self.models)]))

    def lines(self) -> list[str]:
        """Return a line for each model: its languages, its name and its engine."""
        return [
            f"{one.source} to {one.target}: {one.name}, {one.loaded.translator.engine_choice}" for one in self.models
        ]

    def describe(self) -> list[dict[str, object]]:
        """Return what `GET /languages` answers."""
        return [
            {
                "code": code,
                "name": name_of(code),
                "targets": [one.target for one in self.models if one.source == code],
            }
            for code in self.languages
        ]

    def find(self, source: str, target: str) -> ServedModel | None:
        """Return the model for two languages, as `languages` writes them."""
        return next((one for one in self.models if (one.source, one.target) == (source, target)), None)

    def match(self, code: str) -> str | None:
        """Return which of the languages a request means; None: none of them."""
        return match(code, self.languages)

    def detect(self, text: str, known: Sequence[str] | None = None) -> list[Detected]:
        """Return which of the languages, or of those that are `known`, a text is in; the likeliest first."""
        identifiers = [one.identifier for one in self.models if one.identifier is not None]
        return detect(text, self.languages if known is None else known, identifiers)

    def detect_source(self, text: str, target: str) -> Detected:
        """Return the language that a text is to be translated to `target` from, which may be that very one."""
        sources = [one.source for one in self.models if one.target == target]
        found = self.detect(text, list(dict.fromkeys([*sources, target])))
        if found[0].language == target and found[0].confidence < SURE and target not in sources:
            found = [one for one in found if one.language != target] or found
        return found[0]

    def start(self) -> None:
        """Begin to translate, in the running event loop."""
        for one in self.models:
            one.batcher.start()

    async def close(self) -> None:
        """Stop."""
        for one in self.models:
            await one.batcher.close()
