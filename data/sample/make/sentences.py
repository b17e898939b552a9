"""A sentence pair with the grammar's record of what is in it."""

from typing import NamedTuple

from data.sample.make.clauses import BE, Clause
from data.sample.make.lexicon import VERBS


class Sentence(NamedTuple):
    """A pair with its kind, its full verbs, its nouns, and verb and noun where one is the other's object."""

    german: str
    english: str
    kind: str
    verbs: tuple[str, ...]
    nouns: tuple[str, ...]
    objects: tuple[tuple[str, str], ...] = ()

    @property
    def combinations(self) -> set[tuple[str, str]]:
        """Every verb with every noun that it shares the sentence with."""
        return {(verb, noun) for verb in self.verbs for noun in self.nouns}


Wanted = tuple[str, str]  # a verb and the noun that is to be its object


def possible() -> list[Wanted]:
    """Every verb with every noun it can have as an object."""
    return [(verb.lemma, noun) for verb in VERBS for noun in verb.objects]


def record(
    kind: str, text: str, text_en: str, *parts: Clause, nouns: tuple[str, ...] = (), verbs: tuple[str, ...] = ()
) -> Sentence:
    """A sentence of these clauses; `nouns` and `verbs` are what it has beside them."""
    verbs += tuple(part.verb.lemma for part in parts if part.verb is not BE)
    used = tuple(noun for part in parts for noun in part.nouns()) + nouns
    objects = tuple((one.verb.lemma, one.object.nouns[0]) for one in parts if one.object and one.object.nouns)
    return Sentence(capital(text), capital(text_en), kind, verbs, used, objects)


def capital(text: str) -> str:
    """As a sentence begins."""
    return text[0].upper() + text[1:]
