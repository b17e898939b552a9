"""What may change between two sessions of a run; a run may start where another model is, with parts of it frozen."""

import os
import re
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import write_corpus
from transformer_cli.build import build_model, load_model
from transformer_cli.config import (
    Config,
    ModelConfig,
    TextFiles,
    config_of_tree,
    dump_config,
    load_config,
    parse_config,
)
from transformer_cli.config.presets import CorpusSize, resolve_preset
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.errors import UserError
from transformer_cli.storage.checkpoint import load_training_state
from transformer_cli.storage.run_folder import WEIGHTS, RunFolder
from transformer_cli.text.codec import Codecs
from transformer_cli.text.vocabulary import UNK
from transformer_cli.training.dry_run import dry_run
from transformer_cli.training.run import find_run_state, freeze_parts, train
from transformer_cli.training.start import MAY_CHANGE, build_vocabulary, check_continuation, load_or_build_codecs

MakeTree = Callable[..., dict[str, Any]]
MakeConfig = Callable[..., Config]

# --- which keys may change --------------------------------------------------------------------------------------------


DATA = """\
data:
  source_language: de
  target_language: en
  train: {source: a.de, target: a.en}
  valid: {source: b.de, target: b.en}
"""
# Written out, so that no entry of MAY_CHANGE comes or goes unseen.
CHANGES = {
    "training.max_steps": "training.max_steps=7",
    "training.max_epochs": "training.max_epochs=7",
    "training.patience": "training.patience=7",
    "training.keep_last": "training.keep_last=7",
    "training.keep_best": "training.keep_best=7",
    "training.average_last": "training.average_last=7",
    "training.average_best": "training.average_best=7",
    "training.save_every": "training.save_every=7",
    "training.max_skipped": "training.max_skipped=7",
    "data.workers": "data.workers=7",
    "data.license": "data.license='7'",
    "decoding": "decoding.beam_size=7",
}
FIXED = [
    *["model.dropout=0.2", "model.d_ff=64", "vocabulary.size=99", "training.seed=7", "training.batch_tokens=999"],
    *["training.factor=2.0", "training.validate_every=7", "data.max_length=99", "data.train.source=c.de"],
    *["training.ema_decay=0.9", "training.r_drop=1.0", "training.init_from=old", "training.freeze=[encoder]"],
    *["training.compile=true", "training.pad_to=8"],
]


def config(*overrides: str) -> Config:
    return parse_config(DATA, "my.yaml", ["training.keep_last=9", "training.keep_best=9", *overrides])


def test_every_key_that_may_change_is_tried() -> None:
    assert set(CHANGES) == set(MAY_CHANGE)


@pytest.mark.parametrize("override", CHANGES.values())
def test_what_may_change_is_named_in_a_note(override: str, tmp_path: Path) -> None:
    key = override.split("=")[0]
    notes = check_continuation(RunFolder(tmp_path), config(), config(override), 1)
    assert len(notes) == 1
    assert notes[0].startswith(f"{key} changed from ")
    assert notes[0].replace('"7"', "7").endswith(" to 7")


@pytest.mark.parametrize("override", FIXED)
def test_any_other_key_is_refused_by_name(override: str, tmp_path: Path) -> None:
    key, value = override.split("=")
    said = {"[encoder]": '["encoder"]', "old": '"old"', "c.de": '"c.de"'}.get(value, value)
    with pytest.raises(UserError, match=rf"trained with {key} = .* now says {re.escape(said)};"):
        check_continuation(RunFolder(tmp_path), config(), config(override), 1)


