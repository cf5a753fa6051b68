"""Which tests show which statement of the specification; `python -m tests.spec_table` writes docs/spec.md from it."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
STATEMENTS = ROOT / "docs" / "spec_statements.toml"
TABLE = ROOT / "docs" / "spec.md"

PREFACE = """\
# The specification, statement by statement

What onnxtrain takes the ONNX training specification to say: the protobuf reference of `ModelProto`, `GraphProto` and
`TrainingInfoProto`, ONNX's `IR.md`, and the operator documents of `ai.onnx.preview.training`. *Decided* marks a choice
that holds here because those are silent or disagree. Under each statement stand the tests that show it.

Written by `python -m tests.spec_table`; do not edit.
"""


@dataclass(frozen=True)
class Statement:
    """One statement of the specification in our words; `decided` where ONNX's documents leave the choice open."""

    id: str
    section: str
    text: str
    decided: bool


@dataclass(frozen=True)
class Mark:
    """A test that carries `@pytest.mark.spec(statement)`; `path` is relative to the repository."""

    statement: str
    path: str
    test: str


def read_statements() -> tuple[Statement, ...]:
    """All statements in the order of the document."""
    document = tomllib.loads(STATEMENTS.read_text(encoding="utf-8"))
    return tuple(
        Statement(id, section["title"], row["text"], row.get("decided", False))
        for section in document["section"]
        for id, row in section["statements"].items()
    )


def collect_marks() -> tuple[Mark, ...]:
    """Every spec mark of the test suite, read from the source so that nothing needs to be installed or run."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return tuple(mark for path in paths for mark in marks_of(path.read_text(encoding="utf-8"), _relative(path)))


def marks_of(source: str, path: str) -> Iterator[Mark]:
    """The spec marks of one module: on tests and classes, in `pytestmark`, and in the parameters of a test.

    Raises:
      ValueError: an id is no literal, or a mark belongs to no test, so that the table would miss it.
    """
    module = ast.parse(source)
    lists = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    everywhere = [lists["pytestmark"]] if "pytestmark" in lists else []
    used: set[ast.Call] = set()
    for test, decorators in _tests(module.body, everywhere):
        calls = [call for decorator in decorators for call in _spec_calls(decorator, lists)]
        used.update(calls)
        for id in dict.fromkeys(id for call in calls for id in _ids(call, path)):
            yield Mark(id, path, test)
    for call in _spec_calls(module, {}):
        if call not in used:
            raise ValueError(f"{path}:{call.lineno}: this spec mark belongs to no test; put it on one.")


def render(statements: Sequence[Statement], marks: Sequence[Mark]) -> str:
    """The text of docs/spec.md."""
    tests: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for mark in marks:
        tests[mark.statement][mark.path].append(mark.test)
    parts = [PREFACE]
    section = ""
    for statement in statements:
        if statement.section != section:
            section = statement.section
            parts.append(f"\n## {section}\n")
        parts.append(f"\n**{statement.id}** {'*Decided.* ' if statement.decided else ''}{statement.text}\n\n")
        parts.extend(
            f"- [{path}](../{path}): {', '.join(f'`{name}`' for name in names)}\n"
            for path, names in tests[statement.id].items()
        )
    return "".join(parts)


def _tests(body: Sequence[ast.stmt], inherited: list[ast.expr]) -> Iterator[tuple[str, list[ast.expr]]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _tests(node.body, [*inherited, *node.decorator_list])
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield node.name, [*inherited, *node.decorator_list]


def _spec_calls(tree: ast.AST, lists: dict[str, ast.expr]) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.spec":
            yield node
        elif isinstance(node, ast.Name) and node.id in lists:
            yield from _spec_calls(lists[node.id], {})


def _ids(call: ast.Call, path: str) -> Iterator[str]:
    for argument in call.args:
        if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
            raise ValueError(f"{path}:{call.lineno}: write the id of the statement as a literal, not as a value.")
        yield argument.value


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


if __name__ == "__main__":
    TABLE.write_text(render(read_statements(), collect_marks()), encoding="utf-8")
