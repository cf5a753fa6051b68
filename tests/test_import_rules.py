"""Who may import whom: models flow forward through the package, and imports follow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "onnxtrain"

# A module may import from its own layer and the ones above it in this list.
LAYERS = (
    ("errors", "dtypes", "limits"),
    ("schema",),
    ("graph",),
    ("authoring", "export"),
    ("lowering",),
    ("inputs", "state"),
    ("program",),
    ("execution",),
    ("session",),
    ("backend",),
    ("training",),
    ("demo",),
    ("cli",),
)
ALL_NAMES = tuple(name for names in LAYERS for name in names)
WORKS_WITH_PROTOS = (
    "schema",
    "graph.read",
    "graph.write",
    "graph.tensors",
    "graph.external_data",
    "authoring",
    "backend",
    "demo",
)
WORKS_WITHOUT_JAX = ("errors", "dtypes", "limits", "schema", "graph", "authoring", "export")
# What a user hands JAX functions to; nothing else of these imports it before there is one.
WRITES_JAX_FUNCTIONS = ("authoring.jax_functions", "authoring.optimizers.transformation")

# What finds, calls and connects the rules; every other module of `lowering` is a family of rules.
MACHINERY = (
    "lowering.registry",
    "lowering.static",
    "lowering.binding",
    "lowering.context",
    "lowering.interpreter",
    "lowering.gradient",
)
# Beside the registry, what several families share: no module of these has a rule.
A_FAMILY_MAY_IMPORT = (
    "lowering.registry",
    "lowering.static",
    "lowering.heads",
    "lowering.levels",
    "lowering.moments",
    "lowering.named_functions",
    "lowering.recurrence",
    "lowering.sampling",
    "lowering.windows",
    "errors",
    "dtypes",
)


@dataclass(frozen=True)
class Import:
    """One import: of `target`, at `line` of `module`; both dotted, and without `onnxtrain.` inside the package."""

    module: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def imports(only_inside: bool = False) -> Iterator[Import]:
    """Every import of the package that happens at run time, also those inside functions."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        for target, line in _targets(ast.parse(path.read_text(encoding="utf-8"))):
            if target == "onnxtrain" or target.startswith("onnxtrain."):
                yield Import(module, target.removeprefix("onnxtrain").removeprefix("."), line)
            elif not only_inside:
                yield Import(module, target, line)


def _targets(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.Import():
                yield from ((alias.name, node.lineno) for alias in node.names)
            case ast.ImportFrom():
                yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
            case _:
                yield from _targets(node)


def belongs(module: str, names: tuple[str, ...]) -> bool:
    """Whether the module is one of these, or stands inside one of these packages."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


def layer(module: str) -> int:
    """The number of the module's layer, counted from the front."""
    found = [number for number, names in enumerate(LAYERS) if belongs(module, names)]
    assert found, f"onnxtrain.{module} stands in no layer of {__file__}"
    return found[0]


def family(module: str) -> str:
    """The family of rules that a module of `lowering` belongs to; one may be a package of several modules."""
    return ".".join(module.split(".")[:2])


def test_every_module_stands_in_a_layer() -> None:
    for path in PACKAGE.iterdir():
        if path.stem not in ("__init__", "__main__") and (path.suffix == ".py" or (path / "__init__.py").exists()):
            layer(path.stem)


def test_nothing_imports_from_a_later_layer() -> None:
    inside = [found for found in imports(only_inside=True) if found.target and belongs(found.module, ALL_NAMES)]
    assert [str(found) for found in inside if layer(found.target) > layer(found.module)] == []


def test_only_the_demo_uses_the_package_as_its_users_do() -> None:
    assert {found.module for found in imports(only_inside=True) if not found.target} <= {"demo"}


def test_a_family_of_rules_imports_neither_another_family_nor_graphs() -> None:
    families = [
        found
        for found in imports(only_inside=True)
        if found.module.startswith("lowering.") and not belongs(found.module, MACHINERY)
    ]
    others = [found for found in families if family(found.target) != family(found.module)]
    assert [str(found) for found in others if not belongs(found.target, A_FAMILY_MAY_IMPORT)] == []


def test_only_readers_and_writers_of_files_import_onnx() -> None:
    found = [found for found in imports() if belongs(found.target, ("onnx",))]
    assert [str(found) for found in found if not belongs(found.module, WORKS_WITH_PROTOS)] == []


def test_reading_authoring_and_writing_do_not_import_jax() -> None:
    found = [found for found in imports() if belongs(found.target, ("jax", "jaxlib", "optax"))]
    without = [found for found in found if not belongs(found.module, WRITES_JAX_FUNCTIONS)]
    assert [str(found) for found in without if belongs(found.module, WORKS_WITHOUT_JAX)] == []


def test_no_private_part_of_jax_is_imported() -> None:
    found = [found for found in imports() if belongs(found.target, ("jax", "jaxlib"))]
    assert [str(found) for found in found if any(part.startswith("_") for part in found.target.split("."))] == []


def test_nothing_is_imported_with_a_star() -> None:
    assert [str(found) for found in imports() if found.target.endswith(".*")] == []


@pytest.mark.parametrize("package", ["jax", "onnx", "optax", "typer", "rich"])
def test_importing_onnxtrain_is_quick_because_it_does_not_import(package: str) -> None:
    assert not imports_at_run_time("onnxtrain", package)


@pytest.mark.parametrize("module", ["onnxtrain.authoring", "onnxtrain.export", "onnxtrain.graph.validate"])
def test_jax_is_not_even_imported_by_way_of_others_for(module: str) -> None:
    assert not imports_at_run_time(module, "jax")


def imports_at_run_time(module: str, other: str) -> bool:
    """Whether importing a module in a new interpreter imports the other one too."""
    program = f"import sys, {module}; sys.exit({other!r} in sys.modules)"
    return bool(subprocess.run([sys.executable, "-c", program], check=False).returncode)
