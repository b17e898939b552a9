"""A package that Argos Translate and LibreTranslate install: a CTranslate2 model, its subwords and what it translates.

Called by `tfm export --format argos`. A package is a zip archive with one folder in it (Argos Translate's documentation
of `argostranslate.package`); what finds the sentences of a text is not in it, so that Argos takes its own.
"""

import json
import tempfile
import zipfile
from pathlib import Path

from transformer_cli.codecs import load_text_side
from transformer_cli.config import Config
from transformer_cli.config.languages import language_name, short_code
from transformer_cli.errors import UserError
from transformer_cli.export.ctranslate2 import export_ctranslate2
from transformer_cli.storage.publishing import atomic_file
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.text.subword import SubwordTokenizer

SUFFIX = ".argosmodel"
VERSION, ARGOS = "1.0", "1.9"  # of the package, and of the Argos Translate that reads such a package
README = """# {source} to {target}

Trained and exported with tfm{license}. Install it with `argospm install {name}`, or through the package settings of
LibreTranslate.
"""


def export_argos(
    folder: Path,
    out: Path,
    *,
    quantization: str | None = None,
    verify: bool = True,
    sentences: Path | None = None,
) -> str | None:
    """Write a checkpoint as the package `out`; return how the check went (None: not checked).

    The parameters are those of `export_ctranslate2`, and so are the errors.
    """
    if out.suffix != SUFFIX:
        raise UserError(f"--out {out}: name a package, such as {out.name}{SUFFIX}")
    config, codecs = load_text_side(folder)
    tokenizer = codecs.source.tokenizer
    _check(config)
    assert isinstance(tokenizer, SubwordTokenizer)
    codes = [short_code(code) for code in (config.data.source_language, config.data.target_language)]
    names = [language_name(code) for code in codes]
    root = f"translate-{codes[0]}_{codes[1]}-{VERSION.replace('.', '_')}"
    metadata = dict(zip(("from_code", "to_code", "from_name", "to_name"), [*codes, *names], strict=True))
    license_ = f", license {config.data.license}" if config.data.license else ""
    texts: dict[str, str | bytes] = {
        "metadata.json": json.dumps({"package_version": VERSION, "argos_version": ARGOS, **metadata}, indent=2) + "\n",
        "README.md": README.format(source=names[0], target=names[1], license=license_, name=out.name),
        "sentencepiece.model": tokenizer.model,
    }
    RunFolder(out.parent).create()
    with tempfile.TemporaryDirectory(prefix=".argos-", dir=out.parent) as temporary:
        model = Path(temporary) / "model"
        report = export_ctranslate2(folder, model, quantization=quantization, verify=verify, sentences=sentences)
        with atomic_file(out) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as package:
            for name, content in texts.items():
                package.writestr(f"{root}/{name}", content)
            for path in sorted(path for path in model.rglob("*") if path.is_file()):
                package.write(path, f"{root}/model/{path.relative_to(model).as_posix()}")
    return report


def _check(config: Config) -> None:
    """Raise `UserError` for what Argos Translate does not do before and after it translates."""
    vocabulary = config.vocabulary
    faults = {
        f"vocabulary.tokenizer: {vocabulary.tokenizer}": vocabulary.tokenizer != "sentencepiece",
        "vocabulary.shared: false": not vocabulary.shared,
        "vocabulary.lowercase: true": vocabulary.lowercase,
        f"vocabulary.normalization: {vocabulary.normalization}": vocabulary.normalization != "none",
        f"decoding.tag: {config.decoding.tag}": config.decoding.tag is not None,
    }
    for setting, is_fault in faults.items():
        if is_fault:
            raise UserError(
                f"--format argos: Argos Translate has no place for {setting}; it knows one sentencepiece model for "
                "both languages, of text as it is"
            )
