"""The house keeps its floors: imports point downward, nothing is circular, DAG files load light."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "warmup_tasks"
SINGLE_MODULE_FLOORS = (0, 6)
HEAVY = {"pandas", "sklearn", "optuna", "great_expectations", "duckdb", "torch", "vllm", "matplotlib", "scipy"}


def floors_of_the_docs() -> dict[str, int]:
    """Room name → floor, from the table in docs/architecture.md."""
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|", text, re.MULTILINE)
    return {
        room.rstrip("/").removesuffix(".py"): int(floor) for floor, cell in rows for room in re.findall("`(.+?)`", cell)
    }


def module_name(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
FLOORS = floors_of_the_docs()


def imports_of(tree: ast.Module, *, at_load_only: bool = False) -> Iterator[str]:
    """Names of imported modules; ``from a import b`` counts as ``a.b`` where that is a module, else as ``a``."""
    for node in _loaded(tree) if at_load_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def _loaded(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs when the module is loaded: not inside functions, not under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _loaded(child)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def room_of(module: str) -> str | None:
    """``warmup_tasks.lake.store`` → ``lake``; None for the package itself and for anything outside."""
    parts = module.split(".")
    return parts[1] if parts[0] == "warmup_tasks" and len(parts) > 1 else None


def faults(module: str, imported: str) -> str | None:
    """Say what is wrong with an import between rooms, or None."""
    room, other = room_of(module), room_of(imported)
    if room is None or other is None or room == other:
        return None
    if FLOORS[other] > FLOORS[room]:
        return f"{module} (floor {FLOORS[room]}) imports {imported} (floor {FLOORS[other]}): upward"
    if FLOORS[other] == FLOORS[room] and FLOORS[room] not in SINGLE_MODULE_FLOORS:
        return f"{module} imports {imported}: both on floor {FLOORS[room]}"
    return None


def test_the_docs_list_every_room_and_no_other():
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" and path.stem != "__init__"} | {
        path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()
    }
    assert set(FLOORS) == rooms


def test_imports_point_downward():
    found = [
        fault for module, path in MODULES.items() for name in imports_of(parse(path)) if (fault := faults(module, name))
    ]
    assert found == []


def test_no_module_imports_itself_through_others():
    graph = {
        module: {name for name in imports_of(parse(path), at_load_only=True) if name in MODULES and name != module}
        for module, path in MODULES.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError that names the circle


def test_the_ground_floor_does_not_load_what_talks_to_the_outside():
    outside = {"redis", "httpx", "pyarrow", "duckdb", "fsspec", "airflow"}
    ground = [name for name in MODULES if FLOORS.get(room_of(name) or "") == 0]
    assert len(ground) >= 7
    loaded = {(name, used.split(".")[0]) for name in ground for used in imports_of(parse(MODULES[name]))}
    assert [pair for pair in loaded if pair[1] in outside] == []


def test_only_the_airflow_room_knows_airflow():
    users = {
        room_of(module) for module, path in MODULES.items() for name in imports_of(parse(path))
        if name.split(".")[0] == "airflow"
    }  # fmt: skip
    assert users <= {"airflow", "local"}


def reachable_at_load(start: Path) -> dict[str, str]:
    """Every module that loading ``start`` loads → who asked for it, parents' ``__init__`` included."""
    found: dict[str, str] = {}
    waiting = [(name, start.name) for name in imports_of(parse(start), at_load_only=True)]
    while waiting:
        name, asked_by = waiting.pop()
        if name in found:
            continue
        found[name] = asked_by
        parents = [name.rsplit(".", n)[0] for n in range(1, name.count(".") + 1)]
        waiting += [(parent, name) for parent in parents]
        if name in MODULES:
            waiting += [(inner, name) for inner in imports_of(parse(MODULES[name]), at_load_only=True)]
    return found


@pytest.mark.parametrize("dag", sorted((REPOSITORY / "dags").glob("*.py")), ids=lambda path: path.name)
def test_dag_files_load_nothing_heavy(dag):
    loaded = reachable_at_load(dag)
    assert {name: by for name, by in loaded.items() if name.split(".")[0] in HEAVY} == {}


def test_the_checks_see_what_they_look_for(tmp_path):
    """A rule that cannot fail is no rule."""
    assert faults("warmup_tasks.lake.store", "warmup_tasks.planning") is not None
    assert faults("warmup_tasks.demand.heat", "warmup_tasks.sources.extract") is not None
    assert faults("warmup_tasks.planning.graph", "warmup_tasks.demand") is None
    heavy = tmp_path / "dag.py"
    heavy.write_text("from warmup_tasks import nightly\nimport duckdb\ndef f():\n    import pandas\n")
    loaded = reachable_at_load(heavy)
    assert loaded["duckdb"] == "dag.py"
    assert "pandas" not in loaded
    assert "warmup_tasks.settings" in loaded


def test_every_module_has_a_charter():
    short = [module for module, path in MODULES.items() if len(ast.get_docstring(parse(path)) or "") <= 20]
    assert short == [], "say what lives there, and what must not"


def test_planning_has_no_network():
    network = {"redis", "httpx", "socket", "warmup_tasks.serving", "warmup_tasks.engines.connect"}
    found = {
        (module, name)
        for module, path in MODULES.items()
        if room_of(module) == "planning"
        for name in imports_of(parse(path))
        if name in network or name.split(".")[0] in network
    }
    assert found == set()
