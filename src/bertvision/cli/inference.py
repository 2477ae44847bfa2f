"""Commands that answer, or make others able to: predict, share, export, serve."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision.cli import output
from bertvision.errors import BertVisionError

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Encoder = Annotated[
    str, typer.Option(help="Backbone of a run that was shared without it: a directory or a name.", show_default=False)
]
KEY = "BERTVISION_API_KEY"


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (predict, share, export, serve):
        app.command()(command)


def predict(
    run: Annotated[Path, typer.Argument(help="Directory of a finished, shared or exported run.")],
    texts: Annotated[list[str] | None, typer.Argument(help="A text; two for a pair; question and context.")] = None,
    question: Annotated[str, typer.Option(help="Question, with --context.")] = "",
    context: Annotated[str, typer.Option(help="Text to answer from.")] = "",
    file: Annotated[Path | None, typer.Option(help="JSONL with one item a line; - reads stdin.")] = None,
    nbest: Annotated[int | None, typer.Option(help="Candidate answers to list, with --json.", min=1)] = None,
    bert: Annotated[bool, typer.Option("--bert", help="Also the answer of BERT's own head.")] = False,
    encoder: Encoder = "",
    as_json: Json = False,
) -> None:
    """Answer new text with a finished run.

    Example: bertvision predict RUN "a warm, funny film"
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
    answers = trained_model.load(run, encoder).predict(items, nbest=nbest, bert=bert)
    if as_json:
        output.as_json(answers)
        return
    for answer in answers:
        print(output.answer(answer) + (f"  BERT: {output.answer(answer['bert'])}" if bert else ""))


def share(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.")],
    directory: Annotated[Path, typer.Argument(help="Where to write it.")],
    with_encoder: Annotated[
        bool, typer.Option("--with-encoder/--without-encoder", help="Its weights, or only its name and hash.")
    ] = True,
) -> None:
    """Write a run as one directory to give away: weights, tokenizer, settings and a model card.

    Example: bertvision share RUN my-model
    """
    from bertvision import sharing
    from bertvision.runs import open_run

    print(f"Shared run: {sharing.save_pretrained(open_run(run), directory, encoder=with_encoder)}")


def export(
    runs: Annotated[list[Path], typer.Argument(help="Directories of finished runs on one backbone.")],
    onnx: Annotated[bool, typer.Option("--onnx", help="As an ONNX graph (the only format so far).")] = True,
    to: Annotated[Path | None, typer.Option(help="Where to write it; else RUN/onnx.", show_default=False)] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Weights as int8: a quarter of the size.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="Compare on this labelled file instead of dev.", show_default=False)
    ] = None,
    rows: Annotated[int, typer.Option(help="Compare on this many rows (0: all).", min=0)] = 0,
    agreement: Annotated[
        float | None, typer.Option(help="Percent of answers that must be the same [99.9; int8: 97].", min=0, max=100)
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="How much a score may differ [0.0001; int8: not compared].", min=0)
    ] = None,
    as_json: Json = False,
) -> None:
    """Write backbone and heads as one graph for onnxruntime; fails if its answers on dev are not the same.

    Example: bertvision export RUN --onnx --to my-model-onnx
    """
    from bertvision import trained_model
    from bertvision.lab import pipeline
    from bertvision.serving.onnx_export import ParityLimits, export_onnx

    models = trained_model.load_all(runs)
    examples = []
    for each in models:
        if data is not None:
            found = each.task.read(data)
        else:
            found = pipeline.dev_examples(pipeline.experiment_of(each.run))
        examples.append(found[:rows] if rows else found)
    place = to or models[0].run.directory / ("onnx-int8" if int8 else "onnx")
    limits = ParityLimits.default(int8=int8).override(agreement, tolerance)
    reports = export_onnx(models, place, examples, int8=int8, limits=limits)
    if as_json:
        output.as_json({"directory": str(place), "parity": [report.to_dict() for report in reports]})
        return
    output.table(
        [
            {
                "model": report.model,
                "rows": f"{report.rows:,}",
                "same answers, %": f"{report.agreement:.2f}",
                "largest difference of a score": f"{report.largest_difference:.1e}",
            }
            for report in reports
        ],
        numbers=["rows", "same answers, %", "largest difference of a score"],
    )
    print(f"Exported: {place}")


def serve(
    runs: Annotated[
        list[Path], typer.Argument(help="Directories of finished, shared or exported runs, or one that holds such.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: any that is free.", min=0, max=65535)] = 8000,
    encoder: Encoder = "",
    key_file: Annotated[
        Path | None, typer.Option(help=f"File with the API key; else {KEY} of the environment.", show_default=False)
    ] = None,
    budget: Annotated[int, typer.Option(help="Tokens read at a time, with padding.", min=1)] = 4096,
    readers: Annotated[
        int, typer.Option(help="Batches at a time, on their share of the cores; 0: one a core.", min=0)
    ] = 0,
    room: Annotated[int, typer.Option(help="Tokens that may wait; more get 429.", min=1)] = 32_768,
    timeout: Annotated[float, typer.Option(help="Seconds in which a request must be answered.", min=0.1)] = 30.0,
    drain: Annotated[float, typer.Option(help="Seconds to stay reachable, not ready, after SIGTERM.", min=0)] = 0.0,
    max_requests: Annotated[int, typer.Option(help="Requests under way; more get 429.", min=1)] = 128,
    max_items: Annotated[int, typer.Option(help="Items in a request.", min=1, max=512)] = 128,
    max_characters: Annotated[int, typer.Option(help="Characters in a text.", min=1)] = 100_000,
    max_body: Annotated[int, typer.Option(help="Bytes in the body of a request.", min=1)] = 2 * 1024 * 1024,
    cors: Annotated[list[str] | None, typer.Option(help="Origin whose pages may ask, too; repeatable.")] = None,
) -> None:
    """Answer over HTTP, with a page to try it; runs on one backbone share its forward pass.

    Example: bertvision serve RUN OTHER_RUN --port 8000
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
    models = trained_model.load_all(trained_model.expand_directories(runs), encoder)

    def ready(url: str, note: str) -> None:
        print(f"{note}\nServing at {url}  (page: {url}, documentation: {url}docs)", flush=True)

    run_server(models, settings, host, port, ready)


def _key(file: Path | None) -> str:
    """Read the API key from a file or the environment: never from the command line, which every process can see."""
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
    """Read a JSON string, list of two or object per line."""
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
