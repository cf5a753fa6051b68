"""The documents keep their promises: their Python runs, their commands work, their links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from onnxtrain.cli import app
from onnxtrain.demo import build_network, load_digits
from onnxtrain.training.data import write_npz

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
RUNNABLE = [path for path in DOCUMENTS if path.name != "CONTRIBUTING.md" and "```python" in path.read_text("utf-8")]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def code_of(path: Path, language: str) -> str:
    """All code of a document in one language, as a reader would type it from top to bottom."""
    return "".join(re.findall(rf"^```{language}\n(.*?)^```$", path.read_text("utf-8"), re.MULTILINE | re.DOTALL))


@pytest.fixture
def demo_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory for a test, with the files that the demo begins with."""
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    monkeypatch.chdir(tmp_path)
    digits, held_out = load_digits()
    write_npz("digits.npz", digits)
    write_npz("held_out.npz", held_out)
    onnx.save(build_network(), "network.onnx")
    return tmp_path


@pytest.mark.parametrize("path", RUNNABLE, ids=name_of)
@pytest.mark.usefixtures("demo_folder")
def test_the_python_of_a_document_runs_from_top_to_bottom(path: Path) -> None:
    exec(compile(code_of(path, "python"), path, "exec"), {"__name__": "document"})


def test_the_commands_of_the_readme_do_the_main_job(demo_folder: Path) -> None:
    commands = [line for line in code_of(ROOT / "README.md", "bash").splitlines() if line.startswith("onnxtrain ")]
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert result.exit_code == 0, f"{command}\n{result.output}"
    assert (demo_folder / "better_network.onnx").exists()


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_the_links_of_a_document_lead_to_files(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#\s]+)", path.read_text("utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []
