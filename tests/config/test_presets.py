"""A preset fills what a config leaves out and nothing else; what comes of it holds every value and needs no preset."""

import json
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.config import (
    Config,
    DataConfig,
    Section,
    TrainingConfig,
    config_of_tree,
    dump_config,
    load_config,
    parse_config,
)
from transformer_cli.config.presets import LADDER, PRESETS, UPDATES, CorpusSize, Rung, Values, resolve_preset, rung_for
from transformer_cli.data import size
from transformer_cli.data.size import measure_corpus
from transformer_cli.errors import UserError

ROOT = Path(__file__).parents[2]
ALL: dict[str, Values] = {**{f"from {rung.letters}": rung.values() for rung in LADDER}, **PRESETS}


def parse(folder: Path, *overrides: str, pairs: int = 3) -> Config:
    """A config over so many pairs, each of a word of four letters."""
    for name in ("a", "b"):
        (folder / name).write_text("".join(f"w{number:03}\n" for number in range(pairs)))
    files = f"{{source: {folder / 'a'}, target: {folder / 'b'}}}"
    text = f"data: {{source_language: de, target_language: en, train: {files}, valid: {files}}}"
    return parse_config(text, "my.yaml", overrides)


def resolved(folder: Path, *overrides: str) -> Config:
    return resolve_preset(parse(folder, *overrides), measure_corpus)[0]


def value(config: Config, key: str) -> Any:
    """A value as YAML has it."""
    section, name = key.split(".")
    found = getattr(getattr(config, section), name)
    return found.model_dump(exclude_unset=True) if isinstance(found, Section) else found


@pytest.mark.parametrize("values", ALL.values(), ids=ALL)
def test_every_value_suits_its_key_and_the_others(values: Values) -> None:
    tree: dict[str, Any] = {"data": dict.fromkeys(("source_language", "target_language"), "de")}
    tree["data"] |= {key: {"source": "a", "target": "b"} for key in ("train", "valid")}
    for key, wanted in values.items():
        section, name = key.split(".")
        tree.setdefault(section, {})[name] = wanted
    config = config_of_tree(tree, "preset")
    assert all(value(config, key) == wanted for key, wanted in values.items())
    assert {"vocabulary.size", "model.d_model", "model.dropout", "training.max_steps", "training.warmup_steps"} <= set(
        values
    )


@pytest.mark.parametrize("preset", ["base", "big"])
def test_base_and_big_are_the_papers(preset: str, tmp_path: Path) -> None:
    # tests/test_docs.py holds the numbers of these configs against the paper; of the presets, only how often they
    # validate and save, precision, clipping and biases of attention are not the config's.
    paper, own = (
        load_config(ROOT / "configs" / f"wmt14_en_de_{preset}.yaml"),
        resolved(tmp_path, f"model.preset={preset}"),
    )
    free = {"attention_bias", "clip_norm", "precision", "validate_every", "validation_sentences", "save_every"}
    free |= {"keep_last", "average_last"}
    for section in ("model", "training"):
        wanted = vars(getattr(paper, section))
        assert {key: found for key, found in vars(getattr(own, section)).items() if key not in free} == {
            key: one for key, one in wanted.items() if key not in free
        }


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fills_what_is_not_set(preset: str, tmp_path: Path) -> None:
    config = resolved(tmp_path, f"model.preset={preset}")
    assert config.model.preset is None
    for key, wanted in PRESETS[preset].items():
        assert value(config, key) == wanted


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_set_stays_even_where_it_is_the_default(preset: str, tmp_path: Path) -> None:
    default = parse(tmp_path)
    kept = [key for key in PRESETS[preset] if "schedule" not in key and "rate" not in key and "factor" not in key]
    overrides = [f"{key}={json.dumps(value(default, key))}" for key in kept]
    config = resolved(tmp_path, f"model.preset={preset}", *overrides)
    assert all(value(config, key) == value(default, key) for key in kept)


def test_without_a_preset_nothing_changes_and_nothing_is_read() -> None:
    text = "data: {source_language: de, target_language: en, train: {file: no.tsv}, valid: {file: no.tsv}}"
    config = parse_config(text, "my.yaml")
    assert resolve_preset(config, measure_corpus) == (config, [])


@pytest.mark.parametrize("rung", LADDER, ids=lambda rung: str(rung.letters))
def test_auto_goes_by_the_amount_of_text(rung: Any) -> None:
    assert rung_for(rung.letters) is rung
    assert rung.letters == 0 or rung_for(rung.letters - 1) is LADDER[LADDER.index(rung) - 1]