@pytest.mark.parametrize(("schedule", "last", "may"), [("wsd", 60, True), ("wsd", 61, False), ("cosine", 1, False)])
def test_the_last_step_may_change_until_the_rate_depends_on_it(
    schedule: str, last: int, may: bool, tmp_path: Path
) -> None:
    shape = [f"training.schedule={schedule}", "training.peak_learning_rate=0.1", "training.warmup_steps=5"]
    old, new = (config(*shape, f"training.max_steps={steps}") for steps in (100, 80))
    other = config("training.schedule=cosine", *shape[1:], "training.max_steps=80")
    if schedule == "wsd":
        with pytest.raises(UserError, match=r"training\.schedule"):
            check_continuation(RunFolder(tmp_path), old, other, last)
    if schedule == "wsd" and not may:
        with pytest.raises(UserError, match=r"after 61 steps, it must be at least 82\)"):
            check_continuation(RunFolder(tmp_path), old, new, last)
        assert check_continuation(RunFolder(tmp_path), old, config(*shape, "training.max_steps=82"), last)
    for before, after in ((old, new), (new, old)):
        if may:
            notes = check_continuation(RunFolder(tmp_path), before, after, last)
            assert notes[0].startswith("training.max_steps changed")
        else:
            with pytest.raises(UserError, match=r"trained with training\.max_steps = "):
                check_continuation(RunFolder(tmp_path), before, after, last)


def test_noise_may_not_change_within_a_run_nor_after_its_vocabulary(tmp_path: Path) -> None:
    old, new = config("training.noise={capitals: 0.1}"), config("training.noise={capitals: 0.2}")
    for last, why in ((1, "the run was trained"), (None, "its vocabulary was built")):
        said = rf"{why} with training\.noise\.capitals = 0\.1, the config now says 0\.2; set it back"
        with pytest.raises(UserError, match=said):
            check_continuation(RunFolder(tmp_path), old, new, last)
    with pytest.raises(UserError, match=r"training\.noise = .*, the config now says null"):
        check_continuation(RunFolder(tmp_path), old, config(), None)


@pytest.mark.parametrize("tokenizer", ["whitespace", "sentencepiece"])
def test_a_vocabulary_is_made_of_the_noise_that_the_model_will_see(
    tmp_path: Path, tiny_tree: MakeTree, tokenizer: str
) -> None:
    tree = tiny_tree(tmp_path, noise={"capitals": 0.5})
    tree["vocabulary"] = {"tokenizer": tokenizer, "size": 340, "algorithm": "bpe"}
    noisy = config_of_tree(tree, "my.yaml")
    corpus = TextCorpus(tmp_path / "train.de", tmp_path / "train.en")
    plain = noisy.model_copy(update={"training": noisy.training.model_copy(update={"noise": None})})
    of_run, of_plain = (load_or_build_codecs(one, corpus, None, None, False)[0] for one in (noisy, plain))
    build_vocabulary(noisy, tmp_path / "run")
    built = Codecs.load(tmp_path / "run", noisy)
    assert built.fingerprint == of_run.fingerprint != of_plain.fingerprint
    capitals = "BALAN DEMER FINIS"
    assert len(of_run.source.encode(capitals)) <= len(of_plain.source.encode(capitals))
    unknown = [codecs.source.encode(capitals).count(UNK) for codecs in (of_run, of_plain)]
    if tokenizer == "whitespace":
        assert unknown == [0, 3]
    else:
        assert len(of_run.source.encode(capitals)) < len(of_plain.source.encode(capitals)) / 2


@pytest.mark.parametrize("tokenizer", ["whitespace", "sentencepiece"])
def test_a_vocabulary_has_nothing_of_lines_too_long_to_train_on(
    tmp_path: Path, tiny_tree: MakeTree, tokenizer: str
) -> None:
    tree = tiny_tree(tmp_path)
    tree["vocabulary"] = {"tokenizer": tokenizer, "size": 340, "algorithm": "bpe"}
    config = config_of_tree(tree, "my.yaml")
    corpus = TextCorpus(tmp_path / "train.de", tmp_path / "train.en")
    before, _ = load_or_build_codecs(config, corpus, None, None, False)
    for language, word in (("de", "überlang"), ("en", "overlong")):
        with (tmp_path / f"train.{language}").open("a", encoding="utf-8") as file:
            file.write(f"{word} " * (config.data.max_length + 1) + f"\n{word}\n")
    after, _ = load_or_build_codecs(config, corpus, None, None, False)
    index = after.source.vocabulary.get_itos().index
    assert {*after.source.vocabulary.get_itos()} >= {"<unk>"} | ({"überlang"} if tokenizer == "whitespace" else set())
    counts = after.source.vocabulary.counts
    assert max(counts[index(token)] for token in after.source.tokenize("überlang")) < config.data.max_length
    assert sum(after.source.vocabulary.counts) - sum(before.source.vocabulary.counts) < config.data.max_length


