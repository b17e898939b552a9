"""From the files that a user has to a config, and to text files for training, validation and test. No torch.

Called by `tfm init`. All is written, or nothing; and nothing that exists is written over.
"""

import contextlib
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from transformer_cli.config.languages import country_hint
from transformer_cli.config.yaml_file import dump_flow
from transformer_cli.data.held_out import Pair, Smallest, as_line, normalized, rank_of, sentences_of
from transformer_cli.data.recognize import Recognized, Wanted, recognize, split_of
from transformer_cli.errors import UserError
from transformer_cli.storage.holding import clean, not_writable, temporary
from transformer_cli.storage.publishing import naming, sync_folder
from transformer_cli.text.lines import with_bar

# Pairs for validation and as many for test, else 1 of 20 for each; fewer than 10 in all are refused.
MOST, ONE_OF, LEAST = 1_000, 20, 10
SPARE = 4  # times as many are looked at: those that share a sentence with the test set are left out of validation

CONFIG = """\
# Written by tfm init from {origin}.
#
#   tfm train {config} --dry-run  # sizes, memory, time, the first batch; trains nothing
#   tfm train {config}
#   tfm translate checkpoints/{name} -i FILE
#
# Keys that are not here have their defaults (docs/config.md). Paths start where tfm is called.

data:
  source_language: {source}  # translated from
  target_language: {target}  # translated into
  train: {train}  # what the model learns from
  {valid}
  {test}

model:
  preset: auto  # sizes, dropout, vocabulary and schedule by the amount of text; a key that you set keeps your value

# training:
#   max_steps: 20000  # less or more than the preset has
#   batch_tokens: 2000  # lower it where memory is short
"""


@dataclass
class Initialized:
    """What `initialize` found, left out and wrote."""

    config: Path
    languages: tuple[str, str]
    found: dict[str, str]  # split → where its pairs come from; `train` alone where no split was given
    sizes: dict[str, int] = field(default_factory=dict)  # split → its pairs
    files: dict[str, tuple[Path, Path]] = field(default_factory=dict)  # split → two files, where they are new
    left_out: list[str] = field(default_factory=list)  # pairs, and why
    notes: list[str] = field(default_factory=list)  # what reading the files left out


def initialize(
    paths: Sequence[Path], wanted: Wanted = (None, None), out: str | None = None, seed: int = 1, progress: bool = False
) -> Initialized:
    """Write `NAME.yaml`, and to `data/NAME/` text files of what a config cannot name as it is.

    wanted: source and target language; what is None, the files say. out: NAME, in another folder or not. Where the
    names of the files give no split, pairs for validation and test are drawn by the seed, and no sentence of theirs,
    normalized, is on either side of the training pairs. Raises `UserError` before anything is written.
    """
    splits = recognize(paths, wanted)
    languages = splits["train"].languages
    place = Path((out if out is not None else _name(paths, languages)).removesuffix(".yaml"))
    if not place.name or place.name == ".." or (out or "").endswith(("/", os.sep)):
        raise UserError(f"--out {out}: is not a name; give one such as {'-'.join(languages)}")
    config, folder = place.with_name(f"{place.name}.yaml"), place.parent / "data" / place.name
    for path in (config, folder):
        if os.path.lexists(path):
            raise UserError(f"{path}: exists, and is not written over; choose another name with --out")
    done = Initialized(config, languages, {split: found.describe() for split, found in splits.items()})
    texts = _draw(splits["train"], seed, done, progress) if len(splits) == 1 else _as_given(splits, done, progress)
    done.files = {split: (folder / f"{split}.{languages[0]}", folder / f"{split}.{languages[1]}") for split in texts}
    sources = {split: found.source or {} for split, found in splits.items()}
    sources |= {split: {"source": str(files[0]), "target": str(files[1])} for split, files in done.files.items()}
    _publish(config, _config_text(done, sources), folder, {done.files[split]: pairs for split, pairs in texts.items()})
    done.notes = [note for found in splits.values() for corpus in found.corpora for note in corpus.notes]
    done.notes += filter(None, map(country_hint, languages))
    return done


def _name(paths: Sequence[Path], languages: tuple[str, str]) -> str:
    """Return what the config is called: as the file, or as two files as far as their names are equal."""
    names = [path.name for path in paths if split_of(path.name) in ("", "train")]
    name = os.path.commonprefix(names)  # noqa: RUF071  (of characters)
    if len(names) == 1:
        name = re.sub(r"(\.(gz|zip|tmx|txt|tsv|csv|jsonl))+$", "", name, flags=re.IGNORECASE)
    name = name.strip("._- ")[:100]
    return "-".join(languages) if not name or split_of(name) else name


# --- pairs --------------------------------------------------------------------------------------------------------


