"""What SOURCE is: a folder of transformers, a name on the Hugging Face Hub, or a Marian release."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformer_cli.errors import UserError
from transformer_cli.importing.huggingface import CONFIG, HUB_NAME, download, open_huggingface
from transformer_cli.importing.marian import DECODER, open_marian, unpack
from transformer_cli.importing.original import Original

KINDS = "a folder or zip of Marian's (decoder.yml), a folder of transformers' (config.json), or org/name of the hub"


@contextmanager
def original(source: str) -> Iterator[Original]:
    """Give the model that SOURCE means, its files opened; a zip is unpacked until the end of the block.

    Raises `UserError` where there is none, or a file is missing or damaged.
    """
    path = Path(source)
    if os.path.isfile(path):
        with tempfile.TemporaryDirectory(prefix="tfm-import-") as folder:
            unpack(path, Path(folder))
            if not (Path(folder) / DECODER).exists():
                raise UserError(f"{source}: has no {DECODER} in it, as a Marian release has")
            yield open_marian(Path(folder), path.name)
    elif os.path.isdir(path):
        try:
            names = os.listdir(path)
        except OSError as error:
            raise UserError(f"{source}: {error.strerror}; make it readable") from None
        if CONFIG in names:
            yield open_huggingface(path, source)
        elif DECODER in names:
            yield open_marian(path, source)
        else:
            raise UserError(f"{source}: has neither {CONFIG} nor {DECODER}; give {KINDS}")
    elif HUB_NAME.fullmatch(source):
        yield open_huggingface(download(source), source)
    else:
        raise UserError(f"{source}: no such file or folder; give {KINDS}")