# --- where a run stands -----------------------------------------------------------------------------------------------


def preset_for(config: Config, pairs: int) -> Config:
    """The config with what its preset takes for so many captions."""
    return resolve_preset(config, lambda _: CorpusSize(pairs, pairs, 60 * pairs))[0]


def begun(folder: Path, config: Config, pairs: int = 200) -> RunFolder:
    """A run that has its config so far, as `tfm build-vocab` leaves it."""
    run = RunFolder(folder)
    run.create()
    run.config_path.write_text(dump_config(preset_for(config, pairs)))
    return run


def refusal(run: RunFolder, asked: Config, pairs: int = 200) -> str:
    with pytest.raises(UserError) as error:
        find_run_state(
            run,
            asked,
            preset_for(asked, pairs),
            resuming=True,
            resume=None,
        )
    return str(error.value)


def with_vocabulary(tree: dict[str, Any], preset: str | None, **values: Any) -> Config:
    model = {"preset": preset} if preset else tree["model"]
    return config_of_tree({**tree, "model": model, "training": {}, "vocabulary": values}, "my.yaml")


def test_a_key_that_the_preset_chose_is_reported_as_such(tmp_path: Path, tiny_tree: MakeTree) -> None:
    tree = tiny_tree(tmp_path)
    auto = with_vocabulary(tree, "auto")
    run = begun(tmp_path / "run", auto)
    find_run_state(run, auto, preset_for(auto, 200), resuming=True, resume=None)
    said = refusal(run, auto, pairs=20_000)
    for part in ("vocabulary.size = 2000", "8000", "model.preset = auto", "data.train", "set it back"):
        assert part in said
    named = refusal(run, with_vocabulary(tree, "small"))
    assert re.search("vocabulary.size = 2000, .*8000 .*model.preset = small", named)


@pytest.mark.parametrize(("first", "then"), [(["training.max_steps=40"], []), ([], ["training.max_steps=400"])])
def test_a_run_of_a_preset_may_become_longer_or_shorter(
    tmp_path: Path, tiny_tree: MakeTree, first: list[str], then: list[str]
) -> None:
    """A preset shortens the warmup of short runs, but a run that goes on keeps that with which it began."""
    sizes = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 16, "heads": 2, "d_ff": 16}
    tree = {**tiny_tree(tmp_path), "model": {**sizes, "preset": "auto"}, "vocabulary": {"tokenizer": "whitespace"}}
    tree["training"] = {"batch_tokens": 300, "validate_every": 4, "save_every": 4, "validation_sentences": 2}
    run = tmp_path / "run"

    def asked(*overrides: str) -> Config:
        return config_of_tree(deepcopy(tree), "my.yaml", overrides)

    train(asked(*first), run, device="cpu", quiet=True, until=4)
    warmup = load_config(run / "config.yaml").training.warmup_steps
    train(asked(*then), run, device="cpu", quiet=True, until=8)
    now = load_config(run / "config.yaml").training
    assert now.warmup_steps == warmup == (8 if first else 300)
    assert now.max_steps == (9000 if first else 400)
    with pytest.raises(UserError, match=r"warmup_steps = \d+, the config now says 7"):
        train(asked(*then, "training.warmup_steps=7"), run, device="cpu", quiet=True)
    with pytest.raises(UserError, match=f"warmup_steps={warmup}, with which the run began"):
        train(asked("training.max_steps=5"), run, device="cpu", quiet=True)


