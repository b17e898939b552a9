"""What the files are that a user has: which hold pairs, of which languages, for training or for judging. No torch.

Called by `initialize`. Names of files, headers of TMX and first lines of tables are looked at; where they do not say
it, one line asks for it.
"""

import csv
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from transformer_cli.config.languages import COUNTRIES, code_fault, code_of, covers
from transformer_cli.data.corpora import Corpus, TableCorpus, TextCorpus
from transformer_cli.data.files import LocalFile, Member, read_members, read_pairs_of_members
from transformer_cli.data.tmx import TmxCorpus, read_languages
from transformer_cli.errors import UserError, one_of

Wanted = tuple[str | None, str | None]  # the languages, as far as options or other files say them
Languages = tuple[str, str]
File = LocalFile | Member

TABLES = (".tsv", ".csv", ".jsonl")
SAVE_AS = {  # kinds of files that people have
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save the sheet as CSV"),
    **dict.fromkeys((".xliff", ".xlf", ".sdlxliff", ".sdltm", ".mqxliff", ".tbx"), "export it as TMX"),
    **dict.fromkeys((".json", ".parquet", ".docx", ".pdf", ".html", ".7z", ".tar", ".tgz", ".xz", ".bz2", ".zst"), ""),
}
SPLITS = {
    "train": re.compile(r"train(ing)?"),
    "valid": re.compile(r"(news)?(valid(ation)?|val|dev|development|tune)(set)?[0-9]*"),
    "test": re.compile(r"(news)?(test|eval)(set)?[0-9]*"),
}
SIDES = ({"source", "src"}, {"target", "tgt", "trg"})
# Words of file names and columns that are codes too, of languages with few speakers.
NOT_LANGUAGES = {
    *("src", "tgt", "trg", "ref", "hyp", "txt", "xml", "ids", "csv", "tsv", "tmx", "zip", "raw", "tok", "bpe", "all"),
    *("new", "old", "dev", "val", "set", "doc", "out", "pdf", "log", "bak", "sgm", "max", "min", "mix", "big", "one"),
}
_LIKE_A_CODE = re.compile(r"[a-z]{2,3}([-_][a-z0-9]{2,8})*", re.IGNORECASE)
_PAIR = re.compile(r"(?<![^\W_])([a-z]{2,3})(?:-|_|2|[-_]to[-_])([a-z]{2,3})(?![^\W_])", re.IGNORECASE)


