"""What may be wrong with one sentence pair, whatever stands around it. `judge` calls it for every pair; no torch.

Each check is exact about what it looks for and silent about what may well be right: small numbers are spelled out in
one language and not in the other, and titles are copied.
"""

import contextlib
import math
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass

SPELLED_OUT = 20  # numbers up to it, and tens, are often written as words
SHORT = 8  # characters that are added to both lengths: a short text may well be twice as long as its translation
MOST_CHARACTERS = 6  # per token of the length limit; a text with more of them has more tokens, whatever the vocabulary

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff]")
# And soft hyphens, empty spaces, marks of direction …
_INVISIBLE = re.compile(rf"{_CONTROL.pattern[:-1]}\u00ad\u200b\u200e\u200f\u2060]")
_NEEDS_THEM = re.compile(r"[\u0590-\u08ff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")  # … which some scripts need
MARKUP = re.compile(r"</?[A-Za-z][^<>]*>|<!--|&(?:[A-Za-z]{2,8}|#\d{1,7}|#[xX][0-9A-Fa-f]{1,6});")
_NUMBER = re.compile(r"\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)|\d+(?:[.,:'’h]\d+)*")
_DIGIT = re.compile(r"\d")
_GROUP = re.compile(r"\d+")
_CENTS = re.compile(r"[.,]\d{1,2}$")  # 2.00 is 2; 10.000 may be ten thousand
ADDRESS = re.compile(r"(?:(?:https?|ftp)://|www\.)[^\s<>\"“”„»«]+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_MIXED = re.compile(  # Latin beside Greek or Cyrillic within a word; µ, π, Δ and Ω are units and signs of their own
    r"[A-Za-zÀ-ɏ][\u0370-\u0393\u0395-\u03a8\u03aa-\u03bb\u03bd-\u03bf\u03c1-\u03ff\u0400-\u052f]|[\u0370-\u0393\u0395-\u03a8\u03aa-\u03bb\u03bd-\u03bf\u03c1-\u03ff\u0400-\u052f][A-Za-zÀ-ɏ]"
)
# UTF-8 that was read as Windows-1252 (or Latin-1): the first byte of a character, and the bytes that continue it.
_CONTINUING = bytes(range(0x80, 0xC0)).decode("latin-1") + "€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
_MOJIBAKE = re.compile(f"(?:[\u00c3-\u00f4][{_CONTINUING}]{{1,3}})+|\u00c2[\u00a0-\u00bf]")
_SELDOM_ALONE = re.compile(r"[\u0180-\u036f\u0460-\u07ff]")  # what MÔŽE in capitals, or “SÓ”, would be
# UTF-8 of European languages that was read in another code page: what its first bytes look like there. Whole runs are
# tried, within a word or long, because some languages have words that begin with two such letters.
_CODE_PAGES = ("cp1250", "cp1251", "mac_roman", "cp850")
_RUN = re.compile(r"[ĂÄĹâГДЕРС√ƒ≈‚├─┼Ô](?:(?<=[a-z].)|(?<=[√ƒ≈├─┼])|(?=.[^\x00-\x7f])|(?=[^\w][a-z]))[^\x00-\x7f]+")
_EUROPEAN = re.compile(r"[\u00c0-\u017f\u0400-\u045f\u2010-\u2044]+")


@dataclass(frozen=True)
class PairChecks:
    """The checks of a corpus, with the bounds that are its own."""

    max_length: int = 256  # tokens
    usual_ratio: float = 1.0  # characters of a source text by those of its translation
    length_ratio: float = 3.0  # times that a pair's may be more, or less, than the usual one

    def __call__(self, source: str, target: str) -> list[str]:
        """Return the kinds of fault that a pair has, by name."""
        if not (source.strip() and target.strip()):
            return ["empty_side"]
        found = []
        ratio = (len(source) + SHORT) / (len(target) + SHORT) / self.usual_ratio
        if not 1 / self.length_ratio <= ratio <= self.length_ratio:
            found.append("length_ratio")
        if max(len(source), len(target)) > self.max_length and (self._too_long(source) or self._too_long(target)):
            found.append("too_long")
        if not (source.isascii() and target.isascii()):
            found += _beyond_ascii(source, target)
        elif _CONTROL.search(source) or _CONTROL.search(target):
            found.append("control_characters")
        if ("<" in source or "<" in target or "&" in source or "&" in target) and (
            bool(MARKUP.search(source)) != bool(MARKUP.search(target))
        ):
            found.append("markup")
        addresses = _addresses(source), _addresses(target)
        if addresses[0] != addresses[1]:
            found.append("url_mismatch")
        elif not (addresses[0] or numbers_agree(source, target)):
            found.append("number_mismatch")
        return found

    def _too_long(self, text: str) -> bool:
        return text.count(" ") >= self.max_length or len(text) > self.max_length * MOST_CHARACTERS