def test_a_key_that_is_set_or_that_no_preset_has_is_reported_as_before(tmp_path: Path, tiny_tree: MakeTree) -> None:
    tree = tiny_tree(tmp_path)
    run = begun(tmp_path / "run", with_vocabulary(tree, "tiny", lowercase=True))
    for asked in (
        with_vocabulary(tree, "tiny", lowercase=True, size=300),
        with_vocabulary(tree, "tiny"),
        with_vocabulary(tree, None, lowercase=True, algorithm="bpe"),
    ):
        assert "chosen" not in refusal(run, asked)


@pytest.mark.parametrize(
    ("training", "options", "says"),
    [
        ({"max_steps": 9, "seed": 9}, {}, "training.seed = 1, the config now says 9;"),
        ({"max_steps": 9}, {"resume": True, "fresh": True}, "nothing to resume here"),
    ],
)
def test_training_and_a_dry_run_refuse_the_same(
    tmp_path: Path, tiny_tree: MakeTree, training: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    train(Config.model_validate(tiny_tree(tmp_path, max_steps=1)), tmp_path / "run", device="cpu", quiet=True)
    config = Config.model_validate(tiny_tree(tmp_path, **training))
    said = []
    for begin in (lambda *args, **named: list(dry_run(*args, **named)), train):
        with pytest.raises(UserError) as error:
            begin(config, tmp_path / "run", device="cpu", quiet=True, **options)
        said.append(str(error.value))
    assert says in said[0]
    assert said[0] == said[1]


def change(config: Config, section: str, **values: Any) -> Config:
    return config.model_copy(update={section: getattr(config, section).model_copy(update=values)})


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_model(RunFolder(run).step_folder(step)).model.state_dict()


@pytest.fixture
def old(tmp_path: Path, tiny_config: MakeConfig) -> Config:
    """The config of a run in tmp_path / "old"; more words in other data would build another vocabulary."""
    config = tiny_config(tmp_path, max_steps=4)
    train(config, tmp_path / "old", quiet=True)
    (tmp_path / "new").mkdir()
    source = write_corpus(tmp_path / "new", "train", 100, seed=9)
    for path in source.values():
        with open(path, "a") as file:
            file.write("a word that nobody knows\n")
    train_data = TextFiles.model_validate(source)
    return change(change(config, "data", train=train_data), "training", max_steps=2)


# --- training.init_from -----------------------------------------------------------------------------------------------


@pytest.mark.medium
@pytest.mark.parametrize("named", ["old", "old/step-00000004"])
def test_a_run_begins_with_the_weights_and_vocabulary_of_a_model(
    tmp_path: Path, old: Config, named: str, capsys: Any
) -> None:
    still = change(old, "training", init_from=str(tmp_path / named), max_steps=1, factor=1e-30)
    train(still, tmp_path / "run")
    assert f"start        weights and vocabulary of {tmp_path / 'old'}" in capsys.readouterr().err
    new, before = load_model(tmp_path / "run"), load_model(tmp_path / named)
    assert new.codecs.fingerprint == before.codecs.fingerprint
    assert "nobody" not in new.codecs.source.vocabulary.get_itos()
    for name, tensor in new.model.state_dict().items():
        torch.testing.assert_close(tensor, before.model.state_dict()[name], rtol=0, atol=1e-12)
    assert new.config.training.init_from == str(tmp_path / named)
    scratch = change(still, "training", init_from=None)
    train(scratch, tmp_path / "scratch", quiet=True)
    assert "nobody" in load_model(tmp_path / "scratch").codecs.source.vocabulary.get_itos()


@pytest.mark.medium
def test_the_model_may_vanish_once_the_run_has_begun(tmp_path: Path, old: Config) -> None:
    whole = change(old, "training", init_from=str(tmp_path / "old"), max_steps=4)
    train(whole, tmp_path / "whole", quiet=True)
    train(change(whole, "training", max_steps=2), tmp_path / "parts", quiet=True)
    shutil.rmtree(tmp_path / "old")
    train(whole, tmp_path / "parts", quiet=True)
    assert all(torch.equal(a, weights(tmp_path / "whole", 4)[n]) for n, a in weights(tmp_path / "parts", 4).items())


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("model", {"d_model": 32}, r"has model\.d_model = 16, the config says 32; .* set model\.d_model: 16"),
        ("model", {"d_ff": 64, "norm": "post"}, r"has model\.d_ff = 32, the config says 64, and 1 more keys differ"),
        ("vocabulary", {"lowercase": True}, r"vocabulary\.lowercase = false, the config says true"),
        ("data", {"source_language": "fr"}, r'data\.source_language = "de", the config says "fr"'),
        ("model", {"head_dim": 8}, r"model\.head_dim = null, the config says 8"),
        ("model", {"positions": "rotary"}, r'model\.positions = "sinusoidal", the config says "rotary"'),
        ("model", {"qk_norm": True}, r"model\.qk_norm = false, the config says true"),
    ],
)
def test_another_kind_of_model_is_refused(
    tmp_path: Path, old: Config, section: str, values: dict[str, Any], said: str
) -> None:
    config = change(change(old, "training", init_from=str(tmp_path / "old")), section, **values)
    with pytest.raises(UserError, match=rf"^training\.init_from: .*{said}"):
        train(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_dropout_may_differ(tmp_path: Path, old: Config) -> None:
    config = change(
        change(old, "training", init_from=str(tmp_path / "old")),
        "model",
        dropout=0.4,
        max_positions=9,
        embedding="one_hot",
    )
    assert train(config, tmp_path / "run", quiet=True).step == 2


def test_a_vocabulary_that_the_run_built_for_itself_is_refused(tmp_path: Path, old: Config) -> None:
    run = RunFolder(tmp_path / "run")
    train(old, run.path, quiet=True)
    for path in run.path.glob("step-*"):
        shutil.rmtree(path)
    (run.path / "checkpoints.json").unlink()
    config = change(old, "training", init_from=str(tmp_path / "old"))
    with pytest.raises(UserError, match=r"another vocabulary than the run has built already.*--fresh"):
        train(config, run.path, quiet=True)
    assert train(config, run.path, quiet=True, fresh=True).step == 2


def test_a_model_that_is_not_there_is_named(tmp_path: Path, old: Config) -> None:
    with pytest.raises(UserError, match=r"^training\.init_from: .*nowhere: no such folder"):
        train(change(old, "training", init_from="nowhere"), tmp_path / "run", quiet=True)


@pytest.mark.parametrize("named", ["old", "old/step-00000004", "link", "old/../old"])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_run_cannot_start_from_itself(tmp_path: Path, old: Config, named: str, fresh: bool) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "old")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    config = change(old, "training", init_from=str(tmp_path / named))
    with pytest.raises(UserError, match=r"^training\.init_from: .* is in the folder of this run itself; .*--out"):
        train(config, tmp_path / "old", quiet=True, fresh=fresh)
    with pytest.raises(UserError, match="of this run itself"):
        next(dry_run(config, tmp_path / "old", quiet=True, fresh=fresh))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_damaged_model_is_refused(tmp_path: Path, old: Config) -> None:
    path = tmp_path / "old" / "step-00000004" / WEIGHTS
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    os.chmod(path, 0o644)
    path.write_bytes(content)
    with pytest.raises(UserError, match="does not match its manifest"):
        train(change(old, "training", init_from=str(path.parent)), tmp_path / "run", quiet=True)


