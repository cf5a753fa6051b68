"""The command line, as its users type it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

from onnxtrain.cli import app
from onnxtrain.session import TrainingSession
from onnxtrain.training.data import read_npz, write_npz
from tests.graph.training_models import edited, floats, mlp_with_momentum, training_model
from tests.training.problems import classification, fix_batch

COMMANDS = ("inspect", "check", "prepare", "init", "train", "infer", "evaluate", "export", "demo")


class Shell:
    """A folder with a network, the training model made of it, and data; commands are typed as one line."""

    def __init__(self, folder: Path):
        self.folder = folder
        model = mlp_with_momentum()
        onnx.save(model, folder / "training.onnx")
        onnx.save(edited(model, lambda model: model.ClearField("training_info")), folder / "network.onnx")
        write_npz(folder / "data.npz", classification())
        write_npz(folder / "held_out.npz", classification(seed=1))

    def run(self, line: str, exit_code: int = 0) -> str:
        """Everything that a command prints, once its exit code is what it should be."""
        result = CliRunner().invoke(app, shlex.split(line))
        assert result.exit_code == exit_code, result.output
        assert "Traceback" not in result.output
        return result.output

    def session(self, name: str) -> TrainingSession:
        return TrainingSession(self.folder / name)

    def save(self, name: str, model: onnx.ModelProto) -> None:
        onnx.save(model, self.folder / name)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path)


def same_values(first: TrainingSession, second: TrainingSession) -> bool:
    return all(np.array_equal(first.variables[name], second.variables[name]) for name in first.variables)


# The main job


def test_a_network_is_prepared_initialized_trained_evaluated_and_exported(shell: Shell) -> None:
    assert "Next: onnxtrain train prepared.onnx" in shell.run(
        "prepare network.onnx -o prepared.onnx --optimizer adam --learning-rate 0.02 --initialize glorot_uniform"
    )
    assert "state variables initialized" in shell.run("init prepared.onnx -o fresh.onnx --seed 3")
    said = shell.run("train fresh.onnx -o trained.onnx --data data.npz --validation held_out.npz --epochs 15")
    assert said.count("validation loss") == 15
    assert "trained.onnx: trained, 60 steps in all." in said
    assert "accuracy  9" in shell.run("evaluate trained.onnx --data held_out.npz")
    shell.run("export trained.onnx -o better.onnx")
    exported = onnx.load(shell.folder / "better.onnx")
    onnx.checker.check_model(exported)
    assert not exported.training_info
    assert "logits [100, 3]" in shell.run("infer better.onnx -o outputs.npz --data held_out.npz")
    session, x = shell.session("trained.onnx"), classification(seed=1)["x"]
    np.testing.assert_allclose(
        read_npz(shell.folder / "outputs.npz")["logits"], session.infer({"x": x})["logits"], rtol=1e-5, atol=1e-6
    )


def test_commands_leave_the_model_that_they_read_as_it_was(shell: Shell) -> None:
    before = (shell.folder / "training.onnx").read_bytes()
    shell.run("init training.onnx -o out.onnx")
    shell.run("train training.onnx -o out.onnx --data data.npz")
    shell.run("evaluate training.onnx --data data.npz")
    shell.run("export training.onnx -o out.onnx")
    assert (shell.folder / "training.onnx").read_bytes() == before


# prepare, init, export


def test_prepare_trains_only_what_the_patterns_leave(shell: Shell) -> None:
    shell.run("prepare network.onnx -o prepared.onnx --optimizer sgd --trainable 'W*' --trainable 'b*' --freeze '?1'")
    names = set(shell.session("prepared.onnx").variables)
    assert {"W2", "b2"} <= names
    assert names.isdisjoint({"W1", "b1"})


def test_prepare_frees_a_fixed_batch(shell: Shell) -> None:
    inference = edited(mlp_with_momentum(), fix_batch(1), lambda model: model.ClearField("training_info"))
    shell.save("fixed.onnx", inference)
    said = shell.run("prepare fixed.onnx -o prepared.onnx --free-batch")
    assert "3 batches together give what they give one by one" in said
    shell.run("train prepared.onnx -o trained.onnx --data data.npz --batch-size 25")
    assert shell.session("trained.onnx").step_count == 4


def test_prepare_takes_the_learning_rate_and_the_loss(shell: Shell) -> None:
    shell.run("prepare network.onnx -o prepared.onnx --loss mean_squared_error --lr 0.25")
    assert shell.session("prepared.onnx").variables["learning_rate"] == 0.25
    write_npz(shell.folder / "targets.npz", {"x": np.ones((8, 4), np.float32), "labels": np.ones((8, 3), np.float32)})
    assert "loss" in shell.run("evaluate prepared.onnx --data targets.npz")


def test_prepare_follows_a_recipe_and_options_come_before_it(shell: Shell) -> None:
    recipe = 'optimizer = "sgd"\nfrozen = "?1"\n[learning_rate]\nkind = "cosine"\nstart = 0.5\nsteps = 9\n'
    (shell.folder / "recipe.toml").write_text(recipe)
    shell.run("prepare network.onnx -o prepared.onnx --recipe recipe.toml")
    session = shell.session("prepared.onnx")
    assert set(session.variables) == {"W2", "b2", "step"}
    kept = json.loads(session.model.metadata["onnxtrain.recipe"])
    assert kept["learning_rate"] == {"kind": "cosine", "start": 0.5, "steps": 9}
    shell.run("prepare network.onnx -o prepared.onnx --recipe recipe.toml --lr 0.25 --freeze '?2'")
    assert set(shell.session("prepared.onnx").variables) == {"W1", "b1", "learning_rate"}


def test_prepare_clips_accumulates_and_averages_and_export_writes_the_averages(shell: Shell) -> None:
    shell.run("prepare network.onnx -o prepared.onnx --clip 0.5 --accumulate 2 --average 0.5 --optimizer sgd --lr 1")
    shell.run("train prepared.onnx -o trained.onnx --data data.npz --epochs 1")
    shell.run("export trained.onnx -o last.onnx")
    shell.run("export trained.onnx -o averaged.onnx --averaged")
    variables = shell.session("trained.onnx").variables
    averaged = shell.session("averaged.onnx").model.graph.initializers
    assert not np.array_equal(variables["W1/average"], variables["W1"])
    np.testing.assert_array_equal(averaged["W1"], variables["W1/average"])
    np.testing.assert_array_equal(shell.session("last.onnx").model.graph.initializers["W1"], variables["W1"])


def test_prepare_replaces_the_head(shell: Shell) -> None:
    shell.run("prepare network.onnx -o prepared.onnx --classes 7 --trainable last:1")
    session = shell.session("prepared.onnx")
    assert session.variables["b2"].shape == (7,)
    assert "W1" not in session.variables


def test_prepare_cuts_the_model(shell: Shell) -> None:
    value = onnx.load(shell.folder / "network.onnx").graph.node[0].output[0]
    shell.run(f"prepare network.onnx -o prepared.onnx --cut {value}")
    assert [output.name for output in onnx.load(shell.folder / "prepared.onnx").graph.output] == [value]


def test_prepare_initializes_by_pattern(shell: Shell) -> None:
    shell.run("prepare network.onnx -o prepared.onnx --initialize 'W2=constant:0.5' --initialize 'b*=keep'")
    before = shell.session("prepared.onnx").variables["W1"]
    shell.run("init prepared.onnx -o fresh.onnx")
    fresh = shell.session("fresh.onnx").variables
    assert (fresh["W2"] == 0.5).all()
    np.testing.assert_array_equal(fresh["W1"], before)


def test_adapters_are_trained_and_merged_from_the_command_line(shell: Shell) -> None:
    shell.run("prepare network.onnx -o prepared.onnx --lora 'W*' --lora-rank 2 --lora-dropout 0.1")
    shell.run("train prepared.onnx -o trained.onnx --data data.npz")
    shell.run("export trained.onnx -o merged.onnx")
    shell.run("export trained.onnx -o kept.onnx --keep-adapters")
    names = [tensor.name for tensor in onnx.load(shell.folder / "network.onnx").graph.initializer]
    assert [tensor.name for tensor in onnx.load(shell.folder / "merged.onnx").graph.initializer] == names
    assert "W1/lora_A" in {tensor.name for tensor in onnx.load(shell.folder / "kept.onnx").graph.initializer}


def test_a_model_is_trained_for_int8_from_the_command_line(shell: Shell) -> None:
    shell.run("prepare network.onnx -o prepared.onnx --quantize data.npz")
    shell.run("train prepared.onnx -o trained.onnx --data data.npz")
    shell.run("export trained.onnx -o int8.onnx")
    stored = {tensor.name: tensor.data_type for tensor in onnx.load(shell.folder / "int8.onnx").graph.initializer}
    assert stored["W1/quantized"] == onnx.TensorProto.INT8


def test_prepare_puts_layers_back(shell: Shell) -> None:
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "W"], ["y"], "dense")],
        "network",
        [floats("x", "N", 4)],
        [floats("y", "N", 3)],
        [numpy_helper.from_array(np.ones((4, 3), np.float32), "W")],
    )
    shell.save("dense.onnx", training_model(graph))
    shell.run("prepare dense.onnx -o prepared.onnx --dropout 'x=0.25' --dropout node:dense=0.5 --normalize W --tie")
    model = onnx.load(shell.folder / "prepared.onnx")
    assert [node.op_type for node in model.graph.node] == ["Gemm", "BatchNormalization"]
    kinds = [node.op_type for node in model.training_info[0].algorithm.node]
    assert kinds.count("Dropout") == 2


def test_init_draws_by_its_seed(shell: Shell) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        shell.run(f"init training.onnx -o {name}.onnx --seed {seed}")
    a, b, c = (shell.session(f"{name}.onnx") for name in "abc")
    assert same_values(a, b)
    assert not same_values(a, c)


# train


def test_a_run_goes_on_from_its_own_output_as_if_it_had_never_stopped(shell: Shell) -> None:
    shell.run("train training.onnx -o whole.onnx --data data.npz --epochs 4 --seed 7")
    shell.run("train training.onnx -o half.onnx --data data.npz --epochs 2 --seed 7")
    shell.run("train half.onnx -o half.onnx --data data.npz --epochs 2")
    assert shell.session("half.onnx").step_count == 16
    assert same_values(shell.session("whole.onnx"), shell.session("half.onnx"))


def test_a_learning_curve_is_drawn_when_asked(shell: Shell) -> None:
    pytest.importorskip("matplotlib", reason="learning curves need matplotlib")
    assert "curve.png: the learning curve" in shell.run(
        "train training.onnx -o trained.onnx --data data.npz --epochs 2 --plot curve.png"
    )
    assert (shell.folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_model_that_fixes_its_batch_warns_of_examples_left_out(shell: Shell) -> None:
    shell.save("fixed.onnx", edited(mlp_with_momentum(), fix_batch(32)))
    said = shell.run("train fixed.onnx -o trained.onnx --data data.npz")
    assert "Warning: The model's inputs fix 32 examples a batch, so 4 of the 100 examples are left out." in said


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(shell: Shell) -> None:
    command = [sys.executable, "-m", "onnxtrain", *["train", "training.onnx", "-o", "out.onnx", "--data", "data.npz"]]
    log = shell.folder / "log"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--epochs", "100000"], stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        while "epoch" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    said = log.read_text()
    assert "Traceback" not in said
    hint = next(line for line in said.splitlines() if line.startswith("To go on: onnxtrain "))
    stopped = shell.session("out.onnx").step_count
    assert f"after step {stopped}" in said
    line = hint.removeprefix("To go on: onnxtrain ")
    assert line.endswith("--epochs 100000 --keep 3 --resume")
    reached = stopped // 4 + 2
    shell.run(line.replace("100000", str(reached)))
    assert shell.session("out.onnx").step_count == 4 * reached
    shell.run(f"train training.onnx -o whole.onnx --data data.npz --epochs {reached}")
    assert same_values(shell.session("whole.onnx"), shell.session("out.onnx"))


def test_checkpoints_are_kept_and_a_damaged_newest_one_is_passed_over(shell: Shell) -> None:
    line = "train training.onnx -o out.onnx --data data.npz --epochs {} --checkpoints run --keep 2"
    shell.run("train training.onnx -o whole.onnx --data data.npz --epochs 4")
    shell.run(line.format(3))
    steps = sorted(path.stem for path in (shell.folder / "run").glob("*.onnx"))
    assert steps == ["step-0000000008", "step-0000000012"]
    newest = shell.folder / "run" / "step-0000000012.onnx"
    newest.write_bytes(newest.read_bytes()[:-1])
    said = shell.run(f"{line.format(4)} --resume")
    assert "step-0000000012.onnx is damaged" in said
    assert "Going on from run/step-0000000008.onnx, after step 8." in said
    assert same_values(shell.session("whole.onnx"), shell.session("out.onnx"))


def test_checkpoints_of_another_run_are_not_mixed_with_those_of_a_new_one(shell: Shell) -> None:
    line = "train training.onnx -o out.onnx --data data.npz --checkpoints run"
    shell.run(line)
    said = shell.run(line, exit_code=1)
    assert (
        said == "Error: run holds checkpoints of an earlier run. Go on with it by --resume, or give another folder.\n"
    )


def test_a_run_that_is_resumed_where_nothing_was_saved_begins(shell: Shell) -> None:
    shell.run("train training.onnx -o whole.onnx --data data.npz")
    shell.run("train training.onnx -o out.onnx --data data.npz --checkpoints run --resume")
    assert same_values(shell.session("whole.onnx"), shell.session("out.onnx"))


def test_a_complete_run_that_is_resumed_writes_its_output_again(shell: Shell) -> None:
    line = "train training.onnx -o out.onnx --data data.npz --checkpoints run --resume"
    shell.run(line)
    (shell.folder / "out.onnx").unlink()
    assert "out.onnx: trained, 4 steps in all." in shell.run(line)
    assert shell.session("out.onnx").step_count == 4


def test_a_loss_that_is_nan_is_traced_to_its_source_and_the_output_is_left(shell: Shell) -> None:
    shell.run("train training.onnx -o out.onnx --data data.npz")
    data = classification()
    data["x"][3, 1] = np.nan
    write_npz(shell.folder / "nan.npz", data)
    before = (shell.folder / "out.onnx").read_bytes()
    said = shell.run("train out.onnx -o out.onnx --data nan.npz", exit_code=1)
    assert "out.onnx is left as it was saved last." in said
    assert "Error: Training stopped: step " in said
    assert "Before any node ran, 'x': float32[32, 4]" in said
    assert (shell.folder / "out.onnx").read_bytes() == before


def test_when_memory_runs_out_the_last_good_state_is_saved(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    step = TrainingSession.step

    def fail_in_the_sixth(self: TrainingSession, *arguments: Any, **options: Any) -> dict[str, Any]:
        if self.step_count == 5:
            raise MemoryError("9 bytes")
        return step(self, *arguments, **options)

    line = "train training.onnx -o out.onnx --data data.npz --epochs 2"
    with monkeypatch.context() as patch:
        patch.setattr(TrainingSession, "step", fail_in_the_sixth)
        said = shell.run(line, exit_code=1)
    assert "Error: A step ran out of memory. The session is back at step 4." in said
    assert "out.onnx holds the state after step 4." in said
    shell.run(f"{line} --resume")
    shell.run(line.replace("out.onnx", "whole.onnx"))
    assert same_values(shell.session("whole.onnx"), shell.session("out.onnx"))


# infer, evaluate


def test_infer_needs_no_labels_and_no_training_information(shell: Shell) -> None:
    write_npz(shell.folder / "x.npz", {"x": classification()["x"]})
    shell.run("infer network.onnx -o outputs.npz --data x.npz --batch-size 7")
    assert list(read_npz(shell.folder / "outputs.npz")) == ["logits"]


def test_evaluate_prints_each_measure_and_how_many_examples_it_saw(shell: Shell) -> None:
    said = shell.run("evaluate training.onnx --data data.npz --batch-size 9")
    assert "training.onnx on 100 examples" in said
    assert "loss" in said
    assert "accuracy" in said


# inspect, check


def test_inspect_shows_a_training_model(shell: Shell) -> None:
    said = shell.run("inspect training.onnx")
    for part in (
        "training.onnx: training model",
        "float32[N, 4]",
        "int64[N]",
        "State variables: 9 tensors",
        "Gradient, Momentum",
        "0: W1_start",
        "0: W1_new",
        "Operators with no rule: none",
    ):
        assert part in said


def test_inspect_shows_what_would_train_in_an_inference_model(shell: Shell) -> None:
    said = shell.run("inspect network.onnx")
    assert "network.onnx: inference model" in said
    assert "Would be trained: 4 tensors" in said
    assert "Would stay as they are: 0 float tensors" in said
    said = shell.run("inspect network.onnx --trainable last:1 --freeze 'b*'")
    assert "Would be trained: 1 tensor," in said
    row = next(line for line in said.splitlines() if line.strip().startswith("W2"))
    assert row.split()[-3:-1] == ["kernel", "2"]


def test_inspect_says_why_nothing_would_train(shell: Shell) -> None:
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [floats("x", "N")], [floats("y", "N")])
    shell.save("relu.onnx", training_model(graph))
    said = shell.run("inspect relu.onnx")
    assert "Nothing would be trained" in said
    assert "has nothing to train" in said


def test_inspect_lists_operators_with_no_rule(shell: Shell) -> None:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node[1].op_type, model.graph.node[1].domain = "Squash", "com.example"
        model.opset_import.append(helper.make_opsetid("com.example", 2))

    shell.save("odd.onnx", edited(mlp_with_momentum(), change))
    said = shell.run("inspect odd.onnx")
    assert "Operators with no rule: none" not in said
    assert said.split("Operators with no rule")[1].split()[-4:] == ["Squash", "com.example", "2", "1"]


def test_inspect_takes_names_for_what_they_are_rather_than_for_markup(shell: Shell) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["[bold]x[/nothing] :smile:"], ["y"])],
        "g",
        [floats("[bold]x[/nothing] :smile:", "N")],
        [floats("y", "N")],
    )
    shell.save("names.onnx", training_model(graph))
    assert "[bold]x[/nothing] :smile:" in shell.run("inspect names.onnx")


def test_check_passes_a_model_that_obeys(shell: Shell) -> None:
    assert "obeys the training specification: 1 algorithm, 9 state variables." in shell.run("check training.onnx")


def test_check_says_that_an_inference_model_has_no_training_information(shell: Shell) -> None:
    assert "no training information: `onnxtrain prepare` adds it" in shell.run("check network.onnx")


def test_check_lists_every_problem(shell: Shell) -> None:
    def break_bindings(model: onnx.ModelProto) -> None:
        model.training_info[0].update_binding[0].key = "nothing"
        model.training_info[0].update_binding[1].value = "nowhere"

    shell.save("broken.onnx", edited(mlp_with_momentum(), break_bindings))
    said = shell.run("check broken.onnx", exit_code=1)
    assert "'nothing'" in said
    assert "'nowhere'" in said
    assert "broken.onnx: 2 problems." in said
    assert "T-11" in said


# Failures


def text_file(shell: Shell) -> None:
    (shell.folder / "text.onnx").write_text("no model")


def other_name(shell: Shell) -> None:
    write_npz(shell.folder / "other.npz", {"X": classification()["x"], "labels": classification()["labels"]})


def other_type(shell: Shell) -> None:
    data = classification()
    write_npz(shell.folder / "other.npz", {**data, "x": data["x"].astype(np.float64)})


def uneven(shell: Shell) -> None:
    data = classification()
    write_npz(shell.folder / "other.npz", {**data, "labels": data["labels"][:-1]})


def broken(shell: Shell) -> None:
    shell.save("broken.onnx", edited(mlp_with_momentum(), lambda model: model.training_info[0].update_binding.pop()))
    model = mlp_with_momentum()
    model.training_info[0].update_binding[0].value = "nowhere"
    shell.save("broken.onnx", model)


def nothing(shell: Shell) -> None:
    pass


@pytest.mark.parametrize(
    ("arrange", "line", "message"),
    [
        (nothing, "inspect missing.onnx", "missing.onnx: No such file or directory."),
        (nothing, "check missing.onnx", "missing.onnx: No such file or directory."),
        (text_file, "inspect text.onnx", "not an ONNX model"),
        (nothing, "train training.onnx -o out.onnx --data missing.npz", "missing.npz: No such file or directory."),
        (nothing, "train training.onnx -o out.onnx --data training.onnx", "is no .npz archive"),
        (nothing, "train training.onnx -o no/folder/out.onnx --data data.npz", "no/folder: The folder does not exist."),
        (nothing, "train training.onnx -o . --data data.npz", "Is a directory"),
        (nothing, "train network.onnx -o out.onnx --data data.npz", "onnxtrain prepare MODEL -o OUT"),
        (other_name, "train training.onnx -o out.onnx --data other.npz", "There is no array 'x'"),
        (other_type, "train training.onnx -o out.onnx --data other.npz", "convert it with .astype('float32')"),
        (uneven, "train training.onnx -o out.onnx --data other.npz", "differ in length"),
        (broken, "train broken.onnx -o out.onnx --data data.npz", "'nowhere'"),
        (nothing, "train training.onnx -o out.onnx --data data.npz --plot curve.doc", ".png, .svg, .pdf"),
        (nothing, "init network.onnx -o out.onnx", "no training information"),
        (nothing, "evaluate network.onnx --data data.npz", "no training information"),
        (other_name, "infer network.onnx -o out.npz --data other.npz", "There is no array 'x' in other.npz"),
        (nothing, "prepare training.onnx -o out.onnx", "has training information already"),
        (nothing, "prepare network.onnx -o out.onnx --freeze 'Q*'", "frozen='Q*' matches no weight"),
        (nothing, "prepare network.onnx -o out.onnx --optimizer sdg", "sgd"),
        (nothing, "prepare network.onnx -o out.onnx --loss hinge", "mean_squared_error"),
    ],
)
def test_a_failure_is_one_readable_message_and_exit_code_1(
    shell: Shell, arrange: Callable[[Shell], None], line: str, message: str
) -> None:
    arrange(shell)
    before = sorted(path.name for path in shell.folder.iterdir())
    said = shell.run(line, exit_code=1)
    assert message in said
    assert said.startswith("Error: ")
    assert sorted(path.name for path in shell.folder.iterdir()) == before


@pytest.mark.parametrize("line", ["--debug inspect missing.onnx", "inspect missing.onnx --debug"])
def test_debug_shows_where_an_error_came_from(shell: Shell, line: str) -> None:
    result = CliRunner().invoke(app, line.split())
    assert isinstance(result.exception, FileNotFoundError)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "train training.onnx",
        "train training.onnx -o out.onnx --data data.npz --epochs 0",
        "train training.onnx -o out.onnx --data data.npz --epochs many",
        "train training.onnx -o out.onnx --data data.npz --colour",
        "prepare network.onnx -o out.onnx --dropout x",
        "inspect",
    ],
)
def test_a_wrong_call_is_exit_code_2(shell: Shell, line: str) -> None:
    assert "Usage:" in shell.run(line, exit_code=2)


# Help


@pytest.mark.parametrize("command", COMMANDS)
def test_help_documents_every_option_and_shows_an_example(command: str, shell: Shell) -> None:
    said = shell.run(f"{command} --help")
    assert f"onnxtrain {command}" in said.split("Usage:")[1].split("\n", 1)[1]


def test_help_lists_every_command_and_the_exit_codes(shell: Shell) -> None:
    said = shell.run("--help")
    assert all(f" {command} " in said for command in COMMANDS)
    assert "Exit codes" in said


def test_every_option_of_every_command_has_a_help_text() -> None:
    from typer.main import get_command

    group = get_command(app)
    for name in COMMANDS:
        for parameter in group.commands[name].params:  # type: ignore[attr-defined]
            assert getattr(parameter, "help", None), f"{name}: {parameter.name}"


def test_the_package_is_also_a_command() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "onnxtrain", "--help"], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0
    assert "onnxtrain prepare model.onnx" in finished.stdout
