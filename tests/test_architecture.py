"""The layout holds: imports run one way only, what need not import torch does not, and nothing runs code on load."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "transformer_cli"

# A module may import those of its own line and of the lines before it.
LAYERS = [
    {"errors"},
    {"config_file"},  # knows no keys
    {"config"},
    {"text"},
    {"failpoints", "publishing", "metrics_file", "run_lock", "run_folder"},
    {"data"},
    {"presets"},  # which count the pairs
    {"model"},
    {"checkpoint", "checkpoint_average"},
    {"decoding"},
    {"evaluation"},
    {"training"},
    {"export", "serve", "plots"},
    {"demo"},
    {"cli"},
]
NARROWER = {
    "model": {"errors", "config", "model"},  # knows no text and no data
    "__main__": {"cli"},
    "": {"decoding"},  # the package itself: Translator, looked up when asked for
}
LOOP_KNOWS_NO_FILES = {
    "os",
    "io",
    "shutil",
    "pathlib",
    "tempfile",
    "run_folder",
    "publishing",
    "checkpoint",
    "checkpoint_average",
}
TORCH_FREE = [
    "transformer_cli",
    "transformer_cli.config",
    "transformer_cli.config_file",
    "transformer_cli.errors",
    "transformer_cli.failpoints",
    "transformer_cli.demo.corpus",
    "transformer_cli.demo.numbers",
    "transformer_cli.presets",
    "transformer_cli.publishing",
    "transformer_cli.run_folder",
    "transformer_cli.data.corpora",
    "transformer_cli.data.encoded",
    "transformer_cli.data.encoded_cache",
    "transformer_cli.data.batching",
    "transformer_cli.decoding.engines.ctranslate2_cache",
    "transformer_cli.decoding.engines.ctranslate2_engine",
    "transformer_cli.decoding.engines.protocol",
    "transformer_cli.decoding.engines.loading",
    "transformer_cli.decoding.engines.torch_only",
    "transformer_cli.decoding.distilling",
    "transformer_cli.decoding.options",
    "transformer_cli.decoding.protecting",
    "transformer_cli.decoding.translator",
    "transformer_cli.evaluation.alignments",
    "transformer_cli.evaluation.metrics",
    "transformer_cli.export.verify",
    "transformer_cli.cli.app",
]
RUNS_CODE_ON_LOAD = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
UNSAFE_CALLS = {
    "torch.load",
    "torch.save",
    "yaml.unsafe_load",
    "yaml.full_load",
    "yaml.load_all",
    "yaml.unsafe_load_all",
    "yaml.full_load_all",
    "eval",
    "exec",
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def place(path: Path) -> str:
    """The part of the package that a file belongs to: `text`, `run_folder`, … or `` for the package itself."""
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if part == "__init__" else part


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names of all imports, in functions and for type checking too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parts_imported(tree: ast.AST) -> set[str]:
    """Which parts of this package a module imports."""
    names = (name.split(".") for name in imported(tree))
    return {name[1] for name in names if name[0] == "transformer_cli" and len(name) > 1} - {"__version__"}


def may_import(part: str) -> set[str]:
    if part in NARROWER:
        return NARROWER[part]
    level = next((i for i, layer in enumerate(LAYERS) if part in layer), None)
    assert level is not None, f"{part} has no place in LAYERS; DESIGN's order of imports decides where it belongs"
    return set().union(*LAYERS[: level + 1])


def unsafe(tree: ast.AST) -> list[str]:
    """What in a module could run code out of a file: pickles, torch.load, YAML without a safe loader."""
    found = [name for name in imported(tree) if name.split(".")[0] in RUNS_CODE_ON_LOAD]
    safe_loaders = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and [ast.unparse(base) for base in node.bases] == ["yaml.SafeLoader"]
    } | {"yaml.SafeLoader", "yaml.CSafeLoader"}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if (
            name in UNSAFE_CALLS
            or (name == "yaml.load" and options.get("Loader") not in safe_loaders)
            or options.get("allow_pickle", "False") != "False"
        ):
            found.append(name)
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way_only(path: Path) -> None:
    part = place(path)
    wrong = parts_imported(ast.parse(path.read_text(encoding="utf-8"))) - may_import(part)
    assert not wrong, f"{part or 'the package'} may not import {sorted(wrong)}"


def test_nobody_imports_the_command_line() -> None:
    importers = {place(p) for p in modules() if "cli" in parts_imported(ast.parse(p.read_text(encoding="utf-8")))}
    assert importers <= {"cli", "__main__"}


def test_the_training_loop_knows_no_files() -> None:
    tree = ast.parse((PACKAGE / "training" / "loop.py").read_text(encoding="utf-8"))
    named = {part for name in imported(tree) for part in name.split(".")[:2]}
    assert not named & LOOP_KNOWS_NO_FILES
    assert "open" not in {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_torch_free_parts_import_without_torch() -> None:
    names = [*TORCH_FREE, *(f"transformer_cli.text.{p.stem}" for p in sorted((PACKAGE / "text").glob("[!_]*.py")))]
    assert len(names) > len(TORCH_FREE)
    code = (
        "import importlib, sys\n"
        "sys.modules['torch'] = None\n"  # importing it raises ImportError
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_torch_is_seen_where_it_is_imported() -> None:
    code = "import sys; sys.modules['torch'] = None; import transformer_cli.model.attention"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_runs_code_on_load(path: Path) -> None:
    assert unsafe(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from pickle import loads",
        "torch.load(path, weights_only=True)",
        "torch.save(model, path)",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "class Mine(yaml.Loader): pass\nyaml.load(text, Loader=Mine)",
        "yaml.unsafe_load(text)",
        "np.load(path, allow_pickle=True)",
        "exec(text)",
    ],
)
def test_code_that_runs_on_load_is_seen(source: str) -> None:
    assert unsafe(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    ["yaml.safe_load(text)", "class Mine(yaml.SafeLoader): pass\nyaml.load(text, Loader=Mine)", "model.eval()"],
)
def test_safe_code_is_let_through(source: str) -> None:
    assert not unsafe(ast.parse(source))


def test_the_order_of_imports_is_strict() -> None:
    assert "training" not in may_import("decoding")
    assert "text" not in may_import("model")
    assert may_import("text") == {"errors", "config_file", "config", "text"}
    assert parts_imported(ast.parse("def f():\n    from transformer_cli.cli import app")) == {"cli"}
    assert parts_imported(ast.parse("from transformer_cli import checkpoint")) == {"checkpoint"}


def test_every_package_folder_is_a_package() -> None:
    folders = {path.parent for path in modules()}
    assert all((folder / "__init__.py").exists() for folder in folders)


def test_no_module_is_a_drawer_for_anything() -> None:
    assert not {path.stem for path in modules()} & {"utils", "helpers", "common", "misc", "util", "helper"}