# --- training.freeze --------------------------------------------------------------------------------------------------

PREFIXES = {
    "embeddings": ("source_embedding.", "target_embedding."),
    "encoder": ("encoder.",),
    "decoder": ("decoder.",),
    "generator": ("generator.",),
}


@pytest.mark.medium
@pytest.mark.parametrize("parts", [("encoder",), ("embeddings", "encoder"), ("decoder", "generator"), ("generator",)])
@pytest.mark.parametrize("tied", ["none", "all"])
def test_what_is_frozen_stays_and_the_rest_learns(
    tmp_path: Path, tiny_config: MakeConfig, parts: tuple[str, ...], tied: str
) -> None:
    config = change(tiny_config(tmp_path, freeze=parts, max_steps=2, ema_decay=0.5), "model", tie_embeddings=tied)
    still = change(config, "training", freeze=(), factor=1e-30, max_steps=1, ema_decay=None)
    train(still, tmp_path / "start", quiet=True)
    train(change(config, "training", init_from=str(tmp_path / "start")), tmp_path / "run", quiet=True)
    before, after = weights(tmp_path / "start", 1), weights(tmp_path / "run", 2)
    frozen = tuple(prefix for part in parts for prefix in PREFIXES[part])
    if tied == "all" and {"embeddings", "generator"} & set(parts):
        frozen += (*PREFIXES["embeddings"], *PREFIXES["generator"])
    for name, tensor in after.items():
        if "positions" not in name:
            assert torch.equal(tensor, before[name]) is name.startswith(frozen), name
    state = load_training_state(RunFolder(tmp_path / "run").step_folder(2)).tensors
    moved = [key for key in state if key.startswith("optimizer.exp_avg.")]
    assert moved
    assert not any(key.removeprefix("optimizer.exp_avg.").startswith(frozen) for key in moved)


