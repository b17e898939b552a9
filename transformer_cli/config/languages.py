"""Languages are named by codes, ISO 639's with the subtags of BCP 47: `de`, `jpn`, `pt-BR`, `zh_Hant`.

A new run is refused where one is anything else (`training.start` asks), for much follows from the code without a word:
BLEU's tokenizer, spaCy's, whether words have spaces between them. A config that a run has saved is read as it is.
"""

import difflib
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from transformer_cli.config.sections import DataConfig
from transformer_cli.config.yaml_file import SHOWN
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from iso639 import Lang

NO_CODE = "use an ISO 639 code such as de, ja, jpn or pt-BR; for a language that has none, one of qaa to qtz"

# Countries' codes that people take for their languages'. Four are codes too, of other languages.
COUNTRIES = {
    **{"al": "sq", "by": "be", "cn": "zh", "cz": "cs", "dk": "da", "ee": "et", "ge": "ka", "gr": "el", "il": "he"},
    **{"ir": "fa", "jp": "ja", "kr": "ko", "kz": "kk", "rs": "sr", "se": "sv", "si": "sl", "ua": "uk", "vn": "vi"},
}

# RFC 5646, section 2.1, with `_` as good as `-`: extended language, script, region, variants, extensions, private use.
_TAG = re.compile(
    r"""(?P<language>[a-z]{2,3}) (-[a-z]{3}){0,3} (-[a-z]{4})? (-([a-z]{2}|[0-9]{3}))?
    (-([a-z0-9]{5,8}|[0-9][a-z0-9]{3}))* (-[a-wyz0-9](-[a-z0-9]{2,8})+)* (-x(-[a-z0-9]{1,8})+)?""",
    re.VERBOSE,
)
_PRIVATE = re.compile(
    r"x(-[a-z0-9]{1,8})+|q[a-t][a-z](-[a-z0-9]{1,8})*"
)  # made-up languages; qaa to qtz are ISO 639-2's
_IN_BRACKETS = re.compile(r"\s*\([^)]*\)")  # "Malay (macrolanguage)"


def check_languages(data: DataConfig) -> None:
    """Raise `UserError` where a language of the data is not a code; a name is answered with its code."""
    for key in ("source_language", "target_language"):
        if (fault := code_fault(getattr(data, key))) is not None:
            raise UserError(f"data.{key}: {fault}")


def code_fault(text: str) -> str | None:
    """Return what is wrong with a language code and what to write, such as `… is not a language code; Japanese is ja`;
    None: it is one."""
    text = text[:SHOWN]
    tag = text.lower().replace("_", "-")
    if _PRIVATE.fullmatch(tag):
        return None
    from iso639 import Lang, is_language  # here, so that no other command waits for its tables
    from iso639.exceptions import DeprecatedLanguageValue, InvalidLanguageValue

    match = _TAG.fullmatch(tag)
    if match is not None and not any(is_language(part.title(), "name") for part in tag.split("-")[1:]):  # Old_English
        try:
            Lang(match["language"])
            return None
        except DeprecatedLanguageValue as error:
            now = f"it is {_code(Lang(error.change_to))} now" if error.change_to else NO_CODE
            return f"{text!r} is a code that ISO 639 has withdrawn; {now}"
        except InvalidLanguageValue:
            pass
    return f"{text!r} is not a language code; {_meant(text)}"


def country_hint(code: str) -> str | None:
    """Return which language a code is that may have been meant as a country's; None: it is no country's."""
    from iso639 import Lang

    meant = COUNTRIES.get(code.lower())
    if meant is None or code_fault(code) is not None:
        return None
    return f"{code} is {Lang(code.lower()).name}; {Lang(meant).name} is {meant}"


def covers(language: str, tag: str) -> bool:
    """Return whether a code stands for what a tag names: `de` does for `de`, `DE` and `de_AT`, `de-AT` not for `de`."""
    language, tag = (code.lower().replace("_", "-") for code in (language, tag))
    return bool(language) and (tag == language or tag.startswith(f"{language}-"))


def code_of(word: str) -> str | None:
    """Return the code that a word is, such as `de` or `pt-BR`, or whose English name it is; None: it is neither."""
    if code_fault(word) is None:
        return word
    from iso639 import iter_langs

    return next((one.pt1 for one in iter_langs() if one.pt1 and word.casefold() in {*_names(one)}), None)


def short_code(code: str) -> str:
    """Return the code of two letters for one of three, where the language has one; else the code itself."""
    from iso639 import Lang
    from iso639.exceptions import DeprecatedLanguageValue, InvalidLanguageValue

    try:
        return Lang(code).pt1 or code
    except (DeprecatedLanguageValue, InvalidLanguageValue):
        return code


def language_name(code: str) -> str:
    """Return the English name of a language; the code where it has none."""
    from iso639 import Lang
    from iso639.exceptions import DeprecatedLanguageValue, InvalidLanguageValue

    try:
        return _IN_BRACKETS.sub("", str(Lang(code.partition("-")[0]).name)).strip()
    except (DeprecatedLanguageValue, InvalidLanguageValue):
        return code


def _meant(text: str) -> str:
    """Return the code of the language that a text names or nearly names, or what a code looks like."""
    country = re.split("[-_]", text.lower())[0]
    if country in COUNTRIES:
        return f"{country} is a country: did you mean {COUNTRIES[country]}?"
    name = text.replace("_", " ").replace("-", " ").strip().casefold()
    known = _known()
    if name in known:
        return f"{text} is {_code(known[name])}"
    usual = {name: language for name, language in known.items() if language.pt1}
    words = {word for word in name.split() if len(word) > 3}
    near = [word for word in words if word in usual]  # Brazilian Portuguese
    near = near or [one for one in usual if words & {*one.split()}]  # Greek: Modern Greek
    near = near or [one for one in known if words & {*one.split()} and "sign" not in one]  # Mandarin: Mandarin Chinese
    near = near or difflib.get_close_matches(name, usual, n=1, cutoff=0.88)  # Deutsch is not Dutch
    return f"{near[0].title()} is {_code(known[near[0]])}" if near else NO_CODE


@cache
def _known() -> dict[str, "Lang"]:
    """Return the language of every name; of two, that with a code of two letters."""
    from iso639 import iter_langs

    languages = sorted(iter_langs(), key=lambda language: bool(language.pt1))
    return {name: language for language in languages for name in _names(language)}


def _names(language: "Lang") -> Iterator[str]:
    for name in (language.name, *language.other_names()):
        yield " ".join(re.findall(r"\w+", _IN_BRACKETS.sub("", name).casefold()))


def _code(language: "Lang") -> str:
    return language.pt1 or language.pt3 or language.pt5