def numbers_agree(source: str, target: str) -> bool:
    """Return whether both texts hold the same numbers, but for small ones that the other side may spell out."""
    if not (_DIGIT.search(source) or _DIGIT.search(target)):
        return True
    texts = [MARKUP.sub(" ", side) for side in (source, target)]
    numbers = [Counter(map(_digits, _NUMBER.findall(text))) for text in texts]
    left, right = numbers[0] - numbers[1], numbers[1] - numbers[0]
    if left and right:  # a date may be 5.3. or 3/5
        groups = [sorted(map(_digits, _GROUP.findall(text))) for text in texts]
        return groups[0] == groups[1]
    return all(len(number) < 3 and (int(number) <= SPELLED_OUT or number[1] == "0") for number in [*left, *right])


def mojibake(text: str) -> re.Match[str] | None:
    """Return the first place of a text where UTF-8 was read in another encoding, or None."""
    for match in _MOJIBAKE.finditer(text):
        try:
            read = b"".join(_byte(character) for character in match[0])
            decoded = read.decode("utf-8", errors="ignore")
        except UnicodeEncodeError:
            continue
        if _SELDOM_ALONE.fullmatch(decoded):
            continue
        if decoded and (decoded[0].isalnum() or unicodedata.category(decoded[0])[0] in "PSZ"):
            return match
    return next(filter(_is_misread, _RUN.finditer(text)), None)


def _is_misread(run: re.Match[str]) -> bool:
    for code_page in _CODE_PAGES:
        with contextlib.suppress(UnicodeError):
            if _EUROPEAN.fullmatch(run[0].encode(code_page).decode("utf-8")):
                return True
    return False


def _beyond_ascii(source: str, target: str) -> list[str]:
    """Return the kinds of fault that only text beyond ASCII has, and those that look different there."""
    sides = source, target
    if any("\ufffd" in side or mojibake(side) for side in sides):
        return ["encoding_damage"]  # which looks like the others too
    found = []
    if any(_INVISIBLE.search(side) and (_CONTROL.search(side) or not _NEEDS_THEM.search(side)) for side in sides):
        found.append("control_characters")
    if any(_MIXED.search(side) for side in sides):
        found.append("mixed_scripts")
    return found


def _byte(character: str) -> bytes:
    return character.encode("latin-1" if character < "\u0100" else "cp1252")


def _digits(number: str) -> str:
    """Return a number without separators, leading zeros and zeros at the end of cents, in ASCII digits."""
    number = number.rstrip("0") if _CENTS.search(number) else number
    return "".join(str(unicodedata.decimal(digit)) for digit in number if digit.isdecimal()).lstrip("0") or "0"


def _addresses(text: str) -> list[str]:
    """Return the addresses in a text, without the punctuation of the sentence around them."""
    if _may_have_address(text):
        return sorted(address.rstrip(".,;:!?)]}'’").rstrip("/").lower() for address in ADDRESS.findall(text))
    return []


def _may_have_address(text: str) -> bool:
    return "@" in text or "://" in text or "www." in text


def prose(text: str) -> str:
    """Return a text without its tags, entities and addresses, which are in no language."""
    text = MARKUP.sub(" ", text) if "<" in text or "&" in text else text
    return ADDRESS.sub(" ", text) if _may_have_address(text) else text


def log_ratio(source: str, target: str) -> float:
    """Return log (characters of the source ÷ characters of the target), as `PairChecks` measures them."""
    return math.log((len(source) + SHORT) / (len(target) + SHORT))