def test_the_ladder_goes_up() -> None:
    starts = [rung.letters for rung in LADDER]
    sizes = [list(PRESETS).index(rung.preset) for rung in LADDER]
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    assert sizes == sorted(sizes)
    assert set(sizes) == set(range(len(PRESETS)))


def asked_for(letters: int, *overrides: str) -> Config:
    """What `auto` takes for so much text."""
    text = "data: {source_language: de, target_language: en, train: {file: no.tsv}, valid: {file: no.tsv}}"
    measured = CorpusSize(letters // 60, letters // 60, letters)
    config = parse_config(text, "my.yaml", ["model.preset=auto", *overrides])
    return resolve_preset(config, lambda _: measured)[0]


def test_more_text_is_trained_on_for_longer_but_seen_less_often() -> None:
    letters = [10**3, 2 * 10**4, *(round(10 ** (place / 8)) for place in range(39, 73))]
    steps = [asked_for(count).training.max_steps or 0 for count in letters]
    assert steps == sorted(steps)
    passes = [step / count for step, count in zip(steps, letters, strict=True) if count < 12_000_000]
    assert passes == sorted(passes, reverse=True)
    for count, updates in UPDATES[:3]:
        assert asked_for(count).training.max_steps == updates
    assert asked_for(UPDATES[3][0] - 1).training.max_steps == UPDATES[3][1]
    for count, validations in ((100_000, 60), (1_000_000, 40)):
        training = asked_for(count).training
        assert (training.max_steps or 0) / training.validate_every == pytest.approx(validations, rel=0.01)


def test_a_preset_fills_what_a_guide_does_not_say(tmp_path: Path) -> None:
    of_preset = PRESETS["tiny"]["training.guided_attention"]
    config, lines = resolve_preset(
        parse(tmp_path, "model.preset=tiny", "training.guided_attention.weight=0.1"), measure_corpus
    )
    assert value(config, "training.guided_attention") == {**of_preset, "weight": 0.1}
    assert lines[1].endswith("sets them: training.guided_attention.weight")
    config, lines = resolve_preset(
        parse(tmp_path, "model.preset=tiny", "training.guided_attention={prior: diagonal}"), measure_corpus
    )
    assert value(config, "training.guided_attention") == {"prior": "diagonal"}, "another guide"
    assert lines[1].endswith("sets them: training.guided_attention")


def of_size(folder: Path, measured: CorpusSize, *overrides: str) -> Config:
    return resolve_preset(parse(folder, "model.preset=auto", *overrides), lambda _: measured)[0]


def test_many_characters_get_a_vocabulary_that_has_room_for_words(tmp_path: Path) -> None:
    for characters, pieces in ((0, 2000), (740, 2000), (741, 2500), (2214, 5000)):
        config = of_size(tmp_path, CorpusSize(1000, 1000, 60_000, characters))
        assert config.vocabulary.size == pieces
        assert 2 * (characters + 260) <= pieces
    config = of_size(tmp_path, CorpusSize(1000, 1000, 60_000, 2214), "vocabulary.size=700")
    assert config.vocabulary.size == 700


def table_of(folder: Path, lines: list[str]) -> DataConfig:
    (folder / "all.tsv").write_text("".join(f"{line}\n" for line in ["de\ten", *lines]), encoding="utf-8")
    files = f"train: {{file: {folder / 'all.tsv'}}}, valid: {{file: no.tsv}}"
    return parse_config(f"data: {{source_language: de, target_language: en, {files}}}", "my.yaml").data


def test_repeated_pairs_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [f"ein Wort {n}\tone word {n}" for n in range(30)]
    data = table_of(tmp_path, [*pairs, *pairs[:20]])
    letters = sum(len(line.split("\t")[1]) for line in pairs)
    assert measure_corpus(data)[:3] == (50, 30, letters)
    monkeypatch.setattr(size, "MOST_COMPARED", 45)  # 15 repetitions among 45: of 50 pairs, 33 differ
    measured = measure_corpus(data)
    assert measured[:2] == (50, 33)
    assert measured.letters == pytest.approx(letters * 33 / 30, rel=0.02)


def test_what_cannot_be_trained_on_does_not_count(tmp_path: Path) -> None:
    long = "too long " * 200
    data = table_of(tmp_path, ["ein Wort\tone word", f"ein Wort\t{long}", f"{long}\tone word", "\tblank", "leer\t "])
    assert measure_corpus(data)[:3] == (1, 1, len("one word"))


def test_what_has_too_many_letters_for_its_tokens_does_not_count(tmp_path: Path) -> None:
    fitting, long = "Wörter mit 7 " * 80, "Wörter mit 7 " * 120  # 1,040 and 1,560 letters, 240 and 360 words
    dense = "翻译" * 250  # one word without spaces, counted as 1,500 letters
    lines = ["a\tone", f"{fitting}\t{fitting}", f"{long}\tone", f"a\t{dense}"]
    data = table_of(tmp_path, lines).model_copy(update={"max_length": 256})
    assert measure_corpus(data)[:3] == (2, 2, len("one") + len(fitting))


def test_characters_are_those_that_make_up_nearly_all_of_both_sides(tmp_path: Path) -> None:
    lines = [f"aabb{n}\tccdd" for n in range(2000)]
    for rare in (1, 20):  # of 22,890 characters, 11 may be missing
        data = table_of(tmp_path, [*lines, *(f"{'x' * n}\ty" for n in range(1, rare + 1))])
        assert measure_corpus(data).characters == 4 + 10 + 2 * (rare > 1)


def test_a_dense_script_counts_as_much_as_an_alphabet(tmp_path: Path) -> None:
    assert measure_corpus(table_of(tmp_path, ["a\t翻译 ok"])).letters == 3 + 2 * 3


def test_auto_measures_the_text_and_says_what_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_cli.config.presets.LADDER", (LADDER[0], LADDER[2]._replace(letters=8)))
    for pairs, preset in ((1, LADDER[0].preset), (2, LADDER[2].preset)):
        config, lines = resolve_preset(
            parse(tmp_path, "model.preset=auto", "model.d_ff=7", pairs=pairs), measure_corpus
        )
        assert config.model.d_model == PRESETS[preset]["model.d_model"]
        assert lines[0].startswith(f"preset       {preset} for {pairs} pairs, {4 * pairs} letters of target text: ")
        assert f"d_model {config.model.d_model}, " in lines[0]
        assert "d_ff 7, " in lines[0]
        assert lines[1].endswith("sets them: model.d_ff")


@pytest.mark.parametrize("preset", [*PRESETS, "auto"])
def test_a_resolved_config_is_whole_and_stays_as_it_is(preset: str, tmp_path: Path) -> None:
    config = resolved(tmp_path, f"model.preset={preset}")
    (tmp_path / "config.yaml").write_text(dump_config(config))
    again = load_config(tmp_path / "config.yaml")
    assert again == config
    assert resolve_preset(again, measure_corpus) == (again, [])


def test_values_set_may_need_those_of_the_preset(tmp_path: Path) -> None:
    """Alone each of them would be refused."""
    config = resolved(tmp_path, "model.preset=small", "training.peak_learning_rate=1e-3", "model.d_model=100")
    assert (config.training.schedule, config.training.peak_learning_rate) == ("wsd", 1e-3)
    assert (config.model.d_model, config.model.heads) == (100, PRESETS["small"]["model.heads"])
    assert config.model.positions == "sinusoidal", "heads of 25 have a dimension that no other is turned with"
    assert not config.model.qk_norm
    assert resolved(tmp_path, "model.preset=small", "model.d_model=96").model.positions == "rotary"
    assert resolved(tmp_path, "model.preset=small", "model.head_dim=5").model.positions == "sinusoidal"


@pytest.mark.parametrize(
    "override",
    [
        "training.optimizer=adam",
        "model.positions=sinusoidal",
        "model.qk_norm=false",
        "model.head_dim=5",
        "model.generation=mask_predict",
    ],
)
def test_without_what_its_rate_was_found_with_a_preset_goes_slower_for_longer(tmp_path: Path, override: str) -> None:
    fast = resolved(tmp_path, "model.preset=small").training
    slow = resolved(tmp_path, "model.preset=small", override).training
    assert (fast.peak_learning_rate, slow.peak_learning_rate) == (0.005, 0.0015)
    for key in ("max_steps", "validate_every", "save_every"):
        assert getattr(slow, key) == 2 * getattr(fast, key)
    tiny = resolved(tmp_path, "model.preset=tiny", override).training
    assert tiny.max_steps == resolved(tmp_path, "model.preset=tiny").training.max_steps


def test_another_schedule_keeps_the_peak(tmp_path: Path) -> None:
    from transformer_cli.training.schedules import learning_rate

    for preset, schedule in (("small", "noam"), ("small", "inverse_sqrt"), ("base", "inverse_sqrt")):
        peaks = [
            learning_rate(config.training, config.model.d_model, config.training.warmup_steps)
            for config in (
                resolved(tmp_path, f"model.preset={preset}", "model.d_model=256"),
                resolved(tmp_path, f"model.preset={preset}", "model.d_model=256", f"training.schedule={schedule}"),
            )
        ]
        assert peaks[0] == pytest.approx(peaks[1])


def test_what_guides_attention_gives_way_to_what_it_does_not_go_with(tmp_path: Path) -> None:
    assert resolved(tmp_path, "model.preset=tiny").training.guided_attention is not None
    assert resolved(tmp_path, "model.preset=tiny", "training.r_drop=1").training.guided_attention is not None
    for override in (
        "training.scheduled_sampling={}",
        "model.generation=mask_predict",
        "model.decoder_layers=1",
        "training.guided_attention=null",
    ):
        assert resolved(tmp_path, "model.preset=tiny", override).training.guided_attention is None
    assert resolved(tmp_path, "model.preset=tiny").training.r_drop > 0
    for override in ("training.scheduled_sampling={}", "model.generation=mask_predict", "model.dropout=0.0"):
        assert resolved(tmp_path, "model.preset=tiny", override).training.r_drop == 0
    assert resolved(tmp_path, "model.preset=tiny", "training.optimizer=adamw", "training.weight_decay=0.01")


def test_only_a_model_that_begins_from_nothing_is_guided_strongly_at_first(tmp_path: Path) -> None:
    for preset in ("tiny", "small"):
        new, child = (
            resolved(tmp_path, f"model.preset={preset}", *more).training.guided_attention
            for more in ((), ("training.init_from=parent",))
        )
        assert new is not None
        assert child is not None
        assert (new.start_weight or 0) > new.weight
        assert child == new.model_copy(update={"start_weight": None})


def test_weight_decay_is_for_muon_and_for_models_that_begin_from_nothing(tmp_path: Path) -> None:
    assert resolved(tmp_path, "model.preset=tiny").training.weight_decay > 0
    for override in ("training.optimizer=adam", "training.optimizer=adamw", "training.init_from=parent"):
        assert resolved(tmp_path, "model.preset=tiny", override).training.weight_decay == 0
    own = resolved(tmp_path, "model.preset=tiny", "training.init_from=parent", "training.weight_decay=0.1")
    assert (own.training.optimizer, own.training.weight_decay) == ("muon", 0.1)


def test_embeddings_begin_near_translations_where_nothing_else_brings_them(tmp_path: Path) -> None:
    assert resolved(tmp_path, "model.preset=small").training.init_embeddings == "lexicon"
    assert resolved(tmp_path, "model.preset=tiny").training.init_embeddings == "random"
    for override in ("init_from=parent", "source_vectors=file", "target_vectors=file"):
        assert resolved(tmp_path, "model.preset=small", f"training.{override}").training.init_embeddings == "random"


def test_dropout_rises_over_as_many_passes_whatever_the_amount_of_text() -> None:
    for count in (180_000, 300_000, 600_000, 900_000, 1_800_000, 3_599_999, 3_600_000, 11_999_999):
        training = asked_for(count).training
        assert training.dropout_warmup_steps * training.batch_tokens / count == pytest.approx(5 / 3, rel=0.02)
    for larger in ("training.batch_tokens=4000", "training.accumulation=4"):
        assert asked_for(1_800_000, larger).training.dropout_warmup_steps == 3000 // 4
    assert asked_for(1_800_000, "model.dropout=0").training.dropout_warmup_steps == 0
    assert asked_for(1_800_000, "model.dropout=0", "model.attention_dropout=0.1").training.dropout_warmup_steps == 3000
    assert asked_for(1_800_000, "training.dropout_warmup_steps=7").training.dropout_warmup_steps == 7
    assert {asked_for(count).training.dropout_warmup_steps for count in (60_000, 179_999, 12_000_000)} == {0}


def test_the_less_text_the_more_keeps_a_model_from_memorising_it() -> None:
    trainings = [asked_for(count).training for count in (60_000, 180_000, 600_000, 999_999, 1_000_000, 11_999_999)]
    for strengths in ([one.r_drop for one in trainings], [one.weight_decay for one in trainings]):
        assert strengths == sorted(strengths, reverse=True)
        assert (strengths[3] > 0, *strengths[4:]) == (True, 0, 0)


def test_dropout_rises_where_a_model_begins_from_nothing_and_is_not_compiled(tmp_path: Path) -> None:
    assert resolved(tmp_path, "model.preset=small").training.dropout_warmup_steps > 0
    for override in ("init_from=parent", "compile=true"):
        assert resolved(tmp_path, "model.preset=small", f"training.{override}").training.dropout_warmup_steps == 0


def test_training_ends_by_patience_where_the_rate_can_still_fall(tmp_path: Path) -> None:
    for preset in ("tiny", "small"):
        training = resolved(tmp_path, f"model.preset={preset}").training
        assert (training.schedule, training.patience) == ("wsd", 3)
        assert resolved(tmp_path, f"model.preset={preset}", "training.patience=null").training.patience is None
        for others in (["training.schedule=cosine"], ["training.max_steps=null", "training.max_epochs=3"]):
            assert resolved(tmp_path, f"model.preset={preset}", *others).training.patience is None


@pytest.mark.parametrize("rung", LADDER, ids=lambda rung: str(rung.letters))
def test_what_auto_trains_ends_once_nothing_improves(rung: Rung, tmp_path: Path) -> None:
    def training(*overrides: str) -> TrainingConfig:
        config = parse(tmp_path, "model.preset=auto", *overrides)
        return resolve_preset(config, lambda _: CorpusSize(9, 9, rung.letters))[0].training

    assert training().patience
    assert training().max_steps
    assert training("training.schedule=cosine", "training.max_steps=90000").patience is None


@pytest.mark.parametrize("other", ["cosine", "inverse_sqrt", "noam"])
def test_another_schedule_trains_for_half_of_the_limit(other: str, tmp_path: Path) -> None:
    schedule = f"training.schedule={other}"
    for preset in ("tiny", "small", "auto"):
        limited, fixed, slow = (
            resolved(tmp_path, f"model.preset={preset}", *more).training
            for more in ((), (schedule,), (schedule, "training.optimizer=adam"))
        )
        assert limited.max_steps == 2 * (fixed.max_steps or 0)
        assert fixed.validate_every == limited.validate_every
        assert slow.max_steps == (limited.max_steps if preset == "small" else fixed.max_steps)
        own = resolved(tmp_path, f"model.preset={preset}", schedule, "training.max_steps=70").training
        assert own.max_steps == 70
    for letters in (60_000, 1_900_000, 5_000_000):
        limited, fixed = (asked_for(letters, *more).training for more in ((), (schedule,)))
        assert limited.max_steps == 2 * (fixed.max_steps or 0)
    assert resolved(tmp_path, "model.preset=base", schedule).training.max_steps == PRESETS["base"]["training.max_steps"]


def test_a_short_trial_warms_up_in_time(tmp_path: Path) -> None:
    assert resolved(tmp_path, "model.preset=small", "training.max_steps=10").training.warmup_steps == 2
    assert resolved(tmp_path, "model.preset=small", "training.max_steps=1").training.warmup_steps == 0


def test_a_run_without_a_last_step_has_a_schedule_without_one(tmp_path: Path) -> None:
    config = resolved(tmp_path, "model.preset=tiny", "training.max_steps=null", "training.max_epochs=3")
    assert (config.training.schedule, config.training.max_steps) == ("inverse_sqrt", None)


def test_words_are_no_subwords(tmp_path: Path) -> None:
    config = resolved(tmp_path, "model.preset=tiny", "vocabulary.tokenizer=whitespace")
    assert config.vocabulary == parse(tmp_path, "vocabulary.tokenizer=whitespace").vocabulary
    assert config.training.subword_sampling == 0


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["model.preset=tiny", "model.d_model=66"], "model.preset tiny: model.heads: 4 does not divide d_model = 66"),
        (
            ["model.preset=auto", "data.max_length=99999"],
            "model.preset tiny for 3 pairs, 12 letters of target text: data.max_length: 99999",
        ),
        (["model.preset=base", "training.peak_learning_rate=0.1"], "model.preset base: training.peak_learning_rate: "),
        (["model.preset=small", "training.factor=2.0"], "training.factor: the wsd schedule has none"),
        (["model.preset=auto", "data.train.source=no"], "no: no such file"),
    ],
)
def test_what_contradicts_a_preset_is_one_line(overrides: list[str], says: str, tmp_path: Path) -> None:
    config = parse(tmp_path, *overrides)
    with pytest.raises(UserError) as error:
        resolve_preset(config, measure_corpus)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_bounds_are_held_before_a_preset_is_resolved(tmp_path: Path) -> None:
    for override in ("model.preset=tiy", "model.dropout=2.0", "model.droput=0.1"):
        with pytest.raises(UserError):
            parse(tmp_path, "model.preset=tiny", override)
