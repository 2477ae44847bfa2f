"""Reading of words with tags and texts with spans; what is wrong with a file is said in a sentence."""

import json

import pytest

from bertvision.errors import BertVisionError
from bertvision.inputs import read_tagged_rows, task_from_files
from bertvision.tasks import UserFiles
from bertvision.token_tasks import TokenTask, split_words
from bertvision.token_tasks.reading import read_tagged_file

WORDS = [["Ann", "lives", "in", "New", "York"], ["it", "rains"]]
TAGS = [["B-person", "O", "O", "B-place", "I-place"], ["O", "O"]]


def write_conll(path, sentences=WORDS, tags=TAGS, line="{}\t{}\n"):
    blocks = [
        "".join(line.format(*pair) for pair in zip(*both, strict=True)) for both in zip(sentences, tags, strict=True)
    ]
    path.write_text("\n".join(blocks))
    return path


def tagged(rows):
    return [(row.text, [row.text[start:end] for start, end in row.words], list(row.tags)) for row in rows]


EXPECTED = [(" ".join(words), words, tags) for words, tags in zip(WORDS, TAGS, strict=True)]


@pytest.mark.parametrize("line", ["{}\t{}\n", "{} {}\n", "{} NN I-NP {}\n", "{}\t_\t{} \r\n"])
def test_columns_of_conll_files(tmp_path, line, messages):
    assert tagged(read_tagged_file(write_conll(tmp_path / "a.conll", line=line))) == EXPECTED
    assert any("read as IOB2" in message for message in messages)


def test_comments_documents_and_blank_lines(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("-DOCSTART- O\n\n# id = 1\nAnn B-person\n# O\n\n\t\n-DOCSTART- O\n\nit O\n")
    rows = read_tagged_file(path)
    assert tagged(rows) == [("Ann #", ["Ann", "#"], ["B-person", "O"]), ("it", ["it"], ["O"])]
    assert [row.group for row in rows] == ["document 1", "document 2"] and rows[0].id == "a-4"


def test_iob1_is_never_guessed(tmp_path):
    path = write_conll(tmp_path / "a.conll", tags=[["I-person", "O", "O", "I-place", "I-place"], ["O", "O"]])
    with pytest.raises(BertVisionError, match=r"a.conll, line 1: word 0 \('Ann'\): I-person follows.*tokens-iob1"):
        read_tagged_file(path)
    task = task_from_files(UserFiles(train=str(path)), kind="tokens-iob1")
    assert isinstance(task, TokenTask) and task.entity_types == ("person", "place")
    assert task.read(path)[0].label == tuple(TAGS[0])


@pytest.mark.parametrize("named", [True, False])
def test_tables_and_lists_give_the_same_rows(tmp_path, named):
    datasets = pytest.importorskip("datasets")
    names = ["O", "B-person", "B-place", "I-place"]
    numbers = [[names.index(tag) for tag in tags] for tags in TAGS]
    feature = datasets.Features(
        {"tokens": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(datasets.ClassLabel(names=names))}
    )
    path = tmp_path / "a.jsonl"
    column = "ner_tags" if named else "gold"
    path.write_text("".join(json.dumps({"tokens": w, column: t}) + "\n" for w, t in zip(WORDS, TAGS, strict=True)))
    given = [
        read_tagged_rows(WORDS, TAGS),
        read_tagged_rows({"tokens": WORDS, "tags": TAGS}),
        read_tagged_rows(datasets.Dataset.from_dict({"tokens": WORDS, "ner_tags": numbers}, features=feature)),
        read_tagged_rows(path, label=None if named else "gold"),
        read_tagged_rows(write_conll(tmp_path / "a.conll")),
        read_tagged_rows([{"words": words, "tags": tags} for words, tags in zip(WORDS, TAGS, strict=True)]),
    ]
    for rows in given:
        assert (rows.texts, rows.labels) == ([(text,) for text, _, _ in EXPECTED], [tuple(tags) for tags in TAGS])
        assert rows.splitting == "spaces" and rows.words == given[0].words


SPANS = [
    [(0, 3, "person"), (13, 21, "place")],
    [[13, 21, "place"], [0, 3, "person"]],
    [{"start": 0, "end": 3, "label": "person"}, {"start": 13, "end": 21, "type": "place"}],
]


@pytest.mark.parametrize("spans", SPANS)
def test_spans_of_characters(tmp_path, spans):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "Ann lives in New York.", "entities": spans}) + "\n")
    tags = [*TAGS[0], "O"]
    assert tagged(read_tagged_file(path))[0][2] == tags
    rows = read_tagged_rows(["Ann lives in New York."], [spans])
    assert rows.labels == [tuple(tags)] and rows.splitting == "punctuation"


