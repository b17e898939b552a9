"""Checkpoints of tiny models with random weights, of any shape and vocabulary, for the tests of the exports."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WORDS = (
    "ein zwei drei hund katze maus haus baum läuft schläft frisst sieht rot grün blau groß klein Straße über den und "
    "die mit einem kleinen Mann; Frau, Kind. Ball! am Strand? »so« „ja“ 3,5 1.000 A-B vor's"
)

Checkpoint = Callable[..., Path]


def write_text(folder: Path, lines: int = 120) -> None:
    """`text.de` and `text.en`: words in random order, capitals, punctuation and a doubled space here and there."""
    draw = random.Random(3)
    sentences = [" ".join(draw.choices(WORDS.split(), k=draw.randint(1, 9))) for _ in range(lines)]
    sentences[5] += "  ja"
    for name, step in (("text.de", 1), ("text.en", -1)):
        (folder / name).write_text("".join(f"{line}\n" for line in sentences[::step]), encoding="utf-8")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """`checkpoint(vocabulary={…}, data={…}, decoding={…}, seed=1, **model)`: a checkpoint folder, made once."""
    folder = tmp_path_factory.mktemp("checkpoints")
    write_text(folder)
    made: dict[str, Path] = {}

    def get(*, seed: int = 1, **options: Any) -> Path:
        key = repr((seed, sorted(options.items())))
        if key not in made:
            made[key] = _write_checkpoint(folder, f"model-{len(made)}", seed, options)
        return made[key]

    return get


def _write_checkpoint(folder: Path, name: str, seed: int, options: dict[str, Any]) -> Path:
    import torch

    from transformer_cli.build import build_model
    from transformer_cli.config import Config
    from transformer_cli.data.corpora import open_split
    from transformer_cli.storage.checkpoint import TrainingState, save_model, save_training_state
    from transformer_cli.storage.publishing import publish
    from transformer_cli.text.build import build_codecs

    text = {"source": f"{folder}/text.de", "target": f"{folder}/text.en"}
    sections: dict[str, Any] = {key: options.pop(key, {}) for key in ("vocabulary", "data", "decoding")}
    shape = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 16, "heads": 2, "d_ff": 20, "max_positions": 64}
    config = Config.model_validate(
        {
            "data": {
                "source_language": "de",
                "target_language": "en",
                "train": text,
                "valid": text,
                "max_length": 48,
                "workers": 0,
                **sections["data"],
            },
            "vocabulary": {"size": 68, "byte_fallback": False, "character_coverage": 1.0, **sections["vocabulary"]},
            "model": {**shape, **options},
            "decoding": {"max_length_ratio": 0.5, "max_length_extra": 2, **sections["decoding"]},
        }
    )
    codecs, _ = build_codecs(config, open_split(config.data, "train").pairs)
    sizes = len(codecs.source.vocabulary), len(codecs.target.vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_model(config.model, *sizes)
        randomise(model)

    def write(temporary: Path) -> None:
        save_model(temporary, model, config, codecs)
        save_training_state(temporary, TrainingState({"moment": torch.zeros(3)}, {"step": 1}))

    return publish(folder / name, write)


def randomise(model: Any) -> None:
    """Leave no gain at 1 and no bias at 0, so that a part which an export forgets shows."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)


def left_in(folder: Path) -> list[str]:
    """What an export left behind, temporary files too."""
    return sorted(path.name for path in folder.iterdir())
