"""The layout holds: imports run one way only, what need not import torch does not, and nothing runs code on load."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "transformer_cli"

# From the bottom. A module belongs to the longest name that it begins with, and may import those of its own line and of
# the lines before it.
LAYERS = [
    {"errors"},
    {"search_options", "processes", "cluster"},
    {"config"},
    {"text"},
    {"storage"},
    {"data"},
    {"model"},
    {  # what a search and an update are
        "decoding.devices",
        "decoding.search",
        "decoding.engines.protocol",
        "decoding.engines.fast_step",
        "decoding.engines.torch_engine",
        "training.hardware",
        "training.distributed",
        "training.schedules",
        "training.objective",
        "training.muon",
        "training.loop",
    },
    {"variants"},
    {"codecs"},
    {"build"},
    {"decoding"},
    {"evaluation"},
    {"training"},
    {"protected"},
    {"jobs"},
    {"inside"},
    {"export", "importing", "plots", "report", "serve"},
    {"demo", "doctor"},
    {"report.card"},  # what doctor says of the data is in it
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
    "storage",
}
TORCH_FREE = [
    "",
    "codecs",
    "config",
    "errors",
    "search_options",
    "processes",
    "text",
    "storage.origin",
    "storage.holding",
    "storage.metrics",
    "storage.publishing",
    "storage.run_folder",
    "data.corpora",
    "data.encoded",
    "data.files",
    "data.held_out",
    "data.initialize",
    "data.recognize",
    "data.tmx",
    "data.batching",
    "data.quality",
    "model.sinusoids",
    "decoding.devices",
    "decoding.engines.protocol",
    "decoding.engines.ctranslate2_cache",
    "decoding.engines.ctranslate2_engine",
    "decoding.engines.ctranslate2_model",
    "decoding.constraints",
    "decoding.loading",
    "decoding.pipeline",
    "decoding.translator",
    "evaluation",
    "training.start",
    "protected",
    "jobs",
    "report",
    "serve",
    "doctor",
    "cli",
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


def name(path: Path) -> str:
    """The module's name inside the package: `text.lines`, `config`, … or `` for the package itself."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {name(path): path for path in modules()}
TREES = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}


def statements(tree: ast.AST, for_types: bool = True) -> Iterator[ast.AST]:
    """All of them, in functions too; without `for_types` none that only type checkers see."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        parts = ast.iter_child_nodes(node)
        if not for_types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            parts = iter(node.orelse)
        waiting += [part for part in parts if isinstance(part, ast.stmt | ast.excepthandler | ast.match_case)]


def imported(tree: ast.AST, for_types: bool = True) -> Iterator[str]:
    """Dotted names of all imports."""
    for node in statements(tree, for_types):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(tree: ast.AST, for_types: bool = True) -> set[str]:
    """Which modules of this package a module imports."""
    found = [name for name in imported(tree, for_types) if name.startswith("transformer_cli.")]
    names = {name.removeprefix("transformer_cli.") for name in found} - {"__version__"}
    return {found if found in MODULES else found.rpartition(".")[0] for found in names}


def layer(module: str) -> int:
    """The line of LAYERS that a module belongs to."""
    parts = module.split(".")
    for size in range(len(parts), 0, -1):
        for number, names in enumerate(LAYERS):
            if ".".join(parts[:size]) in names:
                return number
    raise AssertionError(f"{module} has no place in LAYERS; CONTRIBUTING.md's floor plan says where it belongs")


def may_import(module: str, other: str) -> bool:
    room, other_room = module.partition(".")[0], other.partition(".")[0]
    if room in NARROWER:
        return other_room in NARROWER[room]
    return layer(other) <= layer(module)


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules each of which imports, by way of others, all others of its group."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        waiting = [*graph[start]]
        while waiting:
            module = waiting.pop()
            if module not in seen:
                seen.add(module)
                waiting += graph.get(module, ())
        reached[start] = seen
    found = {frozenset(b for b in reached[a] if a in reached.get(b, ())) for a in graph if a in reached[a]}
    return sorted(map(set, found), key=sorted)


def unsafe(tree: ast.AST) -> list[str]:
    """What in a module could run code out of a file: pickles, torch.load, YAML without a safe loader."""
    found = [name for name in imported(tree) if name.split(".")[0] in RUNS_CODE_ON_LOAD]
    safe_loaders = {"yaml.SafeLoader", "yaml.CSafeLoader"}  # and what has one of these as its only base
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and len(node.bases) == 1 and ast.unparse(node.bases[0]) in safe_loaders:
            safe_loaders.add(node.name)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if name == "torch.load" and options.get("weights_only") == "True":
            continue  # torch's restricted reader builds tensors and runs nothing
        if (
            name in UNSAFE_CALLS
            or (name == "yaml.load" and options.get("Loader") not in safe_loaders)
            or options.get("allow_pickle", "False") != "False"
        ):
            found.append(name)
    return found


def test_imports_run_one_way_only() -> None:
    wrong = [
        f"{module or 'the package'} may not import {other}"
        for module, tree in TREES.items()
        for other in sorted(own_imports(tree))
        if not may_import(module, other)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also where imports stand in functions; what is imported for type checking alone is no circle."""
    graph = {module: own_imports(tree, for_types=False) - {module, ""} for module, tree in TREES.items()}
    assert circles(graph) == []


