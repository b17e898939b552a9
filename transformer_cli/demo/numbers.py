"""Numbers to copy: the classic first task of a sequence-to-sequence model, which can be learned without a mistake.

`python -m transformer_cli.demo.numbers FOLDER` writes them, for configs/copy_task.yaml. The same bytes every time.
"""

import random
import sys
from pathlib import Path

from transformer_cli.errors import UserError

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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for split, size in SPLITS.items():
            text = "".join(f"{next(left)}\n" for _ in range(size))
            for side in ("source", "target"):
                (folder / f"{split}.{side}").write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"{folder}: cannot write the numbers: {error.strerror}; name another folder") from None


def main(arguments: list[str]) -> int:
    """`python -m transformer_cli.demo.numbers FOLDER`."""
    if len(arguments) != 1:
        print("usage: python -m transformer_cli.demo.numbers FOLDER", file=sys.stderr)
        return 2
    try:
        write_numbers(Path(arguments[0]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sizes = ", ".join(f"{size:,} {split}" for split, size in SPLITS.items())
    print(f"{arguments[0]}: {sizes} numbers", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
