"""`predict --file` and `evaluate --data`: files in, files out."""

import csv
import io
import json
import random
import sys
from dataclasses import replace
from itertools import count, islice

import pyarrow
import pyarrow.parquet
import pytest
from sklearn.metrics import classification_report, confusion_matrix

import bertvision
from bertvision import devices, prediction_files, trained_model
from bertvision.errors import BertVisionError
from bertvision.evaluation_reports import evaluate_file
from bertvision.prediction_files import InputFile, TextColumns, open_input, predict_file, predict_rows, text_rows
from conftest import WORDS, squad_json

CLASSES = {"people": ["ann", "bob", "carl"], "places": ["paris", "rome"], "words": ["good", "bad"]}


def rows_of(count: int, seed: int) -> list[tuple[str, str]]:
    """Return texts of different lengths with the name of their class."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        label = list(CLASSES)[number % 3]
        words = [draw.choice(CLASSES[label]), *draw.choices(WORDS[10:20], k=draw.randint(1, 12))]
        rows.append((" ".join(words), label))
    return rows


def write_csv(path, rows, header=("text", "label")):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Training and dev files with three classes."""
    directory = tmp_path_factory.mktemp("topics")
    return write_csv(directory / "train.csv", rows_of(90, 0)), write_csv(directory / "dev.csv", rows_of(60, 1))


def train(files, tiny, root, precision):
    return bertvision.run(
        task="topics", train_file=str(files[0]), dev_file=str(files[1]), encoder=str(tiny), fractions=[1.0],
        heads=["adapter:members=2,size=8,token_pooling=max"], precision=precision, controls=False,
        train={"epochs": 3, "learning_rate": 1e-2}, finetune={"learning_rate": 1e-3}, root=root,
    )  # fmt: skip


@pytest.fixture(scope="module")
def result(files, tiny, tmp_path_factory):
    """The runs of a small experiment in float32."""
    return train(files, tiny, tmp_path_factory.mktemp("runs"), "float32")


@pytest.fixture(scope="module")
def model(result):
    return trained_model.load(result.best)


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_predict_adds_columns_to_the_file_that_run_accepts(cli, result, model, files, tmp_path):
    out = tmp_path / "out.csv"
    code, printed, err = cli("predict", result.best.directory, "--file", files[1], "--output", out)
    assert code == 0 and "Predicted 60 of 60 rows" in printed and "'predicted_label'" in err
    rows = read_csv(out)
    assert list(rows[0]) == ["text", "label", "predicted_label", "probability", "error"]
    assert [(row["text"], row["label"]) for row in rows] == rows_of(60, 1)
    answers = model.predict([row["text"] for row in rows])
    assert [row["predicted_label"] for row in rows] == [answer["label"] for answer in answers]
    assert [float(row["probability"]) for row in rows] == [answer["probability"] for answer in answers]
    assert not any(row["error"] for row in rows) and list(tmp_path.iterdir()) == [out]


def test_every_format_is_read_and_written(model, tmp_path):
    texts = ["ann made this", 'bob, "the king"', "rome"]
    write_csv(tmp_path / "in.csv", [[text, 7] for text in texts], header=("text", "number"))
    (tmp_path / "in.tsv").write_text("text\tnumber\n" + "".join(f"{text}\t7\n" for text in texts))
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps({"text": text, "number": 7}) for text in texts))
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n")
    pyarrow.parquet.write_table(pyarrow.table({"text": texts, "number": [7, 7, 7]}), tmp_path / "in.parquet")
    expected = [answer["label"] for answer in model.predict(texts)]
    for ending in ("csv", "tsv", "jsonl", "txt", "parquet"):
        for target in ("csv", "tsv", "jsonl", "parquet"):
            with open_input(tmp_path / f"in.{ending}", model.task) as source:
                summary = predict_file(model, source, tmp_path / f"out.{target}")
            assert (summary.rows, summary.failed) == (3, 0)
            with open_input(tmp_path / f"out.{target}", model.task) as written:
                rows = [row.values for row in written.rows]
            assert [row["label"] for row in rows] == expected and [row["text"] for row in rows] == texts
            assert all(0 < float(row["probability"]) < 1 for row in rows)
            assert ending == "txt" or [int(row["number"]) for row in rows] == [7, 7, 7]