def _draw(found: Recognized, seed: int, done: Initialized, progress: bool) -> dict[str, Iterable[Pair]]:
    """Return the pairs of each split: read once here, to draw those for validation and test, and again when written."""
    smallest = Smallest(SPARE * MOST)
    total = 0
    for source, target in with_bar(found.pairs(), "choosing validation and test pairs", progress):
        if _is_whole(source, target):
            total += 1
            rank = rank_of(seed, (normalized(source), normalized(target)))
            smallest.add(rank, (as_line(source), as_line(target)))
    _check_enough(total, found)
    drawn = [smallest.pairs[rank] for rank in sorted(smallest.pairs)]
    different = len(drawn) if len(drawn) < SPARE * MOST else total  # every copy of one that is drawn leaves training
    count = max(1, min(MOST, different // ONE_OF))
    test = drawn[:count]
    tested = sentences_of(test)
    valid = [pair for pair in drawn[count:] if not tested & sentences_of([pair])][:count]
    if len(valid) < count:
        raise _says_the_same(found, count)
    done.sizes = {"train": total - 2 * count, "valid": count, "test": count}
    return {"train": _others(found, tested | sentences_of(valid), done, progress), "valid": valid, "test": test}


def _others(found: Recognized, held_out: frozenset[str], done: Initialized, progress: bool) -> Iterator[Pair]:
    """Yield the pairs for training, and say at the end what was left out."""
    repeated = -2 * done.sizes["test"]  # those pairs themselves
    for source, target in _whole(found, "train", done, progress):
        if normalized(source) in held_out or normalized(target) in held_out:
            repeated += 1
        else:
            yield source, target
    done.sizes["train"] -= repeated
    if repeated > done.sizes["train"]:
        raise _says_the_same(found, done.sizes["test"])
    _leave_out(done, repeated, f"that repeat{'s' * (repeated == 1)} a sentence of validation or test")


def _says_the_same(found: Recognized, count: int) -> UserError:
    return UserError(
        f"{found.describe()}: says the same again and again: {count:,} pairs each for validation and test cannot be "
        "drawn so that most of the others share no sentence with them; name files for them, such as valid.de"
    )


def _as_given(splits: Mapping[str, Recognized], done: Initialized, progress: bool) -> dict[str, Iterable[Pair]]:
    """Count the pairs of splits that were given, and return those that a config cannot name as they are."""
    for split, found in splits.items():
        done.sizes[split] = sum(_is_whole(*pair) for pair in with_bar(found.pairs(), f"reading {split}", progress))
    _check_enough(done.sizes["train"], splits["train"])
    return {split: _whole(found, split, done, progress) for split, found in splits.items() if found.source is None}


def _whole(found: Recognized, split: str, done: Initialized, progress: bool) -> Iterator[Pair]:
    """Yield the pairs that have text on both sides, as lines of a file can hold them; say how many have not."""
    empty = 0
    for source, target in with_bar(found.pairs(), f"writing {split}", progress):
        if _is_whole(source, target):
            yield as_line(source), as_line(target)
        else:
            empty += 1
    _leave_out(done, empty, "of which one side is empty")


def _is_whole(source: str, target: str) -> bool:
    """Return whether both sides hold more than white space."""
    return bool(source.strip("\ufeff").strip() and target.strip("\ufeff").strip())


def _check_enough(pairs: int, found: Recognized) -> None:
    if pairs < LEAST:
        raise UserError(
            f"{found.describe()}: has {pairs} pairs of sentences, and fewer than {LEAST} teach nothing; take more"
        )


def _leave_out(done: Initialized, count: int, which: str) -> None:
    if count:
        done.left_out.append(f"{count:,} pair{'s' * (count != 1)} {which}")


# --- writing ------------------------------------------------------------------------------------------------------


def _config_text(done: Initialized, sources: Mapping[str, Mapping[str, str]]) -> str:
    """Return the config, with what each key of it means."""
    name = done.config.name.removesuffix(".yaml")
    says = {"valid": "decides which checkpoint is best", "test": "what tfm evaluate takes; training never looks at it"}
    lines = {
        split: f"{split}: {dump_flow(dict(sources[split]))}  # {says[split]}" for split in says if split in sources
    }
    missing = {
        "valid": "# valid: {source: …, target: …}  # not given: training holds 5 % of its pairs out, 1,000 at most",
        "test": "# test: {source: …, target: …}  # not given: what tfm evaluate would take",
    }
    return CONFIG.format(
        origin=_comment("; ".join(done.found.values())),
        config=_comment(shlex.quote(str(done.config))),
        name=_comment(shlex.quote(name)),
        source=dump_flow(done.languages[0]),
        target=dump_flow(done.languages[1]),
        train=dump_flow(dict(sources["train"])),
        **(missing | lines),
    )


def _comment(text: str) -> str:
    """Return the text as a comment may hold it: in one line, all of it printable."""
    return "".join(one if one.isprintable() else "�" for one in as_line(text))


def _publish(config: Path, text: str, folder: Path, files: Mapping[tuple[Path, Path], Iterable[Pair]]) -> None:
    """Write the files of pairs and the config, or nothing. Raises `UserError` where it may not write."""
    parent = folder.parent if files else config.parent
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(naming(parent))
            for above in [parent, *parent.parents][::-1]:
                if not above.exists():
                    above.mkdir()
                    stack.callback(_remove_empty, above)
            clean(parent)
            new_config = stack.enter_context(temporary(config))
            new_config.write_text(text, encoding="utf-8")
            if not files:
                _put(new_config, config)
                return
            new_folder = stack.enter_context(temporary(folder))
            new_folder.mkdir()
            for (source, target), pairs in files.items():
                _write(new_folder / source.name, new_folder / target.name, pairs)
            _put(new_folder, folder)
            try:
                _put(new_config, config)
            except BaseException:
                os.rename(folder, new_folder)
                raise
        except OSError as error:
            raise not_writable(parent, error) from None


def _write(source: Path, target: Path, pairs: Iterable[Pair]) -> None:
    with (
        open(source, "x", encoding="utf-8", newline="\n") as first,
        open(target, "x", encoding="utf-8", newline="\n") as second,
    ):
        for pair in pairs:
            first.write(pair[0] + "\n")
            second.write(pair[1] + "\n")
        for file in (first, second):
            file.flush()
            os.fsync(file.fileno())


def _put(new: Path, path: Path) -> None:
    """Give what is complete its name, where nothing has it."""
    if os.path.lexists(path):
        raise UserError(f"{path}: exists by now, and is not written over; choose another name with --out")
    os.rename(new, path)
    sync_folder(path.parent)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
