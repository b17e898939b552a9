"""A CTranslate2 model folder, with the vocabulary's own files beside it, so that it is all that another program needs.

Called by `tfm export --format ctranslate2`. `decoding.ctranslate2_model` writes the model, here and for the engine.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path

from transformer_cli.build import load_model
from transformer_cli.errors import UserError
from transformer_cli.export.verify import check_plain
from transformer_cli.storage.publishing import publish
from transformer_cli.storage.run_folder import CONFIG, RunFolder
from transformer_cli.text.codec import vocabulary_files


def export_ctranslate2(
    folder: Path,
    out: Path,
    *,
    quantization: str | None = None,
    verify: bool = True,
    sentences: Path | None = None,
) -> str:
    """Publish as `out` a checkpoint as a CTranslate2 model; a sentence says how it stood its check ("": not checked).

    quantization: int8, int8_float32, float16, bfloat16; None: float32. `verify` translates `sentences` (else the first
    ones of `data.valid`) with both engines. Raises `UserError` before anything is written, and `ExportDiffers` with
    nothing left.
    """
    if find_spec("ctranslate2") is None:
        raise UserError("--format ctranslate2: needs ctranslate2; install it with pip install 'transformer-cli[fast]'")
    from transformer_cli.decoding.engines.ctranslate2_model import build_spec, write_model
    from transformer_cli.export.verify import verification_sentences, verify_ctranslate2

    loaded = load_model(folder)
    check_plain(loaded.config.model, "ctranslate2")
    build_spec(loaded)  # refuses what CTranslate2 cannot be
    checked = verification_sentences(loaded.config, sentences) if verify else []
    told = ""

    def write(temporary: Path) -> None:
        nonlocal told
        write_model(temporary, loaded, quantization)
        for name in [CONFIG, *vocabulary_files(loaded.config.vocabulary)]:
            (temporary / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(folder / name, temporary / name)
        if verify:
            told = verify_ctranslate2(temporary, loaded, checked, quantization)

    RunFolder(out.parent).create()
    publish(out, write)
    return told