def test_a_bad_row_says_why(cli, result, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "ann"}\nbroken\n{"text": ""}\n{"text": 5}\n{"other": 1}\n"rome"\n[]\n')
    words = ["predict", result.best.directory, "--file", tmp_path / "in.jsonl"]
    code, out, err = cli(*words)
    lines, bad = out.splitlines(), [False, True, True, True, True, False, True]
    assert code == 0 and len(lines) == 7
    assert "5 of 7 rows could not be predicted. The first: line 2: not valid JSON" in err
    assert lines[1].startswith("error: not valid JSON") and "empty text" in lines[2] and "holds 5" in lines[3]
    code, out, _ = cli(*words, "--json")
    assert code == 0 and ["error" in answer for answer in json.loads(out)] == bad
    code, out, _ = cli(*words, "--output", tmp_path / "out.csv", "--json")
    assert code == 0 and json.loads(out)["failed"] == 5
    rows = read_csv(tmp_path / "out.csv")
    assert [bool(row["error"]) for row in rows] == bad
    assert [bool(row["label"]) for row in rows] == [not row["error"] for row in rows]
    (tmp_path / "short.csv").write_text("text,number\nann,1\nbob\nrome,2,3\n")
    assert cli("predict", result.best.directory, "--file", tmp_path / "short.csv", "-o", tmp_path / "b.csv")[0] == 0
    assert [row["error"] for row in read_csv(tmp_path / "b.csv")] == [
        "", "1 columns where 2 were expected", "3 columns where 2 were expected",
    ]  # fmt: skip


def test_columns_are_chosen_or_guessed(cli, result, model, tmp_path):
    words = ["predict", result.best.directory, "--file"]
    path = write_csv(tmp_path / "a.csv", [["1", "ann", "x"]], header=("id", "body", "label"))
    assert cli(*words, path)[0] == 0  # the only column that is neither an id nor the label
    path = write_csv(tmp_path / "b.csv", [["rome", "ann"]], header=("title", "body"))
    code, out, _ = cli(*words, path, "--text", "body")
    assert code == 0 and out.startswith(model.predict("ann")["label"])
    path = write_csv(tmp_path / "c.csv", [["rome", "ann"]], header=("Text", "body"))
    assert cli(*words, path)[1].startswith(model.predict("rome")["label"])


