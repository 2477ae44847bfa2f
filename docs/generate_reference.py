"""Write the pages of the reference that follow from the code: the commands with their flags, and the settings."""

import ast
import inspect
import os
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import typer
from typer.core import TyperGroup

NAME = "bertvision"


def write_reference(directory: Path) -> None:
    """Write cli.md and configuration.md. Files that would not change are left alone, so that builds are short."""
    for name, text in (("cli.md", cli_page()), ("configuration.md", configuration_page())):
        path = directory / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


# Commands


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with its whole name, e.g. "bertvision runs list"."""
    from bertvision.cli import app

    yield from _commands(typer.main.get_command(app), NAME)


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        for part, inner in command.commands.items():
            yield from _commands(inner, f"{name} {part}")
    else:
        yield name, command


def cli_page() -> str:
    """Return the page of all commands."""
    lines = [
        "# Command line",
        "",
        "Every command has `--help`, and most have `--json`. `bertvision --install-completion` completes commands",
        "and options in your shell. Tables are as wide as the terminal or `COLUMNS`, and `NO_COLOR` is respected.",
        "Results go to stdout, messages to stderr. `RUN` is a run's directory, a unique prefix of its name, a task's",
        "name (its best run), or `last`. This page is made from the commands themselves.",
        "",
    ]
    for name, command in commands():
        lines += [f"## {name}", "", *_help(command.help or ""), ""]
        rows = [row for parameter in command.params if (row := _parameter(parameter))]
        lines += ["| argument or option | default | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _help(text: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring; examples become code."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text.split("\f")[0])):
        flat = " ".join(paragraph.split())
        if flat.startswith("Example: "):
            yield from ("", "```console", f"$ {flat.removeprefix('Example: ')}", "```", "")
        else:
            yield from (_escape(flat), "")


def _parameter(parameter: Any) -> str:
    """Return a row of the table of a command's parameters."""
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return ""
    if parameter.param_type_name == "argument":
        name = f"`{parameter.metavar or (parameter.name or '').upper()}`"
        text = getattr(parameter, "help", "") or ""
    else:
        names = [*parameter.opts, *parameter.secondary_opts]
        name, text = ", ".join(f"`{one}`" for one in names), parameter.help or ""
    default = parameter.default
    given = isinstance(default, int | float | str | Path) and default not in ("", False)
    shown = f"`{default}`" if given else ""
    return f"| {name} | {shown} | {_escape(' '.join(text.split()))} |"


def _escape(text: str) -> str:
    """Escape what Markdown would read as markup outside of code."""
    text = re.sub(r"(?<![\w`-])(--[a-z][\w-]*)(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"`\1`", text)  # flags are code
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([|*<>_\[\]])", r"\\\1", part) for part in parts)


# Settings


def configuration_page() -> str:
    """Return the page of all settings of an experiment."""
    from bertvision.pipeline.experiment import Experiment

    flags = _flags()
    lines = [
        "# Configuration",
        "",
        "The settings of an `Experiment`. They are given in a TOML file (`bertvision run FILE.toml`), with flags, with",
        "`--set key=value`, as arguments of `bertvision.run`, or as `settings` of an estimator. Keys of tables are",
        "written with a dot: `--set finetune.epochs=2`. An unknown key or a value of another type is an error.",
        "This page is made from the code.",
        "",
        "```toml",
        'task = "rotten-tomatoes"',
        'heads = ["learned", "default"]',
        "",
        "[data]",
        "limit = 3000",
        "",
        "[finetune]",
        'schedule = "linear"',
        "```",
        "",
    ]
    for title, key, value in _sections(Experiment()):
        lines += [f"## {title}", "", "| key | flag | default | meaning |", "|---|---|---|---|"]
        meanings = _meanings(type(value))
        for field in fields(value):
            default = getattr(value, field.name)
            if is_dataclass(default):
                continue
            name = f"{key}{field.name}"
            flag = f"`--{flags[name]}`" if name in flags else ""
            machine = field.default_factory is not MISSING and field.name == "cpu_optimizations"
            shown = "on CPUs" if machine else f"`{_toml(default)}`"
            lines.append(f"| `{name}` | {flag} | {shown} | {_escape(meanings.get(field.name, ''))} |")
        lines.append("")
    return "\n".join(lines)


def _flags() -> dict[str, str]:
    """Return the flag of each setting that has one."""
    from bertvision.cli.options import FLAGS

    return {setting: flag.replace("_", "-") for flag, (setting, _, _) in FLAGS.items()}


def _sections(experiment: Any) -> Iterator[tuple[str, str, Any]]:
    yield "Experiment", "", experiment
    for field in fields(experiment):
        if is_dataclass(value := getattr(experiment, field.name)):
            yield f"[{field.name}]", f"{field.name}.", value


def _meanings(cls: type) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass; without one, the help of the field's flag."""
    from bertvision.cli.options import FLAGS

    meanings = {setting.rpartition(".")[2]: text for setting, _, text in FLAGS.values()}
    (definition,) = ast.parse(dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            if isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
                meanings[field.target.id] = " ".join(after.value.value.split())
    return OBVIOUS | meanings


OBVIOUS = {"epochs": "Length of training.", "weight_decay": "Weight decay of AdamW."}
"""Settings that need no docstring in the code."""


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value).replace("'", '"')


if __name__ == "__main__":
    os.makedirs("docs/reference", exist_ok=True)
    write_reference(Path("docs/reference"))
