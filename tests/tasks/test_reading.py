import json

import pyarrow
import pyarrow.parquet
import pytest

from bertvision.errors import BertVisionError
from bertvision.tasks import TASKS, DataRequest
from bertvision.tasks.reading import read_parquet, read_squad, read_table, read_tsv

from .synthetic import write_task


def load(name, root):
    return TASKS[name].load(DataRequest(data_dir=str(root)))


@pytest.fixture
def rte(tmp_path):
    write_task(TASKS["rte"], tmp_path, train=4, dev=4)
    return tmp_path


def spoil(root, line):
    """Put `line` in place of the third line of RTE's train file."""
    path = root / "RTE" / "train.tsv"
    lines = path.read_bytes().split(b"\n")
    lines[2] = line
    path.write_bytes(b"\n".join(lines))


def test_quotes_marks_and_strange_line_ends_are_text(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_bytes('\ufeffsentence\tlabel\r\n"a\u2028b\x85c\x0bd\t1\r\n""x"\t0\r\n\n'.encode())
    table = read_tsv(path)
    assert table.columns == ["sentence", "label"]
    assert table.rows == [['"a\u2028b\x85c\x0bd', "1"], ['""x"', "0"]]
    assert list(table.lines) == [2, 3]


def test_cola_has_no_header_and_keeps_quotes(tmp_path):
    task = TASKS["cola"]
    write_task(task, tmp_path)
    (tmp_path / "CoLA" / "dev.tsv").write_text('gj04\t1\t\t"Who said that?" she asked.\ngj04\t0\t*\tHim "left.\n')
    dev = load("cola", tmp_path).dev
    assert [example.texts for example in dev] == [('"Who said that?" she asked.',), ('Him "left.',)]
    assert [example.label for example in dev] == [1, 0]


def test_columns_are_found_by_name(tmp_path):
    write_task(TASKS["mnli"], tmp_path)
    path = tmp_path / "MNLI" / "dev_matched.tsv"
    path.write_text("gold_label\tx\tsentence2\tsentence1\nneutral\t-\tsecond\tfirst\n")
    example = load("mnli", tmp_path / "MNLI").dev[0]
    assert example.texts == ("first", "second") and example.label == 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"1\tonly two", "2 columns where 4"),
        (b"1\ta\tb\tc\td", "5 columns where 4"),
        (b"", "1 columns where 4"),
        (b"1\ta\tb\tmaybe", "'maybe'.*entailment, not_entailment"),
        (b"1\ta\tb\t", "label is ''"),
        (b"1\t \tb\tentailment", "'sentence2' holds ' '"),
        (b"1\ta\xff\tb\tentailment", "UTF-8"),
    ],
)
def test_a_bad_row_is_named(rte, line, why):
    spoil(rte, line)
    with pytest.raises(BertVisionError, match=rf"train\.tsv, line 3: .*{why}"):
        load("rte", rte)


@pytest.mark.parametrize("score", ["high", "nan", "inf", ""])
def test_a_bad_score_is_named(tmp_path, score):
    write_task(TASKS["stsb"], tmp_path)
    (tmp_path / "STS-B" / "dev.tsv").write_text(f"sentence1\tsentence2\tscore\na\tb\t1.5\na\tb\t{score}\n")
    with pytest.raises(BertVisionError, match=r"dev\.tsv, line 3: the score is"):
        load("stsb", tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"index\tsentence1\tsentence2\tlabel\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(rte, content):
    (rte / "RTE" / "dev.tsv").write_bytes(content)
    with pytest.raises(BertVisionError, match="holds no rows"):
        load("rte", rte)


def test_a_missing_column_lists_the_others(rte):
    (rte / "RTE" / "dev.tsv").write_text("index\tsentense1\tsentence2\tlabel\n0\ta\tb\tentailment\n")
    with pytest.raises(BertVisionError, match="no column 'sentence1'. Did you mean 'sentense1'.*index, sentense1"):
        load("rte", rte)


def test_csv_lines_count_line_breaks_inside_fields(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text('text,label\n"two\nlines, ""quoted""",a\nplain,b\n\n')
    table = read_table(path)
    assert table.rows == [['two\nlines, "quoted"', "a"], ["plain", "b"]]
    assert list(table.lines) == [2, 4]
    path.write_text('text,label\n"two\nlines",a\nplain,b,c\n')
    with pytest.raises(BertVisionError, match="line 4: 3 columns where 2"):
        read_table(path)
    path.write_text('text,label\nfine,a\n"open,b\n')
    with pytest.raises(BertVisionError, match="line 3: not valid CSV"):
        read_table(path)


def test_csv_fields_may_be_long(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(f"text,label\n{'x' * 300_000},a\n")
    assert len(read_table(path).rows[0][0]) == 300_000


def test_jsonl_names_the_broken_line(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"text": "a\\u2028", "label": true}\n{"label": 2, "extra": 1, "text": "b"}\n')
    table = read_table(path)
    assert table.columns == ["text", "label", "extra"] and table.rows[0] == ["a\u2028", True, None]
    path.write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(BertVisionError, match="line 2: not valid JSON"):
        read_table(path)
    path.write_text("[1]\n")
    with pytest.raises(BertVisionError, match="line 1: expected a JSON object"):
        read_table(path)


def test_parquet(tmp_path):
    path = tmp_path / "own.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": [0, 1]}), path)
    assert read_parquet(path).rows == [("a", 0), ("b", 1)]
    path.write_text("no")
    with pytest.raises(BertVisionError, match="not a readable Parquet"):
        read_parquet(path)


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(BertVisionError, match=r"\.xlsx.*\.csv"):
        read_table(tmp_path / "own.xlsx")
    with pytest.raises(BertVisionError, match="No file at"):
        read_table(tmp_path / "own.csv")


def squad(tmp_path, **entry):
    path = tmp_path / "squad.json"
    entry = {"id": "q1", "question": "Who?", "answers": [{"text": "cat", "answer_start": 4}]} | entry
    context = entry.pop("context", "the cat saw the cat")
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [{"context": context, "qas": [entry]}]}]}))
    return path


def test_squad_answers_move_to_the_nearest_place(tmp_path):
    (example,) = read_squad(squad(tmp_path, answers=[{"text": "cat", "answer_start": 14}]), training=True)
    assert example.label == (("cat", 16),) and example.group == "t"
    away = squad(tmp_path, answers=[{"text": "cow", "answer_start": 4}])
    assert read_squad(away)[0].label == (("cow", -1),)
    with pytest.raises(BertVisionError, match="'cow' of question 'q1'"):
        read_squad(away, training=True)


@pytest.mark.parametrize("bad", [{"context": " "}, {"question": ""}, {"question": 3}])
def test_squad_texts_must_be_there(tmp_path, bad):
    with pytest.raises(BertVisionError, match="question 'q1' has an empty"):
        read_squad(squad(tmp_path, **bad))


@pytest.mark.parametrize(
    "content", ['{"data": [', "[]", '{"data": []}', '{"data": [{"paragraphs": [{"qas": []}]}]}', '{"data": 3}', "\xff"]
)
def test_squad_files_that_are_not_are_refused(tmp_path, content):
    path = tmp_path / "squad.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(BertVisionError, match="not valid JSON|not in the SQuAD format|holds no questions"):
        read_squad(path)


def test_squad_ids_must_be_unique(tmp_path):
    path = squad(tmp_path)
    content = json.loads(path.read_text())
    content["data"] *= 2
    path.write_text(json.dumps(content))
    with pytest.raises(BertVisionError, match="'q1' more than once"):
        read_squad(path)
