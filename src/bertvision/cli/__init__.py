"""The command line. Commands parse their arguments, call the library and print the result."""

import logging
import os
import sys
from typing import Annotated

import typer

import bertvision
from bertvision.cli import doctor, inference, listings, runs, search, stores, studies, training
from bertvision.cli.logs import log_to_stderr
from bertvision.cpu_optimizations import read_switch, set_environment
from bertvision.errors import BertVisionError
from bertvision.progress import is_main_rank

EXTRAS: dict[str, tuple[str, ...]] = {
    "lab": ("altair", "jinja2", "optuna", "tomli_w", "vl_convert"),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "ray": ("ray",),
    "serve": ("fastapi", "fastapi_offline", "httptools", "prometheus_client", "pydantic", "starlette", "uvicorn"),
}
"""The packages of each optional extra, as they are imported."""

FORMER_FLAGS = {
    "--backbone": "--encoder",
    "--through": "--auxiliary-head",
    "--activations": "--states",
    "--states-type": "--store-dtype",
    "--texts": "--encoding",
    "--pooled": "--pooler-output",
    "--with-backbone": "--with-encoder",
    "--without-backbone": "--without-encoder",
    "--budget": "--max-batch-tokens",
    "--readers": "--batch-threads",
    "--room": "--max-queue-tokens",
    "--first": "--first-token-only",
}
FORMER_COMMANDS = {"backbones": "encoders"}

logger: logging.Logger = logging.getLogger(__name__)
app: typer.Typer = typer.Typer(
    name="bertvision",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
training.register(app)
inference.register(app)
stores.register(app)
search.register(app)
studies.register(app)
listings.register(app)
runs.register(app)
doctor.register(app)


def print_version(requested: bool) -> None:
    """Print the version and exit, if that was requested."""
    if requested:
        print(f"bertvision {bertvision.__version__}")
        raise typer.Exit


@app.callback()
def bertvision_command(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Fine-tune an encoder for a fraction of an epoch, read all its layers, train a tiny head on them."""


def main() -> None:
    """Run a command. Errors that the user can fix are printed as one sentence, without a traceback."""
    set_environment()  # no command has imported torch yet
    read_switch()
    log_to_stderr()
    if not is_main_rank():
        sys.stdout = open(os.devnull, "w")
    sys.argv[1:] = current_names(sys.argv[1:])
    try:
        app()
    except BertVisionError as error:
        _exit_with(str(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
        if extra is None:
            raise
        _exit_with(f"This command needs the package {package}: pip install 'bertvision[{extra}]'.")
    except SystemExit as stop:
        if stop.code == 130:  # how typer ends on Ctrl-C
            print("bertvision: interrupted. Run the same command again to resume.", file=sys.stderr)
        raise
    except BrokenPipeError:  # `bertvision ... | head`
        sys.stderr.close()
        sys.exit(1)


def current_names(arguments: list[str]) -> list[str]:
    """Replace former names of flags and commands by the present ones, and log a message about each."""
    replaced = []
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for position, argument in enumerate(options):
        flag, equals, value = argument.partition("=")
        name = FORMER_FLAGS.get(flag) or (FORMER_COMMANDS.get(flag) if position == 0 else None)
        if name:
            logger.info(f"{flag} is now called {name}.")
        replaced.append(f"{name or flag}{equals}{value}")
    return replaced + arguments[len(options) :]


def _exit_with(message: str) -> None:
    print(f"bertvision: {message}", file=sys.stderr)
    sys.exit(1)