@dataclass(frozen=True)
class Recognized:
    """Files that hold the pairs of one split."""

    corpora: list[Corpus]
    languages: Languages
    source: dict[str, str] | None  # how a config names them; None: it cannot

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield all pairs; raises as a `Corpus` does."""
        yield from chain.from_iterable(corpus.pairs() for corpus in self.corpora)

    def describe(self) -> str:
        """Return where they come from."""
        return ", ".join(corpus.describe() for corpus in self.corpora)


def recognize(paths: Sequence[Path], wanted: Wanted) -> dict[str, Recognized]:
    """Return what the files are, by split; `train` alone where their names do not say which is for what.

    wanted: source and target language, where known. Raises `UserError` for what cannot be told, or read.
    """
    seen: set[tuple[int, int]] = set()
    for path in paths:
        LocalFile(path)
        status = os.stat(path)
        if (status.st_dev, status.st_ino) in seen:
            raise UserError(f"{path}: is named twice; name each file once")
        seen.add((status.st_dev, status.st_ino))
    items: list[tuple[File, ...]] = []  # one file, or two that belong together
    for path in paths:
        if path.suffix.lower() == ".zip":
            found, wanted = _in_archive(path, wanted)
            items += found
        else:
            items.append((LocalFile(path),))
    splits: dict[str, list[tuple[File, ...]]] = {}
    for item in items:
        splits.setdefault(split_of(_base(item[0])), []).append(item)
    if len(splits) == 1:
        splits = {"train": items}
    elif unknown := splits.pop("", []):
        splits["train"] = [*splits.get("train", []), *unknown]
    if "train" not in splits:
        raise UserError(f"{paths[0]}: is for {one_of([*splits])}, as its name says; name the training files too")
    recognized = {}
    for split in sorted(splits, key=[*SPLITS].index):
        recognized[split] = _group(splits[split], wanted)
        wanted = recognized[split].languages
    return recognized


def settle(tags: Sequence[str], wanted: Wanted, where: object) -> Languages:
    """Return source and target language: as wanted, else those that the files name, the first of them the source.

    Raises `UserError` where that leaves a choice, or nothing, and where both are one.
    """
    source, target = wanted
    primary = [re.split("[-_]", tag)[0].lower() for tag in tags]
    codes = [*dict.fromkeys(primary if len(set(primary)) > 1 else tags)]  # de-DE is de, unless both are de
    others = [code for code in codes if not any(one and (covers(one, code) or covers(code, one)) for one in wanted)]
    if source is None and target is None and len(codes) == 2:
        source, target = codes
    elif (source is None) != (target is None) and len(others) == 1:
        source, target = source or others[0], target or others[0]
    if source is None or target is None:
        which = f"is in {one_of(codes, last='and')}" if codes else "nothing says which languages this is in"
        raise UserError(f"{where}: {which}; name the two: --from {source or 'de'} --to {target or 'en'}")
    for option, code, given in (("--from", source, wanted[0]), ("--to", target, wanted[1])):
        if (fault := code_fault(code)) is not None:
            raise UserError(f"{option}: {fault}" if given else f"{where}: {fault} Name it with {option}")
    if source.lower() == target.lower():
        raise UserError(f"{where}: {source} would be both source and target; name two languages: --from de --to en")
    return source, target


def _group(items: list[tuple[File, ...]], wanted: Wanted) -> Recognized:
    """Return what the files of one split are, together."""
    texts = [item[0] for item in items if len(item) == 1 and _suffix(item[0]) not in (".tmx", *TABLES)]
    parts = []
    if texts:
        parts.append(_texts(texts, wanted))
        wanted = parts[0].languages
    for item in items:
        if len(item) == 2:
            source, target = wanted  # as the archive was opened
            assert source is not None
            assert target is not None
            parts.append(Recognized([TextCorpus(*map(_as_given, item))], (source, target), _named_zip(items)))
        elif item[0] not in texts:
            parts.append(_tmx(item[0], wanted) if _suffix(item[0]) == ".tmx" else _table(item[0], wanted))
        wanted = parts[-1].languages
    corpora = [corpus for part in parts for corpus in part.corpora]
    return Recognized(corpora, parts[0].languages, parts[0].source if len(parts) == 1 else None)


def _as_given(file: File) -> Path | Member:
    return file if isinstance(file, Member) else file.path


def _base(file: File) -> str:
    """Return the name of a file without folders and `.gz`."""
    name = re.split(r"[/\\]", file.inner)[-1] if isinstance(file, Member) else file.path.name
    return name.removesuffix(".gz")


def _suffix(file: File) -> str:
    return Path(_base(file).lower()).suffix


def split_of(name: str) -> str:
    """Return the split that a file's name says it is of; empty: it says none."""
    words = re.split(r"[._-]", name.lower())
    return next((split for word in words for split, known in SPLITS.items() if known.fullmatch(word)), "")


# --- languages in names -------------------------------------------------------------------------------------------


def _is_code(word: str) -> bool:
    return bool(_LIKE_A_CODE.fullmatch(word)) and word.lower() not in NOT_LANGUAGES and code_fault(word) is None


def _pair_in(name: str) -> list[str]:
    """Return the languages of a name such as `europarl.de-en.tsv`."""
    for match in _PAIR.finditer(name):
        if len(match[1]) == len(match[2]) and match[1] != match[2] and _is_code(match[1]) and _is_code(match[2]):
            return [match[1], match[2]]
    return []


def _differing(first: str, second: str) -> list[str]:
    """Return the languages of two names that are else equal, such as `train.de` and `train.en`."""
    for ends in (r"\.", r"[._-]"):
        words = [re.split(ends, name) for name in (first, second)]
        if len(words[0]) == len(words[1]):
            other = [(one, two) for one, two in zip(*words, strict=True) if one != two]
            if len(other) == 1 and all(_is_code(word) or word.lower() in COUNTRIES for word in other[0]):
                return [*other[0]]
    return []


# --- kinds of files -----------------------------------------------------------------------------------------------


def _texts(files: Sequence[File], wanted: Wanted) -> Recognized:
    """Return what two text files are, whichever of them was named first."""
    for file in files:
        if (advice := SAVE_AS.get(_suffix(file))) is not None:
            known = "text, TMX, TSV, CSV and JSONL files are read, also .gz and .zip"
            raise UserError(f"{file.name}: is no kind of file that tfm init reads; {advice or known}")
    if len(files) != 2:
        with files[0].lines() as lines:
            table = len(files) == 1 and "\t" in next(lines, "")
        advice = (
            "if its columns stand between tabs, call it .tsv"
            if table
            else "name two, line n of one translating line n of the other"
        )
        which = "is one text file" if len(files) == 1 else f"is the first of {len(files)} text files"
        raise UserError(f"{files[0].name}: {which}; {advice}")
    first, second = files
    tags = _differing(_base(first), _base(second))
    languages = settle(tags, wanted, f"{first.name}, {second.name}")
    fits = [[covers(language, tag) for tag in tags] for language in languages]
    if fits[0] == [False, True] or fits[1] == [True, False]:
        first, second = second, first
    corpus = TextCorpus(_as_given(first), _as_given(second))
    corpus.check_kind()
    return Recognized([corpus], languages, {"source": first.name, "target": second.name})


