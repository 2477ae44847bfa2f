"""Commands that use finished runs: predict, share, export, serve."""

import logging
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertvision.cli import output
from bertvision.cli.run_references import RunReference, RunReferences, resolve_model, resolve_run
from bertvision.cli.training import Json, Root, SeparateEncoder
from bertvision.errors import BertVisionError

if TYPE_CHECKING:
    from bertvision.prediction_files import PredictedRow
    from bertvision.tasks import Example
    from bertvision.trained_model import TrainedModel

logger: logging.Logger = logging.getLogger(__name__)

KEY = "BERTVISION_API_KEY"


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (predict, share, export, serve):
        app.command()(command)


def predict(
    run: RunReference,
    texts: Annotated[
        list[str] | None, typer.Argument(help="A text; two texts for a pair, or a question and its context.")
    ] = None,
    question: Annotated[str, typer.Option(help="Question, with --context.")] = "",
    context: Annotated[str, typer.Option(help="Text that contains the answer, with --question.")] = "",
    file: Annotated[
        str,
        typer.Option(
            help="Predict every row of a CSV, TSV, JSONL, Parquet, text or CoNLL file; - reads JSON lines, CSV "
            "with a header, or plain text from standard input.",
            show_default=False,
        ),
    ] = "",
    to: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="With --file: write the rows with their predictions to this CSV, TSV, JSONL, Parquet or CoNLL file; - "
            "writes to standard output. Without it, predictions are printed.",
            show_default=False,
        ),
    ] = "",
    text: Annotated[str, typer.Option(help="Column of the text (default: as in training).", show_default=False)] = "",
    text_pair: Annotated[str, typer.Option(help="Column of the second text of a pair.", show_default=False)] = "",
    nbest: Annotated[
        int | None, typer.Option(help="Also list the most probable classes or answers, this many.", min=1)
    ] = None,
    bert: Annotated[bool, typer.Option("--bert", help="Also give the prediction of BERT's own head.")] = False,
    encoder: SeparateEncoder = "",
    root: Root = Path("runs"),
    as_json: Json = False,
) -> None:
    """Predict new text with a finished, shared or exported run.

    Files are processed in chunks, so they may be larger than memory.

    A row that cannot be predicted has the reason in the column `error`.

    Example: bertvision predict rotten-tomatoes "a warm, funny film"

    Example: bertvision predict rotten-tomatoes --file reviews.csv --output predictions.csv
    """
    from bertvision import prediction_files, trained_model

    if not file and (to or text or text_pair):
        raise BertVisionError("--output, --text and --text-pair need a file: --file FILE, or --file - to read stdin.")
    if file and (texts or question or context):
        raise BertVisionError("Give texts or --file, not both.")
    if not (file or texts or question or context):
        raise BertVisionError("Nothing to predict: give a text, --question and --context, or --file.")
    model = trained_model.load(resolve_model(run, root), encoder)
    if not file:
        items: Any = {"question": question, "context": context}
        if texts:
            items = texts[0] if len(texts) == 1 else tuple(texts)
        _print_answers(model.predict([items], nbest=nbest, bert=bert), as_json)
        return
    with prediction_files.open_input(file, model.task, text=text, text_pair=text_pair) as rows:
        if not to:
            predictions = prediction_files.predict_rows(model, rows.rows, nbest=nbest, bert=bert)
            _print_file(predictions, rows.name, model.max_tokens, as_json)
            return
        summary = prediction_files.predict_file(model, rows, to, nbest=nbest, bert=bert)
    if to == prediction_files.STANDARD_STREAM:
        return
    if as_json:
        output.as_json({"output": to, "rows": summary.rows, "failed": summary.failed})
    else:
        print(f"Predicted {summary.rows - summary.failed:,} of {summary.rows:,} rows: {to}")


def _print_answers(answers: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        output.as_json(answers)
        return
    for answer in answers:
        print(output.answer(answer))


def _print_file(predictions: "Iterator[PredictedRow]", name: str, max_tokens: int, as_json: bool) -> None:
    """Print the predictions of a file as they are made. Messages about failures go to stderr."""
    from bertvision.prediction_files import FilePredictionSummary, log_summary

    rows = failed = truncated = 0
    first_error = ""
    with output.json_list() if as_json else nullcontext(print) as write:
        for predicted in predictions:
            rows += 1
            truncated += "truncated" in (predicted.answer or {})
            if predicted.answer is None:
                failed += 1
                first_error = first_error or f"line {predicted.row.line}: {predicted.error}"
            if as_json:
                write(predicted.answer or {"error": predicted.error})
            else:
                write(output.answer(predicted.answer) if predicted.answer else f"error: {predicted.error}")
    if failed == rows:
        reason = f"No row could be predicted. {first_error}" if rows else "there are no rows"
        raise BertVisionError(f"{name}: {reason}.")
    summary = FilePredictionSummary(rows=rows, failed=failed, first_error=first_error, truncated=truncated)
    log_summary(name, summary, max_tokens)


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
    to: Annotated[Path | None, typer.Option(help="Directory to write (default: RUN/onnx).", show_default=False)] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Multiply matrices in int8: about twice as fast as float32, and smaller.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="Compare on this labelled file instead of dev.", show_default=False)
    ] = None,
    rows: Annotated[int, typer.Option(help="Compare on this many rows (0: all).", min=0)] = 0,
    agreement: Annotated[
        float | None,
        typer.Option(help="Percentage of predictions that must be equal (default: 99.9; int8: 99).", min=0, max=100),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest difference of a score (default: 0.0001; int8: any).", min=0)
    ] = None,
    root: Root = Path("runs"),
    as_json: Json = False,
) -> None:
    """Write encoder and heads as one graph for onnxruntime; fails if its predictions on dev differ.

    Scores of a regression are equal if they differ by at most 0.1 % (int8: 1 %) of the range of scores and labels.

    Example: bertvision export rotten-tomatoes --onnx --to my-model-onnx
    """
    from bertvision import trained_model
    from bertvision.serving.onnx_export import ParityLimits, export_onnx

    models = trained_model.load_all([resolve_model(run, root) for run in runs])
    examples = [_examples_to_compare(model, data)[: rows or None] for model in models]
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


