"""A dry run tells what training would begin with, and leaves nothing behind."""

import itertools
import json
import re
import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from transformer_cli.config import Config, TrainingConfig
from transformer_cli.errors import UserError
from transformer_cli.storage.checkpoint import load_training_values
from transformer_cli.text.codec import Codecs
from transformer_cli.training import dry_run as rehearsal
from transformer_cli.training.dry_run import dry_run, measure_peak
from transformer_cli.training.run import train
from transformer_cli.training.saving import Learner, read_progress
from transformer_cli.training.schedules import decay, learning_rate, r_drop_share
from transformer_cli.variants.scheduled_sampling import ScheduledSamplingObjective


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("transformer_cli.training.dry_run.TIMED", 2)


def reported(config: Config, run: Path, **options: Any) -> dict[str, str]:
    """The lines by their first word; those that go on with another one are joined to it."""
    found: dict[str, str] = {}
    name = ""
    for line in dry_run(config, run, device="cpu", **options):
        name = line[:13].strip() if not line.startswith("    ") else name
        found[name] = f"{found[name]}\n{line}" if name in found else line
    return found


def test_says_what_training_will_do(tiny_config: Callable[..., Config], tmp_path: Path) -> None:
    config = tiny_config(tmp_path, accumulation=2)
    lines = reported(config, tmp_path / "run", quiet=True)
    batches, updates = (
        int(re.search(pattern, lines[name])[1].replace(",", ""))  # type: ignore[index]
        for name, pattern in (("batches", r"about ([\d,]+) per epoch"), ("training", r"about ([\d,]+) updates"))
    )
    assert updates == -(-batches // 2)
    assert f"12 steps are {12 / updates:.1f} epochs" in lines["schedule"]
    for step in (1, 6, 12):
        assert f"{learning_rate(config.training, 16, step):.2e} at step {step}" in lines["schedule"]
    assert "200 pairs" in lines["data"]
    assert " MiB" in lines["memory"]
    assert len(re.findall(r"[\d.e-]+ s per update with the", lines["time"])) == 2


def test_says_where_training_may_end_sooner(tiny_config: Callable[..., Config], tmp_path: Path) -> None:
    limited, patient = (
        "\n".join(dry_run(tiny_config(tmp_path, max_steps=30, patience=patience), tmp_path / "run", quiet=True))
        for patience in (None, 2)
    )
    assert "at most 30 steps" not in limited
    assert "training     at most 30 steps (fewer where 2 validations bring no improvement), about " in patient
    assert "schedule     at most 30 steps are " in patient
    assert "minutes for at most 30 steps" in patient
    at_peak = {"schedule": "wsd", "peak_learning_rate": 0.01, "warmup_steps": 2}
    lines = dry_run(tiny_config(tmp_path, max_steps=40, patience=2, **at_peak), tmp_path / "run", quiet=True)
    assert "(the rate falls once 2 validations bring no improvement, at the latest from step 30), about" in "".join(
        lines
    )


@pytest.mark.medium
@pytest.mark.parametrize(("gain", "says"), [(0.31, "hardly follows from the source"), (1.4, "it follows its source")])
def test_says_whether_the_source_is_of_use_to_a_run(
    gain: float, says: str, tiny_config: Callable[..., Config], tmp_path: Path
) -> None:
    config = tiny_config(tmp_path, validate_every=3)
    assert "source" not in reported(config, tmp_path / "run", quiet=True)
    train(config, tmp_path / "run", quiet=True, until=1)
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = [{**json.loads(line), "valid_source_gain": gain} for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    line = reported(config, tmp_path / "run", quiet=True)["source"]
    assert "at step 3 " in line
    assert f"{gain:.2f} nats" in line
    assert says in line


def test_says_what_a_corpus_like_this_one_led_to_and_how_sure_that_is(tiny_tree: Any, tmp_path: Path) -> None:
    tree = tiny_tree(tmp_path)
    assert "measured" not in reported(Config.model_validate(tree), tmp_path / "run", quiet=True)
    tree["model"] |= {"preset": "auto", "decoder_layers": 2}
    tree["training"]["max_steps"] = 40
    lines = reported(Config.model_validate(tree), tmp_path / "run", quiet=True)
    assert "1,000 captions of Multi30k" in lines["measured"]
    assert lines["measured"].endswith("; so can the keys that your config sets itself")
    assert not [*rehearsal._expect(1000, 18.0, as_chosen=True)][-1].endswith("itself")
    like = ((900, "1,000"), (4_000, "5,000"), (9_000, "10,000"), (20_000, "29,000"))
    captions = (*like, (80_000, "29,000"), (10**6, "29,000"))
    for (pairs, nearest), fewer_or_more in itertools.product(captions, (-2.0, 0.5)):
        length = fewer_or_more + (17.0 if nearest == "1,000" else 15.0)  # with 2,000 subwords, or 8,000
        line, sure = rehearsal._expect(pairs, length, as_chosen=True)
        assert f" {nearest} captions" in line
        assert ("times as many" in sure) == (pairs >= 80_000)
        assert "times as long" not in sure
    for pairs, length in ((23_000, 32.0), (10_000, 60.0), (100_000, 30.0)):
        line, sure = rehearsal._expect(pairs, length, as_chosen=True)
        assert "LibreOffice" in line
        assert ("rough guess" in sure) == ((pairs, length) != (23_000, 32.0))
    results = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    for known in rehearsal.MEASURED:
        row = rf"^\| {known.pairs:,} .*" if "Multi30k" in known.what else r"^\| .*`auto` .*"
        assert re.search(rf"{row}\| {known.bleu}(0|) (\(.*\) |)\| ", results, re.MULTILINE), known


def test_says_where_characters_crowd_the_vocabulary(tiny_tree: Any, tmp_path: Path) -> None:
    tree = tiny_tree(tmp_path)
    crowded = Config.model_validate({**tree, "vocabulary": {"size": 330, "algorithm": "bpe"}})
    assert "256 bytes take 8" in reported(crowded, tmp_path / "run", quiet=True)["crowded"]
    assert "crowded" not in reported(Config.model_validate(tree), tmp_path / "run", quiet=True)


def test_says_how_many_sources_have_noise_and_how_many_are_too_long_for_it(tiny_tree: Any, tmp_path: Path) -> None:
    tree = tiny_tree(tmp_path, noise={"capitals": 0.5, "typos": 0.1})
    assert "noise" not in reported(Config.model_validate(tiny_tree(tmp_path)), tmp_path / "run", quiet=True)
    said = reported(Config.model_validate(tree), tmp_path / "run", quiet=True)["noise"]
    assert re.fullmatch(r"noise        (\d+) sources of the first epoch in capitals or title case", said), said
    # The vocabulary of another model has no capitals, and spells them in bytes.
    plain = {**tree, "training": {**tree["training"], "noise": None, "max_steps": 4}}
    words = {"vocabulary": {"size": 330, "algorithm": "bpe"}, "data": {**tree["data"], "max_length": 30}}
    train(Config.model_validate({**plain, **words}), tmp_path / "old", quiet=True)
    again = {**tree, **words, "training": {**tree["training"], "init_from": str(tmp_path / "old")}}
    said = reported(Config.model_validate(again), tmp_path / "run", quiet=True)["noise"]
    found = re.search(r"(\d+) sources of the first epoch in capitals or title case; (\d+) more stay as written", said)
    assert found is not None, said
    assert 80 < int(found[1]) + int(found[2]) < 120


def test_without_validation_files_nothing_is_written(tiny_tree: Any, tmp_path: Path) -> None:
    tree = tiny_tree(tmp_path, pairs=400)
    del tree["data"]["valid"]
    lines = list(dry_run(Config.model_validate(tree), tmp_path / "run", device="cpu", quiet=True))
    assert any("pairs held out of data.train" in line for line in lines)
    assert not (tmp_path / "run").exists()


def test_the_moving_average_takes_memory_too(tiny_config: Callable[..., Config], tmp_path: Path) -> None:
    assert "average" not in reported(tiny_config(tmp_path), tmp_path / "run", quiet=True)["memory"]
    memory = reported(tiny_config(tmp_path, ema_decay=0.9), tmp_path / "run", quiet=True)["memory"]
    assert re.search(r"gradients ([\d.]+ MiB), .*, moving average \1;", memory)


def test_dropout_that_rises_is_named(tiny_config: Callable[..., Config], tmp_path: Path) -> None:
    assert "rises" not in reported(tiny_config(tmp_path), tmp_path / "run", quiet=True)["model"]
    rising = tiny_config(tmp_path, dropout_warmup_steps=1500)
    assert reported(rising, tmp_path / "run", quiet=True)["model"].endswith(" (rises until step 1,500)")


@pytest.mark.parametrize(
    ("rise", "max_steps", "said"),
    [
        (0, 6, ", R-Drop"),
        (2, 9, " (rises until step 2), R-Drop (rises from step 4 until 10)"),
        (2, 4, " (rises until step 2), R-Drop (begins after step 4, so never: lower dropout_warmup_steps)"),
        (10**6, None, " (rises until step 1,000,000), R-Drop (begins after step 2,000,000, so never: lower dropout"),
    ],
)
def test_r_drop_is_named_with_when_it_begins(
    tiny_config: Callable[..., Config], tmp_path: Path, rise: int, max_steps: int | None, said: str
) -> None:
    config = tiny_config(tmp_path, r_drop=1.0, dropout_warmup_steps=rise, max_steps=max_steps, max_epochs=2)
    line = reported(config, tmp_path / "run", quiet=True)["model"]
    assert f"dropout {config.model.dropout:g}{said}" in line


def test_time_counts_steps_with_r_drop_as_long_as_they_are(
    tiny_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-Drop begins after step 41 of 100, the middle, or 61: of updates of one second, and of two with R-Drop."""

    def time_updates(learner: Learner, training: TrainingConfig, _: object, step: int) -> tuple[float, float]:
        return 1.0 + bool(training.r_drop and r_drop_share(training, step + 1)), 100.0

    monkeypatch.setattr(rehearsal, "_time_updates", time_updates)
    for rise, steps_with, said in (
        (20, 59, " (2 s after step 41, with R-Drop)"),
        (30, 39, " (2 s after step 61, with R"),
        (60, 0, " s per update with the first batches, "),
        (0, 100, "2 s per update with the f"),
    ):
        config = tiny_config(tmp_path, r_drop=1.0, dropout_warmup_steps=rise, max_steps=100)
        line = reported(config, tmp_path / "run", quiet=True)["time"]
        assert f"about {(100 + steps_with) / 60:,.1f} minutes for 100 steps" in line
        assert said in line


def test_nothing_is_timed_where_no_step_is_left(tiny_config: Callable[..., Config], tmp_path: Path) -> None:
    config = tiny_config(tmp_path, max_steps=8, schedule="inverse_sqrt", peak_learning_rate=1e-3, validate_every=4)
    train(config, tmp_path / "run", until=4, quiet=True)
    shorter = config.model_copy(update={"training": config.training.model_copy(update={"max_steps": 3})})
    assert reported(shorter, tmp_path / "run", quiet=True)["time"].endswith(" none: step 4 of 3 is done")


def test_parameters_by_part_add_up(tiny_config: Callable[..., Config], tmp_path: Path) -> None:
    lines = reported(tiny_config(tmp_path), tmp_path / "run", quiet=True)
    whole = re.search(r"([\d,]+) parameters", lines["model"])
    assert whole is not None
    parts = [int(part.replace(",", "")) for part in re.findall(r"[\d,]*\d", lines["parameters"])]
    assert sum(parts) == int(whole[1].replace(",", ""))
    assert lines["parameters"].count("shared") == 2  # all three embeddings are one table
    frozen = reported(tiny_config(tmp_path, freeze=("encoder",)), tmp_path / "run", quiet=True)["parameters"]
    assert frozen == re.sub(r"(, encoder [\d,]*\d)", r"\1 (frozen)", lines["parameters"])


def test_the_first_batch_is_decoded(tiny_tree: Any, tmp_path: Path) -> None:
    tree = tiny_tree(tmp_path)
    config = Config.model_validate(tree)
    texts = {side: set(Path(tree["data"]["train"][side]).read_text().splitlines()) for side in ("source", "target")}
    lines = reported(config, tmp_path / "run", quiet=True)["first batch"].splitlines()[1:]
    padded = []
    for text, tokens in zip(lines[::2], lines[1::2], strict=True):
        side, _, sentence = text.strip().partition("       ")
        assert sentence in texts[side]
        words = [word.rpartition(":")[0] for word in tokens.partition(" and ")[0].split()]
        assert " ".join(words) == f"{sentence} </s>"
        padded.append(int(re.search(r" and (\d+) × <pad>:0$|$", tokens)[1] or 0))  # type: ignore[index]
    lengths = [len(text.split()) - 1 + padding for text, padding in zip(lines[::2], padded, strict=True)]
    assert len(set(lengths[::2])) == len(set(lengths[1::2])) == 1  # a batch is a rectangle


def test_of_a_long_sentence_the_first_and_the_last_tokens_are_shown(tiny_tree: Any, tmp_path: Path) -> None:
    tree = tiny_tree(tmp_path)
    for side, word in (("source", "eins"), ("target", "one")):
        path = Path(tree["data"]["train"][side])
        path.write_text("".join(f"{' '.join([word] * length)}\n" for length in (59, 60, 100)))
    tree["data"]["max_length"], tree["training"]["batch_tokens"] = 128, 512
    lines = reported(Config.model_validate(tree), tmp_path / "run", quiet=True)["first batch"].splitlines()[1:]
    kinds = {}
    for text, tokens in zip(lines[::2], lines[1::2], strict=True):
        shown = [word for word in tokens.partition(" and ")[0].split() if word.rpartition(":")[0]]
        kinds[len(text.split()) - 1] = (len(shown), re.findall("… .* …", tokens))
        assert shown[-1].startswith("</s>")
    assert kinds == {59: (60, []), 60: (60, ["… 1 more …"]), 100: (60, ["… 41 more …"])}


def test_nothing_is_written_but_the_cache(tiny_config: Callable[..., Config], tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    before = set(tmp_path.rglob("*"))
    reported(config, tmp_path / "run", quiet=True)
    new = {path.relative_to(tmp_path).parts[0] for path in set(tmp_path.rglob("*")) - before}
    assert new == {"cache"}


def test_a_run_that_has_begun_stays_as_it_is(tiny_config: Callable[..., Config], tmp_path: Path) -> None:
    config, run = tiny_config(tmp_path, max_steps=4), tmp_path / "run"
    train(config, run, device="cpu", quiet=True)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert "finished" in "".join(dry_run(config, run, device="cpu", quiet=True))
    longer = tiny_config(tmp_path, max_steps=30)
    lines = reported(longer, run, quiet=True)
    assert "would continue after step 4;" in lines["run"]
    assert "for 26 steps" in lines["time"]
    with pytest.raises(UserError, match=r"training\.seed"):
        reported(tiny_config(tmp_path, max_steps=30, seed=9), run, quiet=True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_where_the_rate_falls_already_the_end_is_known(tiny_config: Callable[..., Config], tmp_path: Path) -> None:
    still = {"schedule": "wsd", "peak_learning_rate": 1e-30, "warmup_steps": 0, "max_steps": 400}  # nothing improves
    config, run = tiny_config(tmp_path, validate_every=3, save_every=3, patience=2, **still), tmp_path / "run"
    train(config, run, device="cpu", quiet=True, until=9)
    begins = read_progress(load_training_values(run / "step-00000009")).decay_from
    assert begins is not None
    _, last = decay(config.training, begins)
    lines = reported(config, run, quiet=True)
    assert f" {last:,} steps are " in lines["schedule"]
    assert f"0.00e+00 at step {last:,}" in lines["schedule"]
    assert f"for {last - 9:,} steps" in lines["time"]
    assert f"{last:,} steps (the rate falls since step {begins:,})" in lines["training"]
    assert "at most" not in lines["schedule"] + lines["time"] + lines["training"].replace("at most 200 tokens", "")


def test_no_vocabulary_is_built_where_the_run_has_one(
    tiny_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = tiny_config(tmp_path, max_steps=4), tmp_path / "run"
    train(config, run, device="cpu", quiet=True)
    monkeypatch.setattr("transformer_cli.training.start.build_codecs", None)
    reported(tiny_config(tmp_path, max_steps=5), run, quiet=True)
    with pytest.raises(TypeError):
        reported(config, run, fresh=True, quiet=True)


def test_what_training_refuses_is_refused(tiny_tree: Any, tmp_path: Path) -> None:
    tree = tiny_tree(tmp_path)
    tree["data"]["valid"]["source"] = str(tmp_path / "none.de")
    with pytest.raises(UserError, match=r"none\.de: no such file"):
        reported(Config.model_validate(tree), tmp_path / "run", quiet=True)
    with pytest.raises(UserError, match="nothing to resume"):
        reported(Config.model_validate(tiny_tree(tmp_path)), tmp_path / "run", quiet=True, resume=True)


def test_one_process_is_enough(
    tiny_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")  # as torchrun sets it
    with pytest.raises(UserError, match="without torchrun"):
        reported(tiny_config(tmp_path), tmp_path / "run")


def test_a_preset_is_resolved_first(tiny_tree: Any, tmp_path: Path) -> None:
    tree = tiny_tree(tmp_path)
    tree["model"] = {"preset": "auto", "encoder_layers": 1, "decoder_layers": 1}
    tree["training"]["warmup_steps"] = 2
    lines = reported(Config.model_validate(tree), tmp_path / "run", quiet=True)
    assert "for 200 pairs" in lines["preset"]
    assert "preset" not in reported(Config.model_validate(tiny_tree(tmp_path)), tmp_path / "run", quiet=True)


def test_the_peak_of_memory_is_seen() -> None:
    size = 64 * 2**20
    for _ in range(2):  # what came before is forgotten
        grown, used = measure_peak(torch.device("cpu"), lambda: torch.ones(size, dtype=torch.uint8))
        assert size * 0.9 < grown < size * 1.5
        assert grown < used


@pytest.mark.parametrize(("platform", "unit"), [("darwin", 1), ("linux", 1024)])
def test_without_proc_the_peak_is_what_the_system_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, unit: int
) -> None:
    """As on macOS, or in a locked-down container."""
    monkeypatch.setattr(rehearsal, "STATUS", tmp_path / "none" / "status")
    monkeypatch.setattr(rehearsal, "CLEAR", tmp_path / "none" / "clear_refs")
    monkeypatch.setattr("sys.platform", platform)
    peaks = iter([300, 500])
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=next(peaks)))
    assert measure_peak(torch.device("cpu"), lambda: None) == (200 * unit, 500 * unit)


def test_vocabularies_stay_in_memory(
    tiny_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(self: Codecs, folder: Path) -> None:
        raise AssertionError("a dry run saves no vocabulary")

    monkeypatch.setattr(Codecs, "save", save)
    reported(tiny_config(tmp_path), tmp_path / "run", quiet=True)


def test_times_updates_of_the_middle_of_the_run(
    tiny_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    plain = ScheduledSamplingObjective.predict

    def counted(self: ScheduledSamplingObjective, *arguments: Any) -> torch.Tensor:
        passes.append(self.updates)
        return plain(self, *arguments)

    monkeypatch.setattr(ScheduledSamplingObjective, "predict", counted)
    sampling = {"schedule": "linear", "steps": 1, "floor": 0.0, "start_step": 5}
    config = tiny_config(tmp_path, max_steps=12, scheduled_sampling=sampling)
    reported(config, tmp_path / "run", quiet=True)
    assert min(passes) == 6
