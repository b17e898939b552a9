"""The model folder alone: what translating, evaluating and scoring need of a checkpoint, nothing for training in it.

Called by `tfm export --format safetensors`. The files are copied byte by byte; no torch unless the copy is verified.
"""

import shutil
from pathlib import Path

from transformer_cli.config import load_config
from transformer_cli.storage.publishing import manifest_names, publish
from transformer_cli.storage.publishing import verify as check_hashes
from transformer_cli.storage.run_folder import CONFIG, WEIGHTS, RunFolder
from transformer_cli.text.codec import vocabulary_files

TRAINING = "training."  # how the names of the files begin that only resuming needs


def export_safetensors(folder: Path, out: Path, *, verify: bool = True) -> None:
    """Publish as `out` a checkpoint folder without its training state: config.yaml, vocab/, model.safetensors.

    It is a MODEL to every command. `verify` loads the model first. Raises `UserError`, before anything is written,
    where a file is missing or damaged; `out` must not exist.
    """
    if verify:
        from transformer_cli.build import load_model

        load_model(folder)
    names = _check_files(folder)

    def write(temporary: Path) -> None:
        for name in names:
            target = temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, target)  # the modes are the user's own: the checkpoint may be read-only

    RunFolder(out.parent).create()
    publish(out, write)


def _check_files(folder: Path) -> list[str]:
    """The files to copy, all that the manifest names but training's; each is there and matches its hash."""
    check_hashes(folder, [CONFIG])
    named = manifest_names(folder)
    there = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    names = [name for name in there if name in named and not name.startswith(TRAINING)]
    needed = [CONFIG, WEIGHTS, *vocabulary_files(load_config(folder / CONFIG).vocabulary)]
    check_hashes(folder, [*needed, *names])
    return names