def _tmx(file: File, wanted: Wanted) -> Recognized:
    tags = [] if wanted[0] and wanted[1] else read_languages(file)
    languages = settle(tags, wanted, file.name)
    return Recognized([TmxCorpus(file, languages)], languages, {"tmx": file.name} if _on_disk(file) else None)


def _on_disk(file: File) -> bool:
    return isinstance(file, LocalFile)


def _in_archive(path: Path, wanted: Wanted) -> tuple[list[tuple[File, ...]], Wanted]:
    """Return the files in a zip archive that hold pairs, and the languages if they are text files."""
    members = read_members(path)
    whole: list[tuple[File, ...]] = [(member,) for member in members if _suffix(member) in (".tmx", *TABLES)]
    if whole:
        return whole, wanted
    named = filter(None, map(_pair_in, (path.name, *map(_base, members))))
    ends = [_base(member).removesuffix(".txt").rpartition(".")[2] for member in members]
    tags = next(named, [end for end in dict.fromkeys(ends) if _is_code(end)])
    languages = settle(tags, wanted, path) if len(tags) > 1 or all(wanted) else ("de", "en")  # such as these it lacks
    return [*read_pairs_of_members(path, languages)], languages


def _named_zip(items: list[tuple[File, ...]]) -> dict[str, str] | None:
    return {"moses": str(items[0][0].path)} if len(items) == 1 else None


def _table(file: File, wanted: Wanted) -> Recognized:
    """Return what a table is, by its first line."""
    with file.lines() as lines:
        first = next(lines, "")
        declared = re.fullmatch(r"sep=(.)", first)
        first = next(lines, "") if declared else first
    own = {".tsv": "\t", ".csv": ",", ".jsonl": ""}[_suffix(file)]
    separators = declared[1] if declared else ",;\t" if own == "," else own
    by_name = _pair_in(_base(file))
    for separator in separators or [""]:
        names = _cells(first, separator, file.name)
        found = _columns(names, wanted, by_name, file.name)
        if found is not None:
            columns, languages = found
            if own == "\t" and separator != own:
                break
            corpus = TableCorpus(_as_given(file), columns, separator or ",")
            source = {"file": file.name}
            given = zip(("source_column", "target_column"), columns, languages, strict=True)
            source |= {key: column for key, column, code in given if column != code}
            native = _on_disk(file) and separator == own and not declared
            return Recognized([corpus], languages, source if native else None)
    shown = ", ".join(map(repr, _cells(first, separators[:1], file.name)))[:200] or "nothing"
    example = {"\t": "de<TAB>en", "": '{"de": …, "en": …}'}.get(separators[:1], f"de{separators[:1]}en")
    raise UserError(
        f"{file.name}:1: cannot tell which columns hold the texts: the first line has {shown}; let it name them by "
        f"their languages, such as {example}, or as source and target, and give --from and --to"
    )


def _cells(line: str, separator: str, where: str) -> list[str]:
    """Return the names of columns that the first line of a table has; for JSON, a dot before those inside others."""
    if separator:
        return line.split(separator) if separator == "\t" else next(csv.reader([line], delimiter=separator), [])
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise UserError(f'{where}:1: is not a JSON object; each line looks like {{"de": …, "en": …}}')
    inner = [f"{name}.{key}" for name, value in row.items() if isinstance(value, dict) for key in value]
    return [*(name for name, value in row.items() if isinstance(value, str)), *inner]


def _columns(
    names: list[str], wanted: Wanted, by_name: list[str], where: str
) -> tuple[tuple[str, str], Languages] | None:
    """Return the two columns of texts and their languages; None where the names do not tell."""
    plain = {name: name.rpartition(".")[2].strip() for name in names if 0 < len(name) < 50}
    codes = {name: code_of(word) for name, word in plain.items() if word.lower() not in NOT_LANGUAGES}
    tags = {name: code for name, code in codes.items() if code is not None}
    if len(tags) > 2:  # a number beside both
        tags = {name: code for name, code in tags.items() if name.lower() != "id"}
    if len(tags) >= 2:
        languages = settle([*tags.values()], wanted, f"{where}:1")
        sides = [[name for name, tag in tags.items() if covers(code, tag)] for code in languages]
        if all(len(side) == 1 for side in sides):
            return (sides[0][0], sides[1][0]), languages
    sides = [[name for name, word in plain.items() if word.lower() in known] for known in SIDES]
    if all(len(side) == 1 for side in sides):
        return (sides[0][0], sides[1][0]), settle(by_name, wanted, where)
    return None
