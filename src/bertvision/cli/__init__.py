"""The command line. Commands parse their arguments, call the library and print the result."""

import os
import sys

import typer

from bertvision.cli import inference, listings, search, stores, studies, training
from bertvision.cpu_optimizations import read_switch, set_environment
from bertvision.errors import BertVisionError
from bertvision.progress import is_main_rank, log_to_stderr

EXTRAS = {
    "lab": ("altair", "jinja2", "optuna", "tomli_w", "vl_convert"),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "ray": ("ray",),
    "serve": ("fastapi", "fastapi_offline", "httptools", "prometheus_client", "pydantic", "starlette", "uvicorn"),
}
"""The packages of each optional extra, as they are imported."""

app = typer.Typer(
    name="bertvision",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Fine-tune an encoder for a fraction of an epoch, read all its layers, train a tiny head on them.",
)
training.register(app)
inference.register(app)
stores.register(app)
search.register(app)
studies.register(app)
listings.register(app)


def main() -> None:
    """Run a command. Errors that the user can fix are printed as one sentence, without a traceback."""
    set_environment()  # no command has imported torch yet
    read_switch()
    log_to_stderr()
    if not is_main_rank():
        sys.stdout = open(os.devnull, "w")
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


def _exit_with(message: str) -> None:
    print(f"bertvision: {message}", file=sys.stderr)
    sys.exit(1)
