"""The CTranslate2 engine finds what our own finds, for every shape of model that can be written for it."""

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.decoding.checkpoints import make_loaded, write_ctranslate2
from tests.decoding.searching import search_batch
from transformer_cli.build import LoadedModel
from transformer_cli.config import GuidedAttention
from transformer_cli.decoding.engines import ctranslate2_engine
from transformer_cli.decoding.engines.ctranslate2_engine import TRIED, CTranslate2Engine, LoneSentences, worker_count
from transformer_cli.decoding.engines.ctranslate2_model import LEAST_POSITIONS, position_count
from transformer_cli.decoding.engines.protocol import Engine, Hypothesis, SearchBatch, TokenConstraints, torch_needs
from transformer_cli.decoding.engines.torch_engine import SearchCache, TorchEngine
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.model.transformer import Transformer
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS, PAD

ctranslate2 = pytest.importorskip("ctranslate2", reason="the ctranslate2 engine needs CTranslate2")

VARIANTS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "pre-norm, learned, gated": {"norm": "pre", "positions": "learned", "activation": "swiglu"},
    "two vocabularies": {"shared": False, "tie_embeddings": "none", "activation": "geglu"},
    "decoder tied, gelu": {"shared": False, "tie_embeddings": "decoder", "activation": "gelu", "norm": "pre"},
    "wide heads": {"head_dim": 5, "tie_embeddings": "none", "positions": "learned"},
    "no biases": {"attention_bias": False, "feed_forward_bias": False, "activation": "swiglu", "norm_epsilon": 1e-2},
    "rotary": {"positions": "rotary", "head_dim": 6},
    "normalised": {"qk_norm": True},
    "rotary, normalised": {"positions": "rotary", "qk_norm": True, "norm": "pre", "norm_epsilon": 1e-2},
}
SEARCHES = {
    "beam": SearchOptions(beam_size=4, max_length_ratio=1.0, max_length_extra=0),
    "greedy": SearchOptions(method="greedy", length_penalty_kind="gnmt", length_penalty=0.6),
    "n-best": SearchOptions(beam_size=5, n_best=3, length_penalty=0.6),
    "no penalty": SearchOptions(beam_size=4, n_best=2, length_penalty=0.0),
    "beam 1": SearchOptions(beam_size=1, max_length=5),
}
Pair = tuple[LoadedModel, CTranslate2Engine, TorchEngine]


def nothing_else() -> Engine:
    raise AssertionError("torch is not needed")


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pair]:
    """`pair(**options)`: a model (see `checkpoints.make_config`) in both engines, made once."""
    made: dict[str, Pair] = {}

    def get(**options: Any) -> Pair:
        options = {"generator_bias": True, **options}
        key = repr(sorted(options.items()))
        if key not in made:
            folder = tmp_path_factory.mktemp("model")
            loaded = make_loaded(**options)
            write_ctranslate2(folder, loaded)
            made[key] = loaded, CTranslate2Engine(folder, loaded.codecs, nothing_else), Renormalised(loaded.model)
        return made[key]

    return get


def draw_sources(loaded: LoadedModel, count: int = 24) -> list[list[int]]:
    """Random sources of many lengths."""
    draw = random.Random(5)
    size = len(loaded.codecs.source.vocabulary)
    return [[draw.randrange(4, size) for _ in range(draw.randint(1, 20))] for _ in range(count)]