def test_a_circle_is_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}, "e": {"a"}}) == [{"b", "c"}, {"d"}]


def test_nobody_imports_the_command_line() -> None:
    importers = {
        module.partition(".")[0]
        for module, tree in TREES.items()
        if any(found.startswith("cli") for found in own_imports(tree))
    }
    assert importers <= {"cli", "__main__"}


def test_the_training_loop_knows_no_files() -> None:
    tree = TREES["training.loop"]
    named = {part for name in imported(tree) for part in name.split(".")[:2]}
    assert not named & LOOP_KNOWS_NO_FILES
    assert "open" not in {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_torch_free_parts_import_without_torch() -> None:
    rooms = {room for room in TORCH_FREE if room}
    inside = [module for module in MODULES if any(f"{module}.".startswith(f"{room}.") for room in rooms)]
    assert len(inside) > len(rooms)
    names = ["transformer_cli", *(f"transformer_cli.{module}" for module in inside)]
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


def test_nothing_runs_code_on_load() -> None:
    assert {module: found for module, tree in TREES.items() if (found := unsafe(tree))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from pickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.save(model, path)",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "class Mine(yaml.Loader): pass\nyaml.load(text, Loader=Mine)",
        "class Mine(yaml.Loader): pass\nclass Other(Mine): pass\nyaml.load(text, Loader=Other)",
        "class Mine(yaml.SafeLoader, Other): pass\nyaml.load(text, Loader=Mine)",
        "yaml.unsafe_load(text)",
        "np.load(path, allow_pickle=True)",
        "exec(text)",
    ],
)
def test_code_that_runs_on_load_is_seen(source: str) -> None:
    assert unsafe(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "yaml.safe_load(text)",
        "torch.load(path, weights_only=True)",
        "class Mine(yaml.SafeLoader): pass\nyaml.load(text, Loader=Mine)",
        "class Mine(yaml.SafeLoader): pass\nclass Other(Mine): pass\nyaml.load(text, Loader=Other)",
        "model.eval()",
    ],
)
def test_safe_code_is_let_through(source: str) -> None:
    assert not unsafe(ast.parse(source))


def test_the_order_of_imports_is_strict() -> None:
    assert not may_import("decoding.search.beam", "training.run")
    assert not may_import("model.layers", "text.codec")
    assert not may_import("variants.pointer.model", "build")
    assert not may_import("decoding.search.beam", "decoding.translator")
    assert may_import("variants.pointer.model", "model.transformer")
    assert own_imports(ast.parse("def f():\n    from transformer_cli.cli import app")) == {"cli.app"}
    assert own_imports(ast.parse("from transformer_cli.storage import checkpoint")) == {"storage.checkpoint"}
    assert own_imports(ast.parse("from transformer_cli.text.lines import one_line")) == {"text.lines"}
    for_types = ast.parse("if TYPE_CHECKING:\n    import transformer_cli.cli\nelse:\n    import transformer_cli.text")
    assert own_imports(for_types) == {"cli", "text"}
    assert own_imports(for_types, for_types=False) == {"text"}
    assert own_imports(ast.parse("try:\n    pass\nexcept OSError:\n    import transformer_cli.text")) == {"text"}


def test_every_package_folder_is_a_package() -> None:
    folders = {path.parent for path in modules()}
    assert all((folder / "__init__.py").exists() for folder in folders)


def test_no_module_is_a_drawer_for_anything() -> None:
    assert not {path.stem for path in modules()} & {"utils", "helpers", "common", "misc", "util", "helper"}