def test_spans_that_end_inside_a_word_are_widened_with_a_notice(messages):
    assert read_tagged_rows(["London's end"], [[(1, 6, "place")]]).labels == [("B-place", "O", "O", "O")]
    assert any("1 spans of the data begin or end inside a word" in message for message in messages)


def test_words_of_texts():
    text = "@ann's e-mail: a.b, (see http://x.org/a_b).東京"
    parts = [text[start:end] for start, end in split_words(text, "spaces")]
    assert parts == ["@ann's", "e-mail", ":", "a.b", ",", "(", "see", "http://x.org/a_b", ")", ".", "東", "京"]
    assert [text[a:b] for a, b in split_words(text, "punctuation")][:5] == ["@", "ann", "'", "s", "e"]


BAD_LISTS = [
    ([["a", "b"]], [["O"]], "Row 0: there are 2 words, but 1 tags"),
    ([["a"]], [["I-x"]], r"Row 0: word 0 \('a'\): I-x follows the beginning of the sentence"),
    ([["a"]], [[1]], "tag 0 is 1, where a name such as 'B-person' or 'O' was expected. Numbers need the names"),
    ([["a"]], None, "Row 0: the tags or spans are missing"),
    ([["a"]], ["O"], "expected a tag for each word, got 'O'"),
    ([[]], [[]], "Row 0: there are no words"),
    ([["a", ""]], [["O", "O"]], "word 1 is '', where a text was expected"),
    ([" "], [[]], "the text is empty"),
    ([5], [[]], "expected a list of words or a text, got 5"),
    (["ab c"], [[(0, 9, "x")]], "the span 0 to 9 is not inside the text, which has 4 characters"),
    (["ab c"], [[(2, 3, "x")]], r"the span 2 to 3 \(' '\) holds no word"),
    (["ab c"], [[(0, 2, "x"), (1, 4, "y")]], "overlaps another one"),
    (["ab c"], [["x"]], "expected a span such as"),
    (["ab c"], [[(0, 2, "x y")]], "a name without spaces"),
    (["ab c", ["a"]], [[], ["O"]], "Some rows are lists of words and others are texts"),
]


@pytest.mark.parametrize(("rows", "labels", "why"), BAD_LISTS)
def test_bad_rows_are_named(rows, labels, why):
    with pytest.raises(BertVisionError, match=why):
        read_tagged_rows(rows, labels, labelled=True)


BAD_FILES = [
    ("Ann B-person\nlives\n", "line 2: 1 column.s. where 2 were expected: 'lives'"),
    ("Ann B-person\nnew york O\n", "line 2: 3 column.s. where 2 were expected"),
    ("Ann\tB-person\n\tO\n", "line 2: the tag 'O' has no word"),
    ("Ann\nlives\n", "the lines have one column, where a word and its tag were expected"),
    ("\n\n", "holds no words"),
    ("Ann O\nx I-y\n", "line 2: word 1 .'x'.: I-y follows O"),
    ("Ann O\n", "holds no entities: all its tags are O"),
]


@pytest.mark.parametrize(("content", "why"), BAD_FILES)
def test_bad_files_are_named(tmp_path, content, why):
    path = tmp_path / "a.conll"
    path.write_text(content)
    with pytest.raises(BertVisionError, match=why):
        task_from_files(UserFiles(train=str(path)))


def test_unknown_types_and_missing_columns(tmp_path):
    task = task_from_files(UserFiles(train=str(write_conll(tmp_path / "a.conll"))))
    other = write_conll(tmp_path / "b.conll", tags=[["B-star", "O", "O", "O", "O"], ["O", "O"]])
    with pytest.raises(BertVisionError, match=r"b.conll, b-1: the entity type 'star' is not one of.*person, place"):
        task.read(other)
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps({"tags": ["O"]}) + "\n")
    with pytest.raises(BertVisionError, match="has no column 'tokens' with the words of each row"):
        task.read(path)
    path.write_text(json.dumps({"tokens": ["a"]}) + "\n")
    with pytest.raises(BertVisionError, match="has no column 'tags' for the words of 'tokens'"):
        task.read(path)
    with pytest.raises(BertVisionError, match="cannot hold words and tags"):
        task.read(tmp_path / "d.csv")
