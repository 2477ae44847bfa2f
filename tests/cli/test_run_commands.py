"""References to runs, removal of runs, tables that fit, and former names of flags."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import bertvision
from bertvision.cli import current_names, output
from bertvision.cli.run_references import resolve_model, resolve_run, short_references
from bertvision.cli.runs import directory_size
from bertvision.errors import BertVisionError
from bertvision.runs import find_runs


@pytest.fixture(scope="module")
def original(tiny, reviews, tmp_path_factory):
    """A tree of finished runs: two fractions, the default head and another one, controls and ensembles."""
    root = tmp_path_factory.mktemp("original") / "runs"
    result = bertvision.run(
        task="reviews",
        train_file=str(reviews),
        encoder=str(tiny),
        heads=["learned", "adapter:members=3,size=32,token_pooling=max"],
        fractions=[0.5, 1.0],
        head_fractions=[1.0],
        train={"epochs": 2, "learning_rate": 1e-2},
        root=root,
    )
    return root, result.best.directory.relative_to(root)


@pytest.fixture
def tree(original, tmp_path):
    """A copy of the tree, and its best run."""
    root, best = original
    shutil.copytree(root, tmp_path / "runs")
    return tmp_path / "runs", tmp_path / "runs" / best


def test_references(tree, tmp_path):
    root, best = tree
    runs = list(find_runs(root))
    for run in runs:
        (reference,) = [name for name, other in zip(short_references(runs, root), runs, strict=True) if other == run]
        assert resolve_run(reference, root).directory == run.directory
        assert resolve_run(run.directory.relative_to(root).as_posix(), root).directory == run.directory
        assert resolve_run(str(run.directory), tmp_path).directory == run.directory
    assert resolve_run("reviews", root).directory == best
    assert resolve_run(best.name[:-3], root).directory == best
    assert resolve_model(str(best.parent), root) == best.parent and resolve_model("reviews", root) == best
    newest = runs[1].directory / "metrics.json"
    os.utime(newest, (4e9, 4e9))
    assert resolve_run("last", root).directory == newest.parent


def test_a_task_with_bert_alone_has_a_best_run(tree):
    root, _ = tree
    for run in list(find_runs(root)):
        if run.kind != "bert":
            shutil.rmtree(run.directory)
    best = max(find_runs(root), key=lambda run: run.validation_score)
    assert resolve_run("reviews", root).directory == best.directory


def test_references_that_name_no_run(tree, tmp_path):
    root, _ = tree
    with pytest.raises(
        BertVisionError, match=r"'bert' matches 3 runs in .*: 0.5/bert-\w+, 1/bert-\w+, \w+. Use one of these"
    ):
        resolve_run("bert", root)
    with pytest.raises(BertVisionError, match="No finished run in .* matches 'review.'.* Did you mean 'reviews'"):
        resolve_run("review.", root)
    with pytest.raises(BertVisionError, match="matches 'zzz'. Its tasks are reviews"):
        resolve_run("zzz", root)
    with pytest.raises(BertVisionError, match="No finished run at .*nothing"):
        resolve_run(str(tmp_path / "nothing"), root)
    with pytest.raises(BertVisionError, match="there are none in"):
        resolve_run("last", tmp_path / "empty")


def test_commands_take_references(tree, cli):
    root, best = tree
    code, out, err = cli("predict", "reviews", "the film was great", "--runs", root)
    assert code == 0 and re.match(r"(pos|neg)  \(0\.\d+\)", out), err
    code, out, _ = cli("runs", "show", best.name[:-3], "--runs", root)
    assert code == 0 and str(best) in out
    bert = next(best.parent.glob("bert-????????")).name
    code, out, _ = cli("runs", "compare", "0.5/bert", f"1/{bert}", "reviews", "--runs", root, "--json")
    assert code == 0 and len(json.loads(out)) == 3
    code, out, _ = cli("evaluate", "reviews", "--runs", root)
    assert code == 0 and "accuracy" in out
    code, _, err = cli("share", "bert", root / "shared", "--runs", root)
    assert code == 1 and "matches 3 runs" in err


def test_list_is_sorted_by_time_and_fits(tree, cli, monkeypatch):
    root, best = tree
    os.utime(best / "metrics.json", (4e9, 4e9))
    code, out, _ = cli("runs", "list", "--runs", root, "--json")
    rows = json.loads(out)
    assert code == 0 and rows[-1]["directory"] == str(best) and rows[-1]["size"] == directory_size(best) > 0
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = cli("runs", "list", "--runs", root)
    assert code == 0 and max(map(len, out.splitlines())) <= 100
    assert "default = adapter:members=3,size=32,token_pooling=max" in out and "BERT + " in out


def test_remove(tree, cli):
    root, best = tree
    before = directory_size(best)
    code, out, _ = cli("runs", "remove", "reviews", best, "--runs", root)
    assert code == 0 and not best.exists() and f"Freed {output.size(before)}" in out
    assert (best.parent / "encoder").is_dir() and "Ensembles that lack a member now" in out
    code, _, err = cli("runs", "remove", "nothing", "--runs", root)
    assert code == 1 and "No finished run" in err


def test_remove_with_the_checkpoint(tree, cli):
    root, best = tree
    fraction = best.parent.parent / "0.5"
    code, out, _ = cli("runs", "remove", best, "--checkpoint", "--runs", root)
    assert code == 0 and (best.parent / "encoder").is_dir()  # other runs use it
    code, out, _ = cli("runs", "remove", "0.5/bert", "--checkpoint", "--yes", "--runs", root, "--json")
    assert code == 0 and not fraction.exists() and len(json.loads(out)["removed"]) == 2
    rest = [run.directory for run in find_runs(root)]
    code, out, _ = cli("runs", "remove", *rest, "--checkpoint", "--runs", root)
    assert code == 0 and not best.parent.exists() and not list(find_runs(root))


def test_remove_asks_on_a_terminal(tree, cli, monkeypatch):
    root, best = tree
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for answer, exists in ((False, True), (True, False)):
        monkeypatch.setattr("typer.confirm", lambda *_, answer=answer, **__: answer or sys.exit(1))
        code, _, err = cli("runs", "remove", best, "--runs", root)
        assert code == int(exists) and best.exists() is exists and str(best) in err


def row(name, kind="head", chosen=False):
    return {
        "name": name, "kind": kind, "fraction": 0.3, "chosen": chosen, "primary": "pearson",
        "interval": [69.354, 73.78], "score": {"pearson": 71.53, "spearman": 75.2}, "validation": 76.4,
        "parameters": 22_713_601, "seconds": {"total": 29.0},
    }  # fmt: skip


def test_the_table_of_the_demo_fits_100_columns(monkeypatch, capsys):
    from bertvision.cli.training import DEMO_HEADS
    from bertvision.heads import HeadConfig, default_head
    from bertvision.tasks import TASKS

    kind = TASKS["stsb"].example_kind
    default = default_head(kind)
    rows = [row("BERT", "bert"), *map(row, DEMO_HEADS), row(str(default), chosen=True), row("bert-head", "control")]
    rows += [row(str(default.last_layer_only()), "control"), row(f"BERT + {default} (mean)", "ensemble")]
    output.print_comparison(rows, kind)
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines[: len(rows) + 1]) <= 100
    assert f"default = {default}" in lines[len(rows) + 1 :]
    assert any("control: default:layers=last" in line for line in lines)
    assert HeadConfig.parse("default", kind) == default
    monkeypatch.setenv("COLUMNS", "80")
    output.print_comparison(rows, kind)
    table = capsys.readouterr().out.split("\ndefault = ")[0]
    assert max(map(len, table.splitlines())) <= 80


def test_former_names(messages):
    words = ["run", "--backbone", "x", "--through=last", "--activations", "memory", "--states-type=int8", "--task", "a"]
    expected = ["run", "--encoder", "x", "--auxiliary-head=last", "--states", "memory", "--store-dtype=int8"]
    assert current_names(words) == [*expected, "--task", "a"]
    assert "--backbone is now called --encoder." in messages
    assert current_names(["predict", "backbones", "--", "--texts"]) == ["predict", "backbones", "--", "--texts"]
    assert current_names(["extract", "--texts", "apart", "--pooled"]) == [
        "extract",
        "--encoding",
        "apart",
        "--pooler-output",
    ]
    assert current_names(["share", "--without-backbone"]) == ["share", "--without-encoder"]
    limits = ["serve", "last", "--budget", "9", "--readers=2", "--room", "99"]
    assert current_names(limits) == [
        "serve", "last", "--max-batch-tokens", "9", "--batch-threads=2", "--max-queue-tokens", "99",
    ]  # fmt: skip
    assert current_names(["store", "convert", "--first"]) == ["store", "convert", "--first-token-only"]


def test_former_command(cli):
    code, out, err = cli("backbones", "--json")
    assert code == 0 and json.loads(out)[0]["alias"] == "minilm" and "is now called encoders" in err


def test_version(cli):
    assert cli("--version")[:2] == (0, f"bertvision {bertvision.__version__}\n")


BASH = r"""
eval "$(_BERTVISION_COMPLETE=source_bash bertvision)"
for line in "bertvision ev" "bertvision predict --te" "bertvision runs " "bertvision zzz"; do
    read -r -a COMP_WORDS <<< "$line"
    [[ "$line" == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
    _bertvision_completion bertvision
    echo "${COMPREPLY[*]}"
done
complete -p bertvision
"""


def test_completion_in_bash(cli, tmp_path):
    """What `bertvision --install-completion` installs, in a real shell."""
    assert "--install-completion" in cli("--help")[1]
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("LOUD: there is no bash here, so completion was not tested")
    script = tmp_path / "bertvision"
    script.write_text(f"#!{sys.executable}\nfrom bertvision.cli import main\n\nmain()\n")
    script.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([bash, "--norc", "-c", BASH], capture_output=True, text=True, env=environment)
    expected = ["evaluate", "--text --text-pair", "list show compare remove", ""]
    assert done.stdout.splitlines()[:4] == expected, done.stderr
    assert done.stdout.splitlines()[4] == "complete -o default -F _bertvision_completion bertvision"


def test_the_names_of_the_package_are_complete():
    listed = set(dir(bertvision))
    assert set(bertvision.__all__) <= listed and {"__version__", "TrainedModel", "load", "run"} <= listed
    assert set(bertvision._MODULES) <= set(bertvision.__all__)
    for name in bertvision.__all__:
        assert getattr(bertvision, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        bertvision.nothing  # noqa: B018


def test_help_has_no_brackets_that_are_read_as_markup():
    """In the help of typer, "[both]" is an unknown style and disappears."""
    import typer

    from bertvision.cli import app

    commands = [typer.main.get_command(app)]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        for parameter in command.params:
            assert not re.search(r"(?<!\\)\[[a-z#/@]", getattr(parameter, "help", "") or ""), parameter.name
