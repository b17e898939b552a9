"""One clause in both languages: its verb's forms and the order of its words as statement, question or subordinate."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from data.sample.make import english, german
from data.sample.make.adverbs import Adverb
from data.sample.make.lexicon import Verb
from data.sample.make.phrases import Phrase, join

BE = Verb("", "sein", "ist", "war", "gewesen", "sein", "be", "was", (), (), frozenset({"stative", "past"}))
_HAVE = Verb("", "haben", "hat", "hatte", "gehabt", "haben", "have", "had", (), (), frozenset())
_WILL = Verb("", "werden", "wird", "wurde", "geworden", "sein", "will", "", (), (), frozenset())


class Modal(NamedTuple):
    """`auxiliary` and `main` are its English: would + like to, nothing + have to, be + allowed to."""

    singular: str  # ich, er
    second: str
    plural: str
    past: str  # nothing: not used in the past
    auxiliary: str
    past_auxiliary: str
    main: str
    past_main: str


MODALS = [
    Modal("kann", "kannst", "können", "konnte", "can", "could", "", ""),
    Modal("muss", "musst", "müssen", "musste", "", "", "have to", "had to"),
    Modal("will", "willst", "wollen", "wollte", "", "", "want to", "wanted to"),
    Modal("darf", "darfst", "dürfen", "durfte", "be", "was", "allowed to", "allowed to"),
    Modal("soll", "sollst", "sollen", "", "should", "", "", ""),
    Modal("möchte", "möchtest", "möchten", "", "would", "", "like to", ""),
]


@dataclass(frozen=True)
class Clause:
    """Who does what to whom, when and where. `tense` is present, past, perfect or future."""

    subject: Phrase
    verb: Verb
    tense: str = "present"
    modal: Modal | None = None
    receiver: Phrase | None = None
    object: Phrase | None = None
    company: Adverb | None = None
    place: Adverb | None = None
    direction: Adverb | None = None
    time: Adverb | None = None
    frequency: Adverb | None = None
    predicate: Adverb | None = None
    negated: bool = False  # by nicht; kein is the object's
    denied: bool = False  # the object has kein
    habitual: bool = False

    def nouns(self) -> tuple[str, ...]:
        """Every noun in it."""
        parts = (self.subject, self.receiver, self.object, self.company, self.place, self.direction, self.time,
                 self.predicate)  # fmt: skip
        return tuple(noun for part in parts if part for noun in part.nouns)


def changed(clause: Clause, part: str, value: Phrase | None) -> Clause:
    """The clause with another part."""
    changes: dict[str, Any] = {part: value}
    return replace(clause, **changes)


def german_verb(clause: Clause) -> tuple[str, str, str]:
    """The finite verb, what stands at the end of a main clause, and both as they end a subordinate one."""
    verb, person = clause.verb, clause.subject.person
    infinitive = verb.particle + verb.infinitive
    if clause.modal:
        modal = clause.modal
        if clause.tense == "past":
            finite = modal.past + ("n" if person[1] == "p" else "")
        else:
            finite = {"1s": modal.singular, "3s": modal.singular, "2s": modal.second}.get(person, modal.plural)
        return finite, infinitive, f"{infinitive} {finite}"
    if clause.tense == "future":
        finite = {"1s": "werde", "2s": "wirst", "3s": "wird"}.get(person, "werden")
        return finite, infinitive, f"{infinitive} {finite}"
    if clause.tense == "perfect":
        finite = german.present(_HAVE if verb.auxiliary == "haben" else BE, person)
        return finite, verb.participle, f"{verb.participle} {finite}"
    finite = german.past(verb, person) if clause.tense == "past" else german.present(verb, person)
    return finite, verb.particle, verb.particle + finite


def _middle(clause: Clause, left_out: str = "") -> list[str]:
    """What stands between the finite verb (or the conjunction, with the subject) and the end of the clause."""
    parts = {"receiver": clause.receiver, "object": clause.object}
    pronouns = [part.german for name, part in parts.items() if part and part.pronoun and name != left_out]
    full = {name: part for name, part in parts.items() if part and not part.pronoun and name != left_out}
    known = [part.german for name, part in full.items() if part.definite or name == "receiver"]
    new = [part.german for name, part in full.items() if not (part.definite or name == "receiver")]
    rest = {
        name: getattr(clause, name).german
        for name in ("time", "frequency", "company", "place", "direction", "predicate")
        if getattr(clause, name) and name != left_out
    }
    words = [*pronouns, rest.get("time", ""), rest.get("frequency", ""), *known]
    words += ["nicht" if clause.negated else "", rest.get("company", ""), rest.get("place", ""), *new]
    return [*words, rest.get("direction", ""), rest.get("predicate", "")]


def german_statement(clause: Clause, front: str = "subject") -> str:
    """The verb comes second, after `front`: the subject, the time, the place, the object or the receiver."""
    finite, tail, _ = german_verb(clause)
    if front == "subject":
        return join(clause.subject.german, finite, *_middle(clause), tail)
    return join(getattr(clause, front).german, finite, clause.subject.german, *_middle(clause, front), tail)


def german_question(clause: Clause, asked: str = "", gap: str = "") -> str:
    """`asked` is wer, wo, … for the part `gap`; nothing asks whether."""
    finite, tail, _ = german_verb(clause)
    who = "" if gap == "subject" else clause.subject.german
    return join(asked, finite, who, *_middle(clause, gap), tail)


def german_subordinate(clause: Clause, conjunction: str, gap: str = "") -> str:
    """The verb comes last; a relative pronoun is a conjunction that stands for the part `gap`."""
    who = "" if gap == "subject" else clause.subject.german
    return join(conjunction, who, *_middle(clause, gap), german_verb(clause)[2])


def german_infinitive(clause: Clause) -> str:
    """`das Fenster aufzumachen`."""
    verb = clause.verb
    to = f"{verb.particle}zu{verb.infinitive}" if verb.particle else f"zu {verb.infinitive}"
    return join(*_middle(clause), to)


def english_verb(clause: Clause, support: bool) -> tuple[str, str]:
    """The auxiliary and the rest; with `support` there is an auxiliary (do, does, did) whatever the tense."""
    verb, person, past = clause.verb, clause.subject.person, clause.tense in ("past", "perfect")
    base, forms = verb.english, (verb.english, verb.english_past)
    if clause.modal:
        modal = clause.modal
        auxiliary, main = (modal.past_auxiliary, modal.past_main) if past else (modal.auxiliary, modal.main)
        if auxiliary in ("be", "was"):
            return (english.was(person) if past else english.be(person)), f"{main} {base}"
        if auxiliary:
            return auxiliary, join(main, base)
        forms = (f"{modal.main} {base}", f"{modal.past_main} {base}")
    elif clause.tense == "future":
        return "will", base
    elif verb is BE:
        return (english.was(person) if past else english.be(person)), ""
    elif not past and "stative" not in verb.flags and not clause.habitual:
        return english.be(person), english.ing(base)
    if support:
        return ("did" if past else "does" if person == "3s" else "do"), forms[0]
    return "", forms[1] if past else english.third(forms[0]) if person == "3s" else forms[0]


def _predicate(clause: Clause, main: str, gap: str) -> list[str]:
    """The rest after the auxiliary: verb, receiver, object, company, place, time."""
    words = [main]
    parts = [getattr(clause, name) for name in ("receiver", "object") if name != gap]
    objects = [part for part in parts if part]
    first, _, particle = clause.verb.english.rpartition(" ")
    if objects and objects[0].pronoun and particle in ("up", "on", "off") and first:
        words = [main.removesuffix(particle).strip(), objects.pop(0).english, particle]
    words += [part.english for part in objects]
    rest = ("predicate", "direction", "company", "place", "time")
    return words + [getattr(clause, name).english for name in rest if getattr(clause, name) and name != gap]


def english_statement(clause: Clause, gap: str = "") -> str:
    """Subject, verb, objects, place, time. Without the part `gap`, it ends a relative clause."""
    auxiliary, main = english_verb(clause, clause.negated or clause.denied)
    no = "not" if clause.negated or clause.denied else ""
    if auxiliary == "can" and no:
        auxiliary, no = "cannot", ""
    often = clause.frequency.english if clause.frequency else ""
    who = "" if gap == "subject" else clause.subject.english
    return join(who, auxiliary, no, often, *_predicate(clause, main, gap))


def english_question(clause: Clause, asked: str = "", gap: str = "") -> str:
    """`asked` is who, where, … for the part `gap`; of the subject one asks without do."""
    if gap == "subject":
        return join(asked, english_statement(clause, "subject"))
    auxiliary, main = english_verb(clause, True)
    often = clause.frequency.english if clause.frequency else ""
    return join(asked, auxiliary, clause.subject.english, often, *_predicate(clause, main, gap))


def english_infinitive(clause: Clause) -> str:
    """`open the window`."""
    return join(*_predicate(clause, clause.verb.english, ""))
