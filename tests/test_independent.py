"""Every variant of the model, and beam search, against their description once more: see `independent`."""

import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.decoding.checkpoints import WORDS, make_loaded
from tests.decoding.searching import search_batch
from tests.independent import NumpyModel
from transformer_cli import Translator
from transformer_cli.build import LoadedModel, build_engine, load_model
from transformer_cli.config import load_config
from transformer_cli.decoding.pipeline import excess_tokens
from transformer_cli.demo.run import prepare
from transformer_cli.export.huggingface import export_huggingface
from transformer_cli.export.verify import silent
from transformer_cli.search_options import SearchOptions
from transformer_cli.storage.checkpoint import save_model
from transformer_cli.storage.publishing import publish
from transformer_cli.storage.run_folder import find_model
from transformer_cli.text.vocabulary import EOS
from transformer_cli.training.run import train

LARGEST_DIFFERENCE = 5e-5  # of a log-probability, float32 against float64
SENTENCES = 80
VARIANTS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "pre-norm, tied, gelu": {"norm": "pre", "activation": "gelu"},
    "decoder tied, learned": {"shared": False, "tie_embeddings": "decoder", "positions": "learned"},
    "untied, geglu": {"shared": False, "tie_embeddings": "none", "activation": "geglu", "norm": "pre"},
    "wide heads, swiglu": {"head_dim": 5, "activation": "swiglu", "norm": "pre", "encoder_layers": 2},
    "other values": {"value_dim": 3, "head_dim": 7, "norm": "pre", "positions": "learned"},
    "no biases": {"attention_bias": False, "feed_forward_bias": False, "generator_bias": False, "norm_epsilon": 1e-2},
    "one-hot": {"embedding": "one_hot", "norm": "pre"},
    "rotary": {"positions": "rotary", "generation": "mask_predict"},
    "rotary, normalised": {"positions": "rotary", "qk_norm": True, "norm": "pre", "norm_epsilon": 1e-2},
    "rotary, other values": {"positions": "rotary", "norm": "pre", "value_dim": 3, "head_dim": 6},
    "normalised": {"qk_norm": True, "generation": "one_shot", "shared": False, "tie_embeddings": "none"},
    "copies": {"generator": "pointer", "shared": False, "tie_embeddings": "decoder"},
    "copies, pre-norm": {"generator": "pointer", "norm": "pre"},
    "mask-predict": {"generation": "mask_predict", "norm": "pre"},
    "one shot": {"generation": "one_shot", "shared": False, "tie_embeddings": "none"},
}
SEARCHED = [name for name in VARIANTS if "generation" not in VARIANTS[name]]
LISTS = 12  # a variant: 120 in all
Pair = tuple[list[int], list[int]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`made(variant)`: a checkpoint of random weights, made once."""
    folders: dict[str, Path] = {}

    def get(variant: str) -> Path:
        if variant not in folders:
            loaded = make_loaded(**{"generator_bias": True, **VARIANTS[variant]})
            bias = loaded.model.generator.projection.bias
            if bias is not None:
                bias.data[EOS] += (
                    10.0 if loaded.config.model.norm == "pre" else 3.0
                )  # so that beams end at many lengths
            folders[variant] = publish(
                tmp_path_factory.mktemp("model") / "checkpoint",
                partial(save_model, model=loaded.model, config=loaded.config, codecs=loaded.codecs),
            )
        return folders[variant]

    return get


def draw_pairs(loaded: LoadedModel, count: int) -> list[Pair]:
    """Ids of random texts of many lengths, of words that both vocabularies have, one or none; some twice in a line."""
    draw = random.Random(4)
    words = [*WORDS, "more", "new", "newer"]
    texts = [[" ".join(draw.choices(words, k=draw.randint(1, 15))) for _ in range(count)] for _ in range(2)]
    return list(zip(*loaded.codecs.encode_pairs(*texts), strict=True))


def off(found: list[list[float]], expected: list[list[float]]) -> float:
    """How far log-probabilities are from others at the most."""
    return max(
        abs(one - other)
        for row, values in zip(found, expected, strict=True)
        for one, other in zip(row, values, strict=True)
    )


def test_it_is_independent() -> None:
    text = (Path(__file__).parent / "independent.py").read_text("utf-8")
    assert not re.search(r"transformer_cli|torch", text)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_forward_pass_in_float64_gives_the_same_log_probabilities(
    made: Callable[[str], Path], variant: str
) -> None:
    loaded, theirs = load_model(made(variant)), NumpyModel(made(variant))
    pairs = draw_pairs(loaded, SENTENCES)
    expected = [theirs.score(source, target) for source, target in pairs]
    assert off(build_engine(loaded.model).score(*zip(*pairs, strict=True)), expected) <= LARGEST_DIFFERENCE
    loaded.model.double()
    rounded = 1e-12 if loaded.config.model.positions == "learned" else 1e-5  # the sinusoids are float32
    assert off(build_engine(loaded.model).score(*zip(*pairs, strict=True)), expected) <= rounded


@pytest.mark.parametrize("variant", SEARCHED)
def test_plain_beam_search_finds_the_same_lists(made: Callable[[str], Path], variant: str) -> None:
    loaded, theirs = load_model(made(variant)), NumpyModel(made(variant))
    loaded.model.double()  # so that no two hypotheses are too close to tell apart
    options = SearchOptions(beam_size=5, n_best=5, length_penalty=0.6, max_length=9)
    sources = [source for source, _ in draw_pairs(loaded, LISTS)]
    ended = 0
    for source, found in zip(sources, search_batch(build_engine(loaded.model), sources, options), strict=True):
        expected = theirs.search(source, 9, 5, 0.6)
        assert [one.ids for one in found] == [ids for ids, _ in expected]
        assert [one.score for one in found] == pytest.approx([score for _, score in expected], abs=1e-5)
        ended += sum(one.ended for one in found)
    assert ended or not loaded.config.model.generator_bias, "some end"


# --- a model that has learned something -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint of the demo's model after a third of its training, and the folder with the demo's corpus."""
    folder = tmp_path_factory.mktemp("demo")
    steps = ["training.max_steps=400", "training.validate_every=400", "training.save_every=400"]
    run = train(load_config(prepare(folder), steps), folder / "model", device="cpu", quiet=True).run
    return find_model(run), folder / "corpus"


def lines(path: Path, count: int) -> list[str]:
    return path.read_text("utf-8").split("\n")[:count]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_a_trained_models_scores_and_lists_are_those_of_its_description(
    trained: tuple[Path, Path], engine: str
) -> None:
    folder, corpus = trained
    translator, theirs = Translator.load(folder, "cpu", engine=engine), NumpyModel(folder)
    texts = lines(corpus / "test.de", 120), lines(corpus / "test.en", 120)
    pairs = list(zip(*translator.codecs.encode_pairs(*texts), strict=True))
    found = translator.engine.score(*zip(*pairs[:SENTENCES], strict=True))
    assert off(found, [theirs.score(*pair) for pair in pairs[:SENTENCES]]) <= LARGEST_DIFFERENCE

    options = SearchOptions(beam_size=5, n_best=5, max_length=40)
    same = 0
    for (source, _), group in zip(
        pairs, search_batch(translator.engine, [one for one, _ in pairs], options), strict=True
    ):
        expected = theirs.search(source, 40, 5, 1.0)
        assert group[0].ids == expected[0][0]
        assert group[0].score == pytest.approx(expected[0][1], abs=5e-3)
        same += [one.ids for one in group] == [ids for ids, _ in expected]
    # CTranslate2 chooses what it keeps beyond K hypotheses by a length that counts </s>.
    assert same == 120 if engine == "torch" else same >= 0.95 * 120


@pytest.mark.slow
def test_both_engines_translate_another_domain_alike_but_for_what_the_guard_searches_again(
    trained: tuple[Path, Path],
) -> None:
    """Text in the wrong language, as far away as text can be; in capitals, translations repeat themselves most."""
    folder, corpus = trained
    texts = lines(corpus / "train.en", 500)
    texts += [text.upper() for text in texts[:200]]
    torch, fast = (Translator.load(folder, "cpu", engine=engine) for engine in ("torch", "ctranslate2"))
    texts = [text for text in texts if len(torch.codecs.source.encode(text)) < torch.max_length]  # not cut into two
    assert len(texts) > 600
    sources = torch.codecs.source.encode_batch(texts)
    for penalty in (1.0, 0.0):
        options = SearchOptions.from_config(torch.config.decoding, length_penalty=penalty)
        found, others = search_batch(torch.engine, sources, options), search_batch(fast.engine, sources, options)
        assert [group[0].ids for group in found] == [group[0].ids for group in others]
    options = SearchOptions.from_config(torch.config.decoding)
    flagged = {
        number
        for number, (source, group) in enumerate(
            zip(sources, search_batch(torch.engine, sources, options), strict=True)
        )
        if excess_tokens(group[0], source, options)
    }
    pairs = enumerate(zip(torch.translate(texts), fast.translate(texts), strict=True))
    differing = {number for number, (one, other) in pairs if one != other}
    assert flagged, "the test wants some"
    assert differing <= flagged


@pytest.mark.slow
def test_transformers_finds_the_same_texts_greedily_and_with_beams(trained: tuple[Path, Path], tmp_path: Path) -> None:
    """A pre-norm model as a Pegasus. `generate` counts </s> in the length that it divides by; so none divides."""
    folder, corpus = trained
    translator = Translator.load(folder, "cpu", engine="torch")
    texts = lines(corpus / "test.de", 100) + lines(corpus / "train.en", 100)
    given = tmp_path / "given"
    given.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    told = export_huggingface(folder, tmp_path / "out", sentences=given)
    assert told is not None
    assert told.startswith("verified with 200 sentences: greedy translations are identical")
    with silent():
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        model: Any = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
        tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "out")
        options = SearchOptions.from_config(translator.config.decoding, length_penalty=0.0)
        for text in texts:
            source = translator.codecs.source.encode(text)
            found = model.generate(
                **tokenizer(text, return_tensors="pt"),
                length_penalty=0.0,
                max_length=options.length_limit(len(source)) + 1,
            )
            expected = search_batch(translator.engine, [source], options)[0][0].ids
            assert tokenizer.decode(found[0], skip_special_tokens=True) == translator.codecs.target.decode(expected)
