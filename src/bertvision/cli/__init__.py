"""The command line: parses, calls, prints. No work is done here."""

import os
import sys

import typer

from bertvision.cli import inference, listings, search, stores, studies, training
from bertvision.errors import BertVisionError
from bertvision.progress import is_main_rank, log_to_stderr

app = typer.Typer(
    name="bertvision",
    no_args_is_help=True,
    add_completion=False,
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
    """Run a command; print a user's mistake as one sentence, without a traceback."""
    log_to_stderr()
    if not is_main_rank():
        sys.stdout = open(os.devnull, "w")
    try:
        app()
    except BertVisionError as error:
        print(f"bertvision: {error}", file=sys.stderr)
        sys.exit(1)
    except SystemExit as stop:
        if stop.code == 130:  # how typer ends on Ctrl-C
            print("bertvision: interrupted; the same command goes on where it stopped.", file=sys.stderr)
        raise
    except BrokenPipeError:  # `bertvision ... | head`
        sys.stderr.close()
        sys.exit(1)
