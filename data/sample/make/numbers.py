"""Numbers to copy: the classic first task of a sequence-to-sequence model, which can be learned without a mistake.

`python -m data.sample.make.numbers FOLDER` writes them, for configs/copy_task.yaml. The same bytes every time.
"""

import argparse
import random
from pathlib import Path

SPLITS = {"train": 10_000, "valid": 500, "test": 500}  # numbers
DIGITS = range(5, 13)  # of a number


def numbers(count: int, seed: int = 1) -> list[str]:
    """`count` numbers of 5 to 12 digits, none twice; leading zeros stay, for they are text."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        length = DIGITS[int(rng.random() * len(DIGITS))]  # random() alone is the same in every version of Python
        found["".join(str(int(rng.random() * 10)) for _ in range(length))] = None
    return list(found)


def write_numbers(folder: Path) -> None:
    """Write `train`, `valid` and `test` into `folder`, each as `.source` and, the same again, `.target`."""
    left = iter(numbers(sum(SPLITS.values())))
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in SPLITS.items():
        text = "".join(f"{next(left)}\n" for _ in range(size))
        for side in ("source", "target"):
            (folder / f"{split}.{side}").write_text(text, encoding="utf-8", newline="\n")


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and write."""
    parser = argparse.ArgumentParser("python -m data.sample.make.numbers", description="Write numbers to copy.")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args(arguments).folder
    try:
        write_numbers(folder)
    except OSError as error:
        parser.error(f"{folder}: cannot write the numbers: {error.strerror}; name another folder")
    sizes = ", ".join(f"{size:,} {split}" for split, size in SPLITS.items())
    print(f"{folder}: {sizes} numbers")


if __name__ == "__main__":
    main()
