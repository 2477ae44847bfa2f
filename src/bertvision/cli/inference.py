"""Commands that use finished runs: predict, share, export, serve."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision.cli import output
from bertvision.cli.run_references import RunReference, RunReferences, resolve_model, resolve_run
from bertvision.cli.training import Json, Root
from bertvision.errors import BertVisionError

Encoder = Annotated[
    str, typer.Option(help="Encoder of a run that was shared without it: a directory or a name.", show_default=False)
]
KEY = "BERTVISION_API_KEY"


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (predict, share, export, serve):
        app.command()(command)


def predict(
    run: RunReference,
    texts: Annotated[
        list[str] | None, typer.Argument(help="A text, or two for a pair, or a question and a context.")
    ] = None,
    question: Annotated[str, typer.Option(help="Question, with --context.")] = "",
    context: Annotated[str, typer.Option(help="Text that contains the answer.")] = "",
    file: Annotated[Path | None, typer.Option(help="JSONL file with one item per line; - reads stdin.")] = None,
    nbest: Annotated[int | None, typer.Option(help="Candidate answers to list, with --json.", min=1)] = None,
    bert: Annotated[bool, typer.Option("--bert", help="Also print the prediction of BERT's own head.")] = False,
    encoder: Encoder = "",
    root: Root = Path("runs"),
    as_json: Json = False,
) -> None:
    """Predict new text with a finished, shared or exported run.

    Example: bertvision predict rotten-tomatoes "a warm, funny film"
    """
    from bertvision import trained_model

    items: list[Any]
    if file is not None:
        items = _read_items(file)
    elif question or context:
        items = [{"question": question, "context": context}]
    elif texts:
        items = [texts[0] if len(texts) == 1 else tuple(texts)]
    else:
        raise BertVisionError("Nothing to predict: give a text, --question and --context, or --file.")
    answers = trained_model.load(resolve_model(run, root), encoder).predict(items, nbest=nbest, bert=bert)
    if as_json:
        output.as_json(answers)
        return
    for answer in answers:
        print(output.answer(answer) + (f"  BERT: {output.answer(answer['bert'])}" if bert else ""))


def share(
    run: RunReference,
    directory: Annotated[Path, typer.Argument(help="Directory to write.")],
    with_encoder: Annotated[
        bool,
        typer.Option(
            "--with-encoder/--without-encoder", help="Include the weights of the encoder, or only its name and hash."
        ),
    ] = True,
    root: Root = Path("runs"),
) -> None:
    """Write a run as one directory to share: weights, tokenizer, settings and a model card.

    Example: bertvision share rotten-tomatoes my-model
    """
    from bertvision import sharing

    print(f"Shared run: {sharing.save_pretrained(resolve_run(run, root), directory, encoder=with_encoder)}")


def export(
    runs: RunReferences,
    onnx: Annotated[bool, typer.Option("--onnx", help="Export an ONNX graph (the only format).")] = True,
    to: Annotated[Path | None, typer.Option(help="Directory to write [RUN/onnx].", show_default=False)] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Store weights as int8: a quarter of the size.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="Compare on this labelled file instead of dev.", show_default=False)
    ] = None,
    rows: Annotated[int, typer.Option(help="Compare on this many rows (0: all).", min=0)] = 0,
    agreement: Annotated[
        float | None,
        typer.Option(help="Percentage of predictions that must be equal [99.9; int8: 97].", min=0, max=100),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest difference of a score [0.0001; int8: not compared].", min=0)
    ] = None,
    root: Root = Path("runs"),
    as_json: Json = False,
) -> None:
    """Write encoder and heads as one graph for onnxruntime; fails if its predictions on dev differ.

    Example: bertvision export rotten-tomatoes --onnx --to my-model-onnx
    """
    from bertvision import pipeline, trained_model
    from bertvision.serving.onnx_export import ParityLimits, export_onnx

    models = trained_model.load_all([resolve_model(run, root) for run in runs])
    examples = []
    for model in models:
        if data is not None:
            labelled = model.task.read(data)
        else:
            labelled = pipeline.dev_examples(pipeline.experiment_of(model.run))
        examples.append(labelled[:rows] if rows else labelled)
    directory = to or models[0].run.directory / ("onnx-int8" if int8 else "onnx")
    limits = ParityLimits.default(int8=int8).override(agreement, tolerance)
    reports = export_onnx(models, directory, examples, int8=int8, limits=limits)
    if as_json:
        output.as_json({"directory": str(directory), "parity": [report.to_dict() for report in reports]})
        return
    table = [
        {
            "model": report.model,
            "rows": f"{report.rows:,}",
            "equal predictions, %": f"{report.agreement:.2f}",
            "largest difference": f"{report.largest_difference:.1e}",
        }
        for report in reports
    ]
    output.table(table, numbers=["rows", "equal predictions, %", "largest difference"])
    print(f"Exported: {directory}")


def serve(
    runs: RunReferences,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: any free port.", min=0, max=65535)] = 8000,
    encoder: Encoder = "",
    key_file: Annotated[
        Path | None, typer.Option(help=f"File with the API key [environment variable {KEY}].", show_default=False)
    ] = None,
    budget: Annotated[int, typer.Option(help="Tokens in a batch, padding included.", min=1)] = 4096,
    readers: Annotated[
        int, typer.Option(help="Batches processed at once, which share the cores; 0: one per core.", min=0)
    ] = 0,
    room: Annotated[int, typer.Option(help="Tokens in the queue; further requests get 429.", min=1)] = 32_768,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request fails with 504.", min=0.1)] = 30.0,
    drain: Annotated[
        float, typer.Option(help="Seconds to answer requests after SIGTERM, when /readyz fails already.", min=0)
    ] = 0.0,
    max_requests: Annotated[int, typer.Option(help="Requests at once; further requests get 429.", min=1)] = 128,
    max_items: Annotated[int, typer.Option(help="Items in a request.", min=1, max=512)] = 128,
    max_characters: Annotated[int, typer.Option(help="Characters in a text.", min=1)] = 100_000,
    max_body: Annotated[int, typer.Option(help="Bytes in the body of a request.", min=1)] = 2 * 1024 * 1024,
    cors: Annotated[list[str] | None, typer.Option(help="Origin whose pages may send requests; repeatable.")] = None,
    root: Root = Path("runs"),
) -> None:
    """Serve runs over HTTP, with a page to try them; runs on the same encoder share its forward pass.

    RUN may also be a directory of shared or exported runs.

    Example: bertvision serve stsb rotten-tomatoes --port 8000
    """
    from bertvision import trained_model
    from bertvision.serving import ServerSettings
    from bertvision.serving.server import serve as run_server

    settings = ServerSettings(
        max_batch_tokens=budget,
        num_batch_threads=readers,
        max_queue_tokens=room,
        max_concurrent_requests=max_requests,
        max_items=max_items,
        max_text_characters=max_characters,
        max_body_bytes=max_body,
        request_timeout=timeout,
        drain_seconds=drain,
        api_key=_key(key_file),
        cors_origins=tuple(cors or ()),
    )
    models = trained_model.load_all(
        trained_model.expand_directories([resolve_model(run, root) for run in runs]), encoder
    )

    def ready(url: str, note: str) -> None:
        print(f"{note}\nServing at {url}  (page: {url}, documentation: {url}docs)", flush=True)

    run_server(models, settings, host, port, ready)


def _key(file: Path | None) -> str:
    """Read the API key from a file or the environment. A command line would show it to every process."""
    if file is None:
        return os.environ.get(KEY, "").strip()
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BertVisionError(f"Cannot read the API key from {file}: {error}.") from error
    if not key:
        raise BertVisionError(f"{file} is empty, so it holds no API key.")
    return key


def _read_items(file: Path) -> list[Any]:
    """Read one item per line: a JSON string, a list of two strings, or an object."""
    items = []
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BertVisionError(f"Cannot read {file}: {error}.") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except json.JSONDecodeError as error:
            raise BertVisionError(f"{file}, line {number}, is not valid JSON: {error}.") from error
        if not isinstance(item, str | list | dict):
            raise BertVisionError(f"{file}, line {number}: expected a text, a pair or an object, got {item!r}.")
        items.append(tuple(item) if isinstance(item, list) else item)
    return items