def test_a_run_with_frozen_parts_continues_bit_for_bit(tmp_path: Path, tiny_config: MakeConfig) -> None:
    whole = tiny_config(tmp_path, freeze=("embeddings", "encoder"), max_steps=7)
    train(whole, tmp_path / "whole", quiet=True)
    for max_steps in (3, 7):
        train(change(whole, "training", max_steps=max_steps), tmp_path / "parts", quiet=True)
    names = (WEIGHTS, "training.safetensors")
    files = [
        [(RunFolder(tmp_path / run).step_folder(7) / name).read_bytes() for name in names] for run in ("whole", "parts")
    ]
    assert files[0] == files[1]


def model(tied: str = "all") -> Any:
    shape = ModelConfig.model_validate(
        {"encoder_layers": 1, "decoder_layers": 1, "d_model": 8, "heads": 2, "d_ff": 16, "tie_embeddings": tied}
    )
    return build_model(shape, 12, 12)


def test_a_shared_matrix_is_reported() -> None:
    assert freeze_parts(model(), ()) == []
    (first, second) = freeze_parts(model(), ("embeddings",))
    assert first.startswith("frozen       embeddings: 96 of ")
    assert "the generator shares" in second
    assert len(freeze_parts(model("none"), ("embeddings",))) == 1


def test_nothing_left_to_learn_is_an_error() -> None:
    with pytest.raises(UserError, match=r"training\.freeze: encoder, decoder, generator leave nothing to learn"):
        freeze_parts(model(), ("encoder", "decoder", "generator"))
    freeze_parts(model("none"), ("encoder", "decoder", "generator"))


def test_one_embedding_alone_is_frozen() -> None:
    apart = model("none")
    assert len(freeze_parts(apart, ("source_embedding",))) == 1
    assert not any(parameter.requires_grad for parameter in apart.source_embedding.parameters())
    assert all(parameter.requires_grad for parameter in apart.target_embedding.parameters())
    assert len(freeze_parts(model("none"), ("source_embedding", "target_embedding"))) == 1
    lines = freeze_parts(model("decoder"), ("target_embedding",))
    assert ["generator" in line for line in lines[1:]] == [True]
    lines = freeze_parts(model(), ("source_embedding",))
    assert [line.split()[4] for line in lines[1:]] == ["generator", "target"]
    lines = freeze_parts(model(), ("generator",))
    assert ["embeddings" in line for line in lines[1:]] == [True]
