"""`tfm export`: a model in another program's format."""

import os
from pathlib import Path
from typing import Literal

import typer

from transformer_cli.cli.options import QUIET, Model, option
from transformer_cli.cli.streams import note
from transformer_cli.errors import UserError

Format = Literal["ctranslate2", "argos", "onnx", "huggingface", "safetensors"]
Quantization = Literal["int8", "int8_float32", "float16", "bfloat16"]  # the types that CTranslate2 stores weights in


def export(
    model: Model,
    format_: Format = option("--format FORMAT", "ctranslate2, argos, onnx, huggingface or safetensors.", ...),
    out: Path = option("--out DIR", "The new folder (argos: a file, NAME.argosmodel); it must not exist.", ...),
    quantization: Quantization | None = option(
        "--quantization TYPE",
        "Type of ctranslate2's and argos' weights: int8, int8_float32, float16 or bfloat16.  [default: float32]",
    ),
    shortlist: int | None = option(
        "--shortlist N",
        "ctranslate2: each source token has N likely translations to choose from, which is faster.  [default: all]",
        min=1,
    ),
    verify: bool = option("--verify/--no-verify", "Translate with both models, and fail where they differ.", True),
    sentences: Path | None = option(
        "--sentences FILE",
        "Source sentences for --verify, one per line (plain or .gz).  [default: the model's validation data]",
    ),
    quiet: bool = QUIET,
) -> None:
    """Write a model in another program's format.

    \b
    tfm export checkpoints/multi30k_de_en --format ctranslate2 --out exported
    tfm export checkpoints/multi30k_de_en --format ctranslate2 \\
        --quantization int8 --out exported.int8 --sentences valid.de

    What is written appears whole and verified, or not at all. What a format cannot express is refused.

    \b
    ctranslate2    for CTranslate2, a fast engine without Python or torch;
                   a MODEL for tfm translate, evaluate and score too
    argos          a package for Argos Translate and LibreTranslate
    onnx           graphs of the encoder and of one step of the decoder
    huggingface    Marian (post-norm) or Pegasus (pre-norm), for transformers
    safetensors    the model folder alone, nothing for training in it
    """
    from transformer_cli.config import load_config
    from transformer_cli.export.verify import ExportDiffers, export_safetensors
    from transformer_cli.storage.run_folder import CONFIG, RunFolder, find_model

    if quantization is not None and format_ not in ("ctranslate2", "argos"):
        raise UserError(f"--quantization: is for --format ctranslate2 and argos, not {format_}; leave it out")
    if shortlist is not None and format_ != "ctranslate2":
        raise UserError(f"--shortlist: is for --format ctranslate2, not {format_}; leave it out")
    if sentences is not None and not verify:
        raise UserError("--sentences and --no-verify exclude each other: give sentences to verify with, or do not")
    if sentences is not None and format_ == "safetensors":
        raise UserError("--sentences: --format safetensors copies the model and translates nothing; leave it out")
    if os.path.lexists(out):
        raise UserError(f"{out}: exists already; name another one with --out")
    folder = find_model(model)
    RunFolder(out).check_writable()

    report = None
    try:
        if format_ == "ctranslate2":
            from transformer_cli.export.ctranslate2 import export_ctranslate2

            report = export_ctranslate2(
                folder,
                out,
                quantization=quantization,
                shortlist=shortlist,
                verify=verify,
                sentences=sentences,
                progress=not quiet,
            )
        elif format_ == "argos":
            from transformer_cli.export.argos import export_argos

            report = export_argos(folder, out, quantization=quantization, verify=verify, sentences=sentences)
        elif format_ == "onnx":
            from transformer_cli.export.onnx import export_onnx

            report = export_onnx(folder, out, verify=verify, sentences=sentences)
        elif format_ == "huggingface":
            from transformer_cli.export.huggingface import export_huggingface

            report = export_huggingface(folder, out, verify=verify, sentences=sentences)
        else:
            export_safetensors(folder, out, verify=verify)
    except ExportDiffers as error:  # not the user's fault: no UserError
        note(f"error: {error}; nothing was written")
        raise typer.Exit(1) from None
    if report and not quiet:
        note(report)
    if not quiet:
        note(f"exported {folder.name} to {out}")
        tag = load_config(folder / CONFIG).decoding.tag
        if tag is not None and format_ != "safetensors":
            note(f"note: the model reads {tag} before each text; tfm puts it there, other programs have to: '{tag} …'")