class Renormalised(TorchEngine):
    """Our engine, but that the tokens that may come share the probability of those that may not: <pad>, <s> and a first
    </s>. CTranslate2 does so; a model that has learned gives those next to none, a random one does."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        plain = self.step_model.step

        def step(tokens: torch.Tensor, cache: SearchCache) -> tuple[torch.Tensor, SearchCache]:
            log_probs, grown = plain(tokens, cache)
            if cache.decoder.length == 0:
                log_probs[:, EOS] = -torch.inf
            return log_probs.log_softmax(dim=-1), grown

        self.step_model = replace(self.step_model, step=step)


def alike(found: list[list[Hypothesis]], expected: list[list[Hypothesis]], n_best_lists: float = 1.0) -> None:
    """n_best_lists: how many of them must be the same to the end. CTranslate2 drops what is beyond K hypotheses, where
    more ended, by a score that counts </s>."""
    whole = [a for a in zip(found, expected, strict=True) if [one.ids for one in a[0]] == [one.ids for one in a[1]]]
    assert len(whole) >= n_best_lists * len(found)
    assert [group[0].ids for group in found] == [group[0].ids for group in expected]
    if n_best_lists < 1.0:
        found, expected = [a for a, _ in whole], [b for _, b in whole]
    assert [[one.ids for one in group] for group in found] == [[one.ids for one in group] for group in expected]
    for group, other in zip(found, expected, strict=True):
        assert [one.ended for one in group] == [one.ended for one in other]
        assert [one.score for one in group] == pytest.approx([one.score for one in other], abs=1e-3)
        assert [one.log_probability for one in group] == pytest.approx([one.log_probability for one in other], abs=1e-3)


@pytest.mark.parametrize(
    ("variant", "search"),
    [*((variant, "beam") for variant in VARIANTS), *(("the paper's", name) for name in list(SEARCHES)[1:])],
)
def test_translations_and_scores_are_those_of_the_torch_engine(
    pair: Callable[..., Pair], variant: str, search: str
) -> None:
    loaded, engine, ours = pair(**VARIANTS[variant])
    options = SEARCHES[search]
    sources = draw_sources(loaded)
    found = search_batch(engine, sources, options)
    alike(found, search_batch(ours, sources, options), 0.95 if options.n_best > 1 else 1.0)
    ids = [one.ids for group in found for one in group]
    assert all(ids), "no translation is empty"
    assert not {PAD, BOS, EOS} & {token for row in ids for token in row}


def test_the_comparison_sees_both_kinds_of_end(pair: Callable[..., Pair]) -> None:
    loaded, engine, _ = pair()
    sources, options = draw_sources(loaded), SearchOptions(beam_size=4, max_length_ratio=1.0, max_length_extra=0)
    assert len({options.length_limit(len(source)) for source in sources}) > 1
    assert {group[0].ended for group in search_batch(engine, sources, options)} == {True, False}


@pytest.mark.parametrize("variant", VARIANTS)
def test_forced_scores_and_alignments_are_those_of_the_torch_engine(pair: Callable[..., Pair], variant: str) -> None:
    loaded, engine, ours = pair(**VARIANTS[variant])
    draw = random.Random(3)
    sources = [*draw_sources(loaded, 20), [7]]
    size = len(loaded.codecs.target.vocabulary)
    targets = [[draw.randrange(4, size) for _ in range(draw.randint(0, 15))] for _ in sources]
    targets[3] = []
    for row, expected in zip(engine.score(sources, targets), ours.score(sources, targets), strict=True):
        assert row == pytest.approx(expected, abs=1e-4)
    assert engine.score([[]], [[5]])[0] == pytest.approx(ours.score([[]], [[5]])[0], abs=1e-4)
    assert engine.align(sources, targets) == ours.align(sources, targets)


@pytest.mark.parametrize(("layer", "heads"), [(0, (0,)), (-2, (1, 0)), (-1, (0, 1, 2))])
def test_a_head_that_learned_to_align_is_asked(tmp_path: Path, layer: int, heads: tuple[int, ...]) -> None:
    guide = {"prior": "alignments", "alignments": "a", "layer": layer, "heads": heads}
    loaded = make_loaded()
    training = loaded.config.training.model_copy(update={"guided_attention": GuidedAttention.model_validate(guide)})
    loaded = replace(loaded, config=loaded.config.model_copy(update={"training": training}))
    write_ctranslate2(tmp_path, loaded)
    engine, ours = CTranslate2Engine(tmp_path, loaded.codecs, nothing_else), TorchEngine(loaded.model)
    sources = draw_sources(loaded, 8)
    expected = ours.align(sources, sources, layer, heads)
    translator = Translator(engine, loaded.codecs, loaded.config)
    chosen = translator.alignment_layer, translator.alignment_heads
    assert chosen == (layer, heads)
    assert engine.align(sources, sources, *chosen) == expected
    with pytest.raises(AssertionError, match="torch is not needed"):
        engine.align(sources, sources)


def test_greedy_texts_are_the_torch_engines_own(pair: Callable[..., Pair]) -> None:
    """Who shares the probability of what may not come changes no order at a step."""
    for seed in range(3):
        loaded, engine, _ = pair(generator_bias=False, seed=seed)
        sources = draw_sources(loaded)
        options = SearchOptions(method="greedy")
        found, expected = (
            search_batch(engine, sources, options),
            search_batch(TorchEngine(loaded.model), sources, options),
        )
        assert [group[0].ids for group in found] == [group[0].ids for group in expected]


def test_batches_come_back_in_order_and_are_read_a_little_ahead(pair: Callable[..., Pair]) -> None:
    loaded, engine, _ = pair()
    sources = draw_sources(loaded)
    batches = [SearchBatch(sources[start : start + 3], []) for start in range(0, 24, 3)]
    expected = [search_batch(engine, batch.sources, SearchOptions(beam_size=2)) for batch in batches]
    read = 0

    def reading() -> Any:
        nonlocal read
        for batch in batches:
            read += 1
            yield batch

    for number, found in enumerate(engine.search(reading(), SearchOptions(beam_size=2))):
        assert found == expected[number]
        if number == 0:
            assert 1 < read < len(batches), "some are under way, not all"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_n_gram_comes_twice_and_scores_are_the_models_own(pair: Callable[..., Pair], size: int) -> None:
    loaded, engine, ours = pair(norm="pre")
    sources = draw_sources(loaded)
    for options in (SearchOptions(method="greedy"), SearchOptions(beam_size=4, n_best=3)):
        free, blocked = search_batch(engine, sources, options), replace(options, no_repeat_ngram=size)
        assert any(repeats(one.ids, size) for group in free for one in group), "the test wants loops"
        for source, group in zip(sources, search_batch(engine, sources, blocked), strict=True):
            assert len(group) == options.n_best
            assert [one.score for one in group] == sorted((one.score for one in group), reverse=True)
            rows = ours.score([source] * len(group), [one.ids for one in group])
            for one, row in zip(group, rows, strict=True):
                assert not repeats(one.ids, size)
                assert one.log_probability == pytest.approx(sum(row if one.ended else row[:-1]), abs=1e-3)


def repeats(ids: list[int], size: int) -> bool:
    grams = [tuple(ids[place : place + size]) for place in range(len(ids) - size + 1)]
    return len(set(grams)) < len(grams)


def test_one_sentence_or_many_is_the_same(pair: Callable[..., Pair]) -> None:
    loaded, engine, _ = pair(norm="pre")
    sources = draw_sources(loaded, 12)
    together = search_batch(engine, sources, SearchOptions(beam_size=3, n_best=2))
    for source, expected in zip(sources, together, strict=True):
        alike(search_batch(engine, [source], SearchOptions(beam_size=3, n_best=2)), [expected])


@pytest.mark.parametrize(
    ("compute_type", "threads", "loaded_with"),
    [("float32", 3, [(3, 1), (1, 3)]), ("float32", 1, [(1, 1)]), ("int8", 3, [(3, 1)])],
)
def test_sentences_that_come_alone_get_one_thread_and_all_by_turns(
    compute_type: str,
    threads: int,
    loaded_with: list[tuple[int, int]],
    pair: Callable[..., Pair],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded, _, _ = pair(norm="pre")
    write_ctranslate2(tmp_path, loaded)
    made: list[tuple[int, int]] = []
    searched: list[tuple[int, int]] = []
    plain = ctranslate2.Translator

    class Counted:
        """A translator that notes each search."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.threads = options["inter_threads"], options["intra_threads"]
            made.append(self.threads)
            self.own = plain(*arguments, **options)

        def translate_batch(self, *arguments: Any, **options: Any) -> Any:
            searched.append(self.threads)
            return self.own.translate_batch(*arguments, **options)

    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    monkeypatch.setattr(ctranslate2, "Translator", Counted)
    engine = CTranslate2Engine(tmp_path, loaded.codecs, nothing_else, compute_type=compute_type)
    options = SearchOptions(beam_size=3)
    sources = draw_sources(loaded, 2 * TRIED)
    together = search_batch(engine, sources, options)
    searched.clear()
    first = search_batch(engine, sources[:1], options)
    assert made == loaded_with[:1], "for a single sentence no second model is loaded"
    others = [search_batch(engine, [source], options) for source in sources[1:]]
    assert made == loaded_with
    assert [searched.count(one) for one in loaded_with] == [2 * TRIED // len(loaded_with)] * len(loaded_with)
    if compute_type == "float32":
        for one, expected in zip([first, *others], together, strict=True):
            alike(one, [expected])


def chosen(lone: LoneSentences, seconds: dict[str, float], times: int, beam: int = 1) -> str:
    """The first letters of the translators that were chosen, in order; a search takes as long as is said of each."""
    letters = ""
    for _ in range(times):
        translator, timed = lone.begin(beam)
        letters += translator[0]
        if timed:
            lone.end(translator, seconds[translator])
    return letters


@pytest.mark.parametrize("faster", ["one", "all"])
def test_the_faster_way_is_kept(faster: str) -> None:
    loaded = []

    def load_all() -> str:
        loaded.append("all")
        return "all"

    lone, seconds = LoneSentences("one", load_all), {"one": 2.0, "all": 2.0, faster: 1.0}
    assert chosen(lone, seconds, 1) == "o"
    assert not loaded
    assert chosen(lone, seconds, 9) == "aaooaaooa"
    assert chosen(lone, {}, 50) == 50 * faster[0]
    assert loaded == ["all"]
    assert lone._all is None


def test_what_is_broken_off_is_slow_and_what_does_not_count_is_tried_again() -> None:
    lone = LoneSentences("one", lambda: "all")
    for _ in range(3):
        lone.end(lone.begin(1)[0], None)
    assert chosen(lone, {"one": 2.0, "all": math.inf}, 10) == "oaaooaaooa"
    assert chosen(lone, {}, 3) == "ooo"


def test_times_of_different_beams_are_not_mixed() -> None:
    lone = LoneSentences("one", lambda: "all")
    greedy, beams = {"one": 2.0, "all": 1.0}, {"one": 20.0, "all": 10.0}
    assert chosen(lone, greedy, 5) == "oaaoo"
    assert chosen(lone, beams, 9, beam=5) == "oaaooaaoo", "begun anew; with the greedy ones, one thread would win"
    assert chosen(lone, beams, 1, beam=5) == "a"
    assert chosen(lone, {}, 5) == "aaaaa", "kept for all"


def test_one_search_is_timed_at_a_time() -> None:
    lone = LoneSentences("one", lambda: "all")
    lone.end(lone.begin(1)[0], 1.0)
    assert lone.begin(1) == ("all", True)
    assert [lone.begin(1) for _ in range(3)] == [("one", False)] * 3, "of other threads"
    lone.end("all", 1.0)
    assert lone.begin(1) == ("all", True)


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_without_memory_for_a_second_model_one_thread_is_kept(error: type[Exception]) -> None:
    def load_all() -> None:
        raise error("out of memory")

    lone = LoneSentences("one", load_all)
    assert chosen(lone, {"one": 1.0}, 20) == 20 * "o"


@pytest.fixture
def noting(
    pair: Callable[..., Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[CTranslate2Engine, list[list[int]], list[float | None]]:
    """An engine of two workers, sources for it, and what its timed searches took, of a token."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    loaded, _, _ = pair(norm="pre")
    write_ctranslate2(tmp_path, loaded)
    engine = CTranslate2Engine(tmp_path, loaded.codecs, nothing_else)
    noted: list[float | None] = []
    monkeypatch.setattr(engine._lone, "end", lambda translator, seconds: noted.append(seconds))
    return engine, draw_sources(loaded, 3), noted


@pytest.mark.parametrize("count", [1, 3])
def test_only_a_sentence_that_stays_alone_is_timed(
    count: int,
    noting: tuple[CTranslate2Engine, list[list[int]], list[float | None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, sources, noted = noting
    monkeypatch.setattr(ctranslate2_engine, "perf_counter", map(float, itertools.count()).__next__)
    batches = [SearchBatch([source]) for source in sources[:count]]
    found = list(engine.search(batches, SearchOptions(beam_size=3)))
    assert len(found) == count
    assert noted == [1.0 / (1 + len(found[0][0][0].ids)) if count == 1 else None]


def test_a_search_that_fails_counts_as_slow(
    noting: tuple[CTranslate2Engine, list[list[int]], list[float | None]],
) -> None:
    engine, sources, noted = noting

    def batches() -> Iterator[SearchBatch]:
        yield SearchBatch(sources[:1])
        raise OSError("the pipe is gone")

    with pytest.raises(OSError, match="gone"):
        list(engine.search(batches(), SearchOptions(beam_size=3)))
    assert noted == [math.inf]


# --- what is left to torch ----------------------------------------------------------------------------------------


class Noting:
    """An engine that notes what it is asked for."""

    name = "noting"
    max_source_length = max_target_length = None

    def __init__(self) -> None:
        self.asked: list[str] = []

    def search(self, batches: Any, options: Any) -> Iterator[list[list[Hypothesis]]]:
        for batch in batches:
            self.asked.append("search")
            yield [[] for _ in batch.sources]

    def score(self, sources: Any, targets: Any) -> list[list[float]]:
        self.asked.append("score")
        return []

    def align(
        self, sources: Any, targets: Any, layer: int = -1, heads: Any = None, skip: Any = None
    ) -> list[list[int]]:
        self.asked.append("align")
        return []


LEFT_TO_TORCH: dict[str, Callable[[Engine], object]] = {
    "sampling": lambda engine: search_batch(engine, [[5]], SearchOptions(method="sample")),
    "diverse": lambda engine: search_batch(engine, [[5]], SearchOptions(beam_size=4, diversity_groups=2)),
    "exact": lambda engine: search_batch(engine, [[5]], SearchOptions(beam_size=4, stopping="exact")),
    "coverage": lambda engine: search_batch(engine, [[5]], SearchOptions(coverage_penalty=0.2)),
    "min length": lambda engine: search_batch(engine, [[5]], SearchOptions(min_length=4)),
    "constraints": lambda engine: search_batch(
        engine, [[5], [6]], SearchOptions(), None, [TokenConstraints(), TokenConstraints(prefix=(7,))]
    ),
    "limit": lambda engine: search_batch(engine, [[5]], SearchOptions(max_length=LEAST_POSITIONS + 1)),
    "long source": lambda engine: search_batch(engine, [[5] * LEAST_POSITIONS], SearchOptions(max_length=3)),
    "wide beam": lambda engine: search_batch(engine, [[5]], SearchOptions(beam_size=40)),
    "empty": lambda engine: search_batch(engine, [[5], []], SearchOptions()),
    "long score": lambda engine: engine.score([[5]], [[6] * LEAST_POSITIONS]),
    "other heads": lambda engine: engine.align([[5]], [[6]], heads=[0]),
    "other layer": lambda engine: engine.align([[5]], [[6]], 0),
}


@pytest.mark.parametrize("case", LEFT_TO_TORCH)
def test_what_it_cannot_do_alike_goes_to_the_other_engine_or_is_refused(tmp_path: Path, case: str) -> None:
    loaded = make_loaded()
    write_ctranslate2(tmp_path, loaded)
    other = Noting()
    ask = LEFT_TO_TORCH[case]
    ask(CTranslate2Engine(tmp_path, loaded.codecs, lambda: other))
    assert len(other.asked) == 1
    strict = CTranslate2Engine(tmp_path, loaded.codecs, lambda: other, advice="leave it out")
    with pytest.raises(UserError, match=r"^the ctranslate2 engine cannot do [^\n]*; leave it out$"):
        ask(strict)


def test_batches_that_are_left_to_torch_keep_their_place(pair: Callable[..., Pair], tmp_path: Path) -> None:
    loaded, engine, ours = pair()
    write_ctranslate2(tmp_path, loaded)
    both = CTranslate2Engine(tmp_path, loaded.codecs, lambda: ours)
    sources = draw_sources(loaded, 9)
    constraint = [TokenConstraints(prefix=(7,))] * 3
    batches = [
        SearchBatch(sources[:3], []),
        SearchBatch(sources[3:6], [(3,), (4,), (5,)], constraint),
        SearchBatch(sources[6:], []),
    ]
    found = list(both.search(batches, SearchOptions(beam_size=2)))
    alike(found[0], search_batch(engine, sources[:3], SearchOptions(beam_size=2)))
    assert all(group[0].ids[0] == 7 for group in found[1])
    alike(found[2], search_batch(engine, sources[6:], SearchOptions(beam_size=2)))


def test_the_default_search_needs_no_torch() -> None:
    assert torch_needs(SearchOptions()) == torch_needs(SearchOptions(method="greedy", min_length=1)) == []
    assert torch_needs(SearchOptions(min_length=2, coverage_penalty=0.1)) == ["the coverage penalty", "a least length"]


# --- lengths ------------------------------------------------------------------------------------------------------


def test_the_table_holds_every_allowed_length() -> None:
    for ratio, extra in ((2.0, 10), (100.0, 500)):
        config = make_loaded(decoding={"max_length_ratio": ratio, "max_length_extra": extra}).config
        assert position_count(config) > SearchOptions.from_config(config.decoding).length_limit(config.data.max_length)
        assert position_count(config) > config.data.max_length
        assert position_count(config) >= LEAST_POSITIONS


def test_learned_positions_bound_every_length(pair: Callable[..., Pair]) -> None:
    loaded, engine, ours = pair(positions="learned", max_positions=24)
    assert (engine.max_source_length, engine.max_target_length) == (ours.max_source_length, ours.max_target_length)
    sources = draw_sources(loaded, 20)
    options = SearchOptions(beam_size=3, max_length_ratio=3.0)
    found = search_batch(engine, sources, options)
    assert max(len(group[0].ids) for group in found) == ours.max_target_length == 23
    alike(found, search_batch(ours, sources, options))
    longest = [[5] * 23], [[6] * 23]
    assert engine.score(*longest)[0] == pytest.approx(ours.score(*longest)[0], abs=1e-4)


def test_sources_are_never_cut(pair: Callable[..., Pair]) -> None:
    """CTranslate2 cuts at 1,024 tokens where it is not told otherwise."""
    _, engine, ours = pair()
    source = [4 + place % 30 for place in range(1500)]
    changed = [*source[:1400], *reversed(source[1400:])]
    options = SearchOptions(max_length=16, beam_size=3)
    alike(search_batch(engine, [source, changed], options), search_batch(ours, [source, changed], options))
    first, second = engine.score([source, changed], [[5, 6]] * 2)
    assert first != second


# --- the model folder ---------------------------------------------------------------------------------------------


def test_a_part_that_ctranslate2_has_no_place_for_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    loaded = make_loaded()
    loaded.model.generator.register_parameter("copying", torch.nn.Parameter(torch.zeros(3)))
    with pytest.raises(UserError, match=r"has no place for generator\.copying; use the torch engine"):
        write_ctranslate2(tmp_path, loaded)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("quantization", ["int8", "float16", "bfloat16"])
def test_reduced_weights_are_smaller_and_leave_the_model_alone(tmp_path: Path, quantization: str) -> None:
    loaded = make_loaded(d_model=96, encoder_layers=6, d_ff=400)
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    sizes = []
    for kind in (None, quantization):
        folder = tmp_path / str(kind)
        folder.mkdir()
        write_ctranslate2(folder, loaded, kind)
        sizes.append((folder / "model.bin").stat().st_size)
    assert sizes[1] < 0.7 * sizes[0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in loaded.model.state_dict().items())


def test_the_folder_is_of_use_to_plain_ctranslate2(tmp_path: Path) -> None:
    """Tokens are the vocabulary's strings, in its order; </s> is added, <s> begins a target."""
    loaded = make_loaded(shared=False, tie_embeddings="none", generator_bias=True)
    write_ctranslate2(tmp_path, loaded)
    for side, codec in (("source", loaded.codecs.source), ("target", loaded.codecs.target)):
        assert json.loads((tmp_path / f"{side}_vocabulary.json").read_text()) == codec.vocabulary.get_itos()
    source = [5, 9, 12]
    result = ctranslate2.Translator(str(tmp_path)).translate_batch(
        [loaded.codecs.source.tokens(source)], beam_size=1, max_decoding_length=16
    )[0]
    found = search_batch(TorchEngine(loaded.model), [source], SearchOptions(method="greedy", max_length=16))[0][0]
    assert result.hypotheses[0] == loaded.codecs.target.tokens(found.ids)


def test_threads_follow_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, expected in (("1", 1), ("3", 3), ("2,1", 2), ("0", 1), ("1000", 16)):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert worker_count() == expected
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert 1 <= worker_count() <= 16
