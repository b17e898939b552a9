"""Training a model that copies: its loss, and that it learns to copy what no vocabulary holds, to the very text."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from transformer_cli.build import build_model, build_objective, load_model
from transformer_cli.cli.app import main
from transformer_cli.config import Config
from transformer_cli.data.batch import Batch
from transformer_cli.decoding.translator import Constraints, Translator
from transformer_cli.errors import UserError
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.training.objective import smoothed_cross_entropy
from transformer_cli.training.run import train
from transformer_cli.variants.pointer.model import PointerGenerator

INF = math.inf


# --- the loss -----------------------------------------------------------------------------------------------------


def test_the_loss_is_its_formula() -> None:
    """Three tokens of a vocabulary, two source columns, of which the first is no token."""
    rows = torch.tensor([[0.4, 0.3, 0.2, 0.0, 0.1], [0.1, 0.1, 0.1, 0.0, 0.7]], dtype=torch.float64).log()
    loss = smoothed_cross_entropy(rows, torch.tensor([1, 4]), 0.1, vocabulary_size=3)
    expected = 0.9 * -math.log(0.3) - 0.1 / 3 * sum(map(math.log, (0.4, 0.3, 0.2)))
    expected += 0.9 * -math.log(0.7) - 0.1 / 3 * 3 * math.log(0.1)
    assert float(loss.smoothed) == pytest.approx(expected, abs=1e-12)
    assert float(loss.likelihood) == pytest.approx(-math.log(0.3) - math.log(0.7), abs=1e-12)


@pytest.mark.parametrize("r_drop", [0.0, 2.0])
def test_without_source_columns_it_is_the_plain_loss(r_drop: float) -> None:
    torch.manual_seed(3)
    logits = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 0, 3, 3, 4, 4])
    plain = smoothed_cross_entropy(logits.log_softmax(1), target, 0.1, r_drop)
    beyond = torch.full((6, 4), -INF, dtype=torch.float64)
    ours = smoothed_cross_entropy(torch.cat([logits.log_softmax(1), beyond], dim=1), target, 0.1, r_drop, 5)
    for one, other in zip(ours, plain, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other)
    expected = torch.autograd.grad(plain.minimised, logits)
    torch.testing.assert_close(torch.autograd.grad(ours.minimised, logits), expected)


@pytest.mark.parametrize("r_drop", [0.0, 1.0])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_model_that_copies_has_finite_gradients_everywhere(r_drop: float, autocast: bool) -> None:
    config = make_config(Path("nowhere"), {"r_drop": r_drop})
    model = build_model(config.model, 9, 7)
    objective = build_objective(model, config).train()
    batch = Batch.from_ids([([5, 16, 4, 17, 16], [4, 7 + 1, 7 + 3]), ([9 + 5, 4], [5, 6, 4, 4])])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = objective(batch)
    assert loss.minimised.dtype == torch.float32
    loss.minimised.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert loss.smoothed.isfinite()


# --- training -----------------------------------------------------------------------------------------------------

VERBS = {"sieht": "sees", "ruft": "calls", "kennt": "knows"}


def write_names(folder: Path, name: str, count: int, rng: random.Random) -> dict[str, str]:
    """`X sieht Y` → `Y is seen by X`, in short: two names that stand nowhere else change places around a verb."""
    names = ["".join(rng.choices("abcdefghij", k=7)) for _ in range(2 * count)]
    lines = [(one, rng.choice(sorted(VERBS)), other) for one, other in zip(names[::2], names[1::2], strict=True)]
    (folder / f"{name}.de").write_text("".join(f"{one} {verb} {other}\n" for one, verb, other in lines))
    (folder / f"{name}.en").write_text("".join(f"{other} {VERBS[verb]} {one}\n" for one, verb, other in lines))
    return {"source": str(folder / f"{name}.de"), "target": str(folder / f"{name}.en")}


def make_config(folder: Path, training: dict[str, Any], **data: Any) -> Config:
    files = {"source": "a", "target": "b"}
    shape = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "heads": 2, "d_ff": 32, "norm": "pre"}
    numbers = {"batch_tokens": 256, "max_steps": 6, "warmup_steps": 20, "validate_every": 1000, "save_every": 1000}
    return Config.model_validate(
        {
            "data": {"source_language": "de", "target_language": "en", "workers": 0, "max_length": 30}
            | {"train": files, "valid": files}
            | data,
            "vocabulary": {"tokenizer": "whitespace", "shared": False, "min_freq": 2},
            "model": {**shape, "generator": "pointer", "dropout": 0.1, "tie_embeddings": "decoder"},
            "training": {**numbers, "validation_sentences": 4, "log_every": 1000, **training},
        }
    )


@pytest.fixture
def names(tmp_path: Path) -> dict[str, dict[str, str]]:
    rng = random.Random(1)
    return {name: write_names(tmp_path, name, count, rng) for name, count in (("train", 400), ("valid", 20))}


@pytest.mark.medium
def test_what_no_vocabulary_holds_is_copied_to_the_very_text(
    tmp_path: Path, names: dict[str, dict[str, str]], capfd: pytest.CaptureFixture[str]
) -> None:
    training = {"max_steps": 80, "schedule": "cosine", "peak_learning_rate": 0.01, "save_every": 1000}
    run = train(make_config(tmp_path, training, **names), tmp_path / "run", quiet=True).run
    text = "Zoë sieht 3,14\n3,14 kennt ﬁ</s>\nAda ruft <unk>\n"
    (tmp_path / "new.de").write_text(text, encoding="utf-8")
    for search in (["--beam", "3"], ["--greedy"]):
        capfd.readouterr()
        assert (
            main(["translate", str(run), "-i", str(tmp_path / "new.de"), "--device", "cpu", "--no-protect", *search])
            == 0
        )
        written = capfd.readouterr().out
        assert written == "3,14 sees Zoë\nﬁ</s> knows 3,14\n<unk> calls Ada\n"
    translator = Translator.load(run, device="cpu")
    (found,) = translator.translate_batch(["Zoë sieht 3,14 sieht Bo"], alignments=True)
    assert found.hypotheses[0].tokens == found.text.split()
    translator.config = translator.config.model_copy(
        update={"data": translator.config.data.model_copy(update={"max_length": 3})}
    )
    assert translator.translate(["Eva ruft Udo Zoë sieht Bo"]) == ["Udo calls Eva Bo sees Zoë"]
    wrong, right = translator.score(["Zoë sieht Bo"] * 2, ["Zoë sees Bo", "Bo sees Zoë"])
    assert right.log_probability > -1 > wrong.log_probability
    assert right.tokens == ["Bo", "sees", "Zoë", "</s>"]
    constraints = [Constraints(required=("Udo",)), Constraints(forbidden=("Eva", "knows")), Constraints(prefix="Eva")]
    lines = ["Eva ruft Udo Eva kennt Bo"] * 3  # two pieces each
    required, forbidden, begun = translator.translate_batch(lines, constraints=constraints)
    assert "Udo" in required.tokens
    assert not {"Eva", "knows"} & set(forbidden.text.split())
    assert begun.tokens[0] == "Eva"
    with pytest.raises(UserError, match="'Ugo': cannot be required"):
        translator.translate_batch(lines[:1], constraints=[Constraints(required=("Ugo",))])


def test_a_run_continues_bit_for_bit_and_its_model_is_whole(tmp_path: Path, names: dict[str, dict[str, str]]) -> None:
    training = {"max_steps": 4, "accumulation": 2, "batch_tokens": 64, "save_every": 2}
    whole = train(make_config(tmp_path, training, **names), tmp_path / "whole", quiet=True).run
    half = make_config(tmp_path, training | {"max_steps": 2}, **names)
    train(half, tmp_path / "halves", quiet=True)
    again = train(make_config(tmp_path, training, **names), tmp_path / "halves", quiet=True).run
    one, other = (load_model(RunFolder(run).step_folder(4)).model.state_dict() for run in (whole, again))
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
    loaded = load_model(whole)
    assert isinstance(loaded.model.generator, PointerGenerator)
    ids = loaded.model.generator.target_ids.tolist()
    targets = loaded.codecs.target.vocabulary.get_stoi()
    assert ids == [targets.get(token, -1) for token in loaded.codecs.source.vocabulary.get_itos()]


def test_other_programs_formats_refuse_it(
    tmp_path: Path, names: dict[str, dict[str, str]], capfd: pytest.CaptureFixture[str]
) -> None:
    run = train(make_config(tmp_path, {"max_steps": 1}, **names), tmp_path / "run", quiet=True).run
    for name in ("ctranslate2", "onnx", "huggingface"):
        capfd.readouterr()
        assert main(["export", str(run), "--format", name, "--out", str(tmp_path / name)]) == 2
        told = capfd.readouterr().err
        assert told.startswith("error: ")
        assert told.count("\n") == 1
        assert "generator: pointer" in told
        assert not (tmp_path / name).exists()