def _examples_to_compare(model: "TrainedModel", data: Path | None) -> "list[Example]":
    """Return the rows on which an export is compared with the original."""
    from bertvision import pipeline
    from bertvision.serving.examples import comparison_texts
    from bertvision.tasks import Example

    if data is not None:
        return model.task.read(data)
    try:
        return pipeline.dev_examples(pipeline.experiment_of(model.run))
    except BertVisionError as error:
        if (model.run.directory / "predictions.npz").is_file():
            raise
        # A shared run contains neither its data nor their paths.
        rows = comparison_texts(len(model.task.text_names))
        logger.warning(
            f"The dev rows of {model.run.directory} are not available: {error} The export is compared on {len(rows)} "
            "built-in texts instead. Give a labelled file with --data to compare it on your own rows."
        )
        return [Example(id=str(number), texts=texts, label=None) for number, texts in enumerate(rows)]


def serve(
    runs: RunReferences,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: any free port.", min=0, max=65535)] = 8000,
    encoder: SeparateEncoder = "",
    key_file: Annotated[
        Path | None,
        typer.Option(help=f"File with the API key (default: the variable {KEY}).", show_default=False),
    ] = None,
    max_batch_tokens: Annotated[int, typer.Option(help="Tokens in a batch, padding included.", min=1)] = 4096,
    batch_threads: Annotated[
        int, typer.Option(help="Batches processed at once, which share the cores; 0: one per core.", min=0)
    ] = 0,
    max_queue_tokens: Annotated[
        int, typer.Option(help="Tokens in the queue; further requests get 429.", min=1)
    ] = 32_768,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request fails with 504.", min=0.1)] = 30.0,
    drain: Annotated[
        float, typer.Option(help="Seconds to answer requests after SIGTERM, when /readyz fails already.", min=0)
    ] = 0.0,
    max_requests: Annotated[int, typer.Option(help="Requests at once; further requests get 429.", min=1)] = 128,
    max_connections: Annotated[
        int, typer.Option(help="Open connections; for another one, the one idle for longest is closed.", min=8)
    ] = 1024,
    header_timeout: Annotated[float, typer.Option(help="Seconds for the headers of a request.", min=0.1)] = 10.0,
    max_items: Annotated[int, typer.Option(help="Items in a request.", min=1, max=512)] = 128,
    max_characters: Annotated[int, typer.Option(help="Characters in a text.", min=1)] = 100_000,
    max_body: Annotated[int, typer.Option(help="Bytes in the body of a request.", min=1)] = 2 * 1024 * 1024,
    cors: Annotated[list[str] | None, typer.Option(help="Origin whose pages may send requests; repeatable.")] = None,
    examples: Annotated[
        str, typer.Option(help="File whose first rows the page shows as examples, to all visitors.", show_default=False)
    ] = "",
    root: Root = Path("runs"),
) -> None:
    """Serve runs over HTTP, with a page to try them; runs on the same encoder share its forward pass.

    RUN may also be a directory of shared or exported runs.

    Example: bertvision serve stsb rotten-tomatoes --port 8000
    """
    from bertvision import trained_model
    from bertvision.serving import ServerSettings
    from bertvision.serving.server import serve as run_server

    if examples and not Path(examples).is_file():
        raise BertVisionError(
            f"--examples takes a file with rows such as those of training; there is none at {examples}."
        )
    settings = ServerSettings(
        max_batch_tokens=max_batch_tokens,
        num_batch_threads=batch_threads,
        max_queue_tokens=max_queue_tokens,
        max_concurrent_requests=max_requests,
        max_connections=max_connections,
        header_timeout=header_timeout,
        max_items=max_items,
        max_text_characters=max_characters,
        max_body_bytes=max_body,
        request_timeout=timeout,
        drain_seconds=drain,
        api_key=_key(key_file),
        cors_origins=tuple(cors or ()),
        example_file=examples,
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
