"""The documentation tells the truth: every config key with its bounds and default, every name of a file it mentions."""

import re
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import pytest
from pydantic.fields import FieldInfo

from transformer_cli import config as config_module
from transformer_cli.config import Config, HubDataset, Section, TableFile, TextFiles, load_config

ROOT = Path(__file__).parents[1]
CONFIGURATION = ROOT / "docs" / "configuration.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

SECTIONS: dict[str, type[Section]] = {
    "data": config_module.DataConfig,
    "vocabulary": config_module.VocabularyConfig,
    "model": config_module.ModelConfig,
    "training": config_module.TrainingConfig,
    "decoding": config_module.DecodingConfig,
}
SOURCES: dict[str, type[Section]] = {"text files": TextFiles, "table": TableFile, "dataset": HubDataset}


def bounds(metadata: "list[Any]") -> str:
    """`≥ 1 and ≤ 256`, as the page writes it."""
    signs = {annotated_types.Ge: "≥", annotated_types.Gt: ">", annotated_types.Le: "≤", annotated_types.Lt: "<"}
    found = []
    for item in metadata:
        for part in item if isinstance(item, annotated_types.GroupedMetadata) else [item]:
            for kind, sign in signs.items():
                if isinstance(part, kind):
                    value = getattr(part, kind.__name__.lower())
                    found.append(
                        f"{sign} 2^32"
                        if value == 2**32
                        else f"{sign} {value:g}"
                        if value < 1
                        else f"{sign} {value:,.0f}"
                    )
    return " and ".join(found)


def allowed(annotation: Any, metadata: "list[Any]") -> str:
    """What a key may be, as the page writes it."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        more = [part for item in more for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
        return allowed(inner, [*more, *metadata])
    if origin in (Union, types.UnionType):
        options = get_args(annotation)
        if TextFiles in map(bare, options):
            return "source"
        return " or ".join("null" if o is type(None) else allowed(o, metadata) for o in options)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    if origin in (tuple, list):
        elements = get_args(annotation)
        return f"list of {len(elements)}: {allowed(elements[0], [])}" if origin is tuple else "list of texts"
    if annotation is bool:
        return "`true`, `false`"
    if annotation is str:
        return "language code" if any(getattr(item, "pattern", None) for item in metadata) else "text"
    return bounds(metadata)


def bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def documented() -> dict[str, tuple[str, str, str, str]]:
    """key → (unit, allowed, default, meaning), from the page's tables."""
    rows: dict[str, tuple[str, str, str, str]] = {}
    for line in CONFIGURATION.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"\| `([a-z_ ]+\.[a-z_]+)` \|(.*)\|$", line):
            unit, may_be, standard, meaning = (cell.strip() for cell in match[2].split(" | "))
            assert match[1] not in rows, f"{match[1]} is documented twice"
            rows[match[1]] = (unit, may_be, standard, meaning)
    return rows


def declared() -> dict[str, tuple[str, str]]:
    """key → (allowed, default), from config.py."""
    rows = {}
    for section, model in {**SECTIONS, **SOURCES}.items():
        hints = typing.get_type_hints(model, include_extras=True)
        for name, field in model.model_fields.items():
            rows[f"{section}.{name}"] = (allowed(hints[name], []), default(field))
    return rows


def test_every_key_is_documented_and_no_other() -> None:
    assert list(documented()) == list(declared())


@pytest.mark.parametrize("key", list(declared()))
def test_bounds_and_default_are_those_of_the_code(key: str) -> None:
    unit, may_be, standard, meaning = documented()[key]
    assert (may_be, standard) == declared()[key]
    assert unit
    assert len(meaning) > 10


def test_bounds_are_read_from_the_code() -> None:
    """The reader above really sees bounds: what it says of a few keys is what the validator does."""
    rows = declared()
    assert rows["training.seed"] == ("≥ 0 and < 2^32", "1")
    assert rows["model.head_dim"] == ("≥ 1 and ≤ 65,536 or null", "null")
    assert rows["vocabulary.character_coverage"][0] == "> 0 and ≤ 1"
    assert rows["training.betas"] == ("list of 2: ≥ 0 and < 1", "[0.9, 0.98]")


def test_the_five_sections_are_all() -> None:
    assert list(SECTIONS) == list(Config.model_fields)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_links_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for name in re.findall(r"`((?:configs|docs|tests|benchmarks|transformer_cli)/[A-Za-z0-9_./]+\.[a-z]+)`", text):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_configs_load_and_are_commented(path: Path) -> None:
    load_config(path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert f"tfm train configs/{path.name}" in text
    assert all(len(line) <= 120 for line in text.splitlines())


def test_wmt_configs_hold_the_papers_numbers() -> None:
    base, big = (load_config(ROOT / "configs" / f"wmt14_en_de_{size}.yaml") for size in ("base", "big"))
    shapes = [
        (c.model.encoder_layers, c.model.d_model, c.model.d_ff, c.model.heads, c.model.dropout) for c in (base, big)
    ]
    assert shapes == [(6, 512, 2048, 8, 0.1), (6, 1024, 4096, 16, 0.3)]  # table 3
    assert [c.training.max_steps for c in (base, big)] == [100_000, 300_000]
    assert [c.training.average_last for c in (base, big)] == [5, 20]  # section 6.1
    for each in (base, big):
        assert each.training.batch_tokens * each.training.accumulation == 25_000  # section 5.1
        assert (each.training.warmup_steps, each.training.label_smoothing, each.vocabulary.size) == (4000, 0.1, 37_000)
        assert (each.decoding.beam_size, each.decoding.length_penalty) == (4, 0.6)
        assert (each.model.norm, each.model.tie_embeddings, each.model.positions) == ("post", "all", "sinusoidal")