def test_standard_input_and_output(cli, result, model, monkeypatch):
    for text in ('"ann"\n{"text": "rome"}\n', "ann\nrome\n"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        code, out, _ = cli("predict", result.best.directory, "--file", "-", "--output", "-")
        assert code == 0 and [json.loads(line)["label"] for line in out.splitlines()] == [
            answer["label"] for answer in model.predict(["ann", "rome"])
        ]
    for text, options in (('id,text\n1,ann\n2,"rome"\n', []), ("title;body\nx;ann\ny;rome\n", ["--text", "body"])):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        code, out, _ = cli("predict", result.best.directory, "--file", "-", "--output", "-", *options)
        rows = list(csv.DictReader(out.splitlines()))
        assert code == 0 and [row["label"] for row in rows] == [row["label"] for row in model.predict(["ann", "rome"])]
    monkeypatch.setattr(sys, "stdin", io.StringIO("ann, the text of rome\n"))
    assert cli("predict", result.best.directory, "--file", "-")[1].count("\n") == 1  # plain text
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    code, _, err = cli("predict", result.best.directory, "--file", "-")
    assert code == 1 and "Standard input is empty" in err


def test_files_are_not_read_whole(model):
    """An endless input: the first predictions are there after one chunk."""
    lines_read = []

    def endless():
        for number in count(1):
            lines_read.append(number)
            yield number, f"ann made {number % 9} films\n"

    rows = text_rows(endless(), TextColumns("endless", model.task))
    predictions = predict_rows(model, rows, chunk_rows=8)
    assert not lines_read
    for chunk in (1, 2, 3):
        assert all(predicted.answer for predicted in islice(predictions, 8)) and len(lines_read) == 8 * chunk


def test_rows_are_written_before_all_are_read(model, monkeypatch):
    """Written lines never lag behind by more than the rows of two chunks, whatever the size of the file."""
    monkeypatch.setattr(prediction_files, "CHUNK_ROWS", 8)
    monkeypatch.setattr(predict_rows, "__kwdefaults__", predict_rows.__kwdefaults__ | {"chunk_rows": 8})
    lines_read, lag, output = [], [], io.StringIO()

    def lines():
        for number in range(1, 101):
            lines_read.append(number)
            lag.append(number - output.getvalue().count("\n"))
            yield number, "ann made films\n"

    monkeypatch.setattr(sys, "stdout", output)
    source = InputFile(name="x", format="csv", rows=text_rows(lines(), TextColumns("x", model.task)))
    summary = predict_file(model, source, "-")
    assert summary.rows == len(lines_read) == 100 and output.getvalue().count("\n") == 101 and max(lag) <= 3 * 8


def test_a_failed_output_leaves_the_old_file(model, tmp_path):
    (tmp_path / "out.csv").write_text("old")
    (tmp_path / "in.csv").write_text('text\nann\n"unfinished')
    with (
        pytest.raises(BertVisionError, match="line 3: not valid"),
        open_input(tmp_path / "in.csv", model.task) as rows,
    ):
        predict_file(model, rows, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "old" and len(list(tmp_path.iterdir())) == 2


def test_nbest_of_classes(cli, result, model, files, tmp_path):
    answer = model.predict("ann made this", nbest=2, bert=True)
    ranked = sorted(answer["probabilities"].items(), key=lambda pair: -pair[1])
    assert [(entry["label"], entry["probability"]) for entry in answer["nbest"]] == ranked[:2]
    assert answer["nbest"][0]["label"] == answer["label"] and len(answer["bert"]["nbest"]) == 2
    assert "nbest" not in model.predict("ann made this")
    words = ["predict", result.best.directory, "ann made this", "--nbest", 3]
    code, out, _ = cli(*words)
    assert code == 0 and sorted(part.split()[0] for part in out.split(", ")) == sorted(CLASSES)
    assert len(json.loads(cli(*words, "--json")[1])[0]["nbest"]) == 3
    cli("predict", result.best.directory, "--file", files[1], "--output", tmp_path / "out.csv", "--nbest", 9, "--bert")
    row = read_csv(tmp_path / "out.csv")[0]
    assert {row["predicted_label"], row["label_2"], row["label_3"]} == set(CLASSES) and "label_4" not in row
    assert float(row["probability"]) >= float(row["probability_2"]) >= float(row["probability_3"])
    assert {row["bert_label"], row["bert_label_2"], row["bert_label_3"]} == set(CLASSES)


def test_questions(cli, tiny, tmp_path):
    (tmp_path / "train.json").write_text(json.dumps(squad_json(4, 3, 0)))
    run = bertvision.run(
        train_file=str(tmp_path / "train.json"), encoder=str(tiny), heads=["mean"], fractions=[1.0], max_tokens=32,
        controls=False, train={"epochs": 1}, root=tmp_path / "runs",
    ).best  # fmt: skip
    path = write_csv(
        tmp_path / "in.csv", [["1", "who made it", "ann made it"], ["2", "who", ""]], ("id", "question", "context")
    )
    code, _, err = cli("predict", run.directory, "--file", path, "--output", tmp_path / "out.csv", "--nbest", 2)
    assert code == 0, err
    first, second = read_csv(tmp_path / "out.csv")
    names = ["candidate_1", "candidate_probability_1", "candidate_2", "candidate_probability_2"]
    assert list(first) == ["id", "question", "context", "answer", "score", "no_answer_probability", *names, "error"]
    assert 0 <= float(first["no_answer_probability"]) <= 1 and "empty text" in second["error"]
    code, _, err = cli("predict", run.directory, "--file", tmp_path / "train.json", "--output", tmp_path / "o.jsonl")
    assert code == 0 and len((tmp_path / "o.jsonl").read_text().splitlines()) == 24, err
    code, out, _ = cli("evaluate", run.directory, "--data", tmp_path / "train.json", "--json")
    assert code == 0 and {"f1", "exact", "rows"} <= set(json.loads(out)) and "classes" not in json.loads(out)


def test_regression(cli, tiny, tmp_path):
    draw = random.Random(0)
    scores = [[f"{'good ' * n}film {draw.choice(WORDS)}", f"{n}.5"] for n in range(5) for _ in range(8)]
    path = write_csv(tmp_path / "scores.csv", scores)
    run = bertvision.run(
        train_file=str(path), encoder=str(tiny), heads=["mean"], fractions=[1.0], controls=False, train={"epochs": 1},
        root=tmp_path / "runs",
    ).best  # fmt: skip
    assert cli("predict", run.directory, "--file", path, "--output", tmp_path / "out.csv")[0] == 0
    rows = read_csv(tmp_path / "out.csv")
    assert list(rows[0]) == ["text", "label", "value", "error"] and all(float(row["value"]) < 10 for row in rows)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_evaluate_gives_the_score_of_the_table(cli, result, files, tiny, tmp_path, precision):
    if precision != "float32":
        if devices.resolve_precision("auto") != precision:
            pytest.skip("LOUD: this machine has no native bfloat16, so the scores of such a run were not compared")
        result = train(files, tiny, tmp_path, precision)
    for run in result.runs:
        model = trained_model.load(run, precision="run")
        logits = model.logits(model.encode_examples(model.task.read(files[1]))).logits
        assert (logits == run.predictions().logits).all(), run.name
        code, out, _ = cli("evaluate", run.directory, "--data", files[1], "--json")
        evaluation = json.loads(out)
        assert code == 0 and {name: evaluation[name] for name in run.metrics.scores} == run.metrics.scores
        assert json.loads(cli("evaluate", run.directory, "--json")[1]) == evaluation


def test_evaluate_with_other_columns(cli, result, files, tmp_path):
    path = write_csv(tmp_path / "other.csv", rows_of(60, 1), header=("body", "team"))
    words = ["evaluate", result.best.directory, "--data", path]
    expected = cli("evaluate", result.best.directory, "--data", files[1])[1]
    code, out, _ = cli(*words, "--text", "body", "--label", "team")
    assert code == 0 and out == expected
    code, _, err = cli(*words)
    assert code == 1 and "It has: body, team. Choose columns with --text" in err
    assert "takes one text" in cli(*words, "--text-pair", "team")[2]


def test_names_of_classes_that_official_files_number(model, files, tmp_path, monkeypatch):
    monkeypatch.setattr(model, "task", replace(model.task, numbered=True))
    by_name = evaluate_file(model, files[1])
    numbers = [(text, sorted(CLASSES).index(label)) for text, label in rows_of(60, 1)]
    assert evaluate_file(model, write_csv(tmp_path / "numbered.csv", numbers)) == by_name
    with pytest.raises(BertVisionError, match="known labels: 0, 1, 2"):
        evaluate_file(model, write_csv(tmp_path / "wrong.csv", [("ann", "nobody")]))


def test_the_report_is_that_of_scikit_learn(cli, result, model, files):
    labels = [label for _, label in rows_of(60, 1)]
    predicted = [answer["label"] for answer in model.predict([text for text, _ in rows_of(60, 1)])]
    expected = classification_report(labels, predicted, output_dict=True, zero_division=0)
    evaluation = evaluate_file(model, files[1])
    for name in (*sorted(CLASSES), "macro avg", "weighted avg"):
        scores = evaluation.classes[name]
        assert [scores.precision, scores.recall, scores.f1] == pytest.approx(
            [100 * expected[name][key] for key in ("precision", "recall", "f1-score")]
        )
        assert scores.support == expected[name]["support"]
    assert evaluation.confusion == confusion_matrix(labels, predicted, labels=sorted(CLASSES)).tolist()
    _, out, _ = cli("evaluate", result.best.directory, "--data", files[1])
    assert "weighted avg" in out and "label \\ predicted" in out and "precision" in out


def test_a_run_in_a_precision_that_this_machine_lacks(result, messages, monkeypatch):
    from bertvision import shared_encoders

    record = replace(result.best.record, settings=result.best.record.settings | {"precision": "bfloat16"})
    monkeypatch.setattr(devices, "_native_half_precisions", list)
    monkeypatch.setitem(result.best.__dict__, "record", record)
    assert shared_encoders.scoring_precision(result.best) == "float32"
    assert any("was scored in bfloat16" in message for message in messages)
