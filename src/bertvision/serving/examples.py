"""Example inputs for the demo page, by kind of task."""

import logging
from itertools import islice
from typing import Any

from bertvision.errors import BertVisionError
from bertvision.prediction_files import open_input
from bertvision.tasks import Task

logger: logging.Logger = logging.getLogger(__name__)

SHOWN_ROWS = 4
TITLE_CHARACTERS = 32

LIGHTHOUSE = (
    "The third lighthouse on the Eddystone rocks was designed by John Smeaton, who gave it the shape of an oak and "
    "joined its blocks of granite with dovetails. It was first lit in October 1759, with 24 candles. By 1877 the sea "
    "had worn away the rock beneath it, and a new tower was begun beside it. The upper part was taken down and rebuilt "
    "on the shore in Plymouth, where visitors can climb it today."
)
BLOOD_CELLS = (
    "Red blood cells carry oxygen from the lungs to the rest of the body. They are made in the marrow of the bones, "
    "live for about 120 days, and are then broken down in the spleen and the liver. Unlike most other cells they have "
    "no nucleus, which leaves more room for haemoglobin, the protein that binds oxygen and gives blood its colour."
)
Examples = list[tuple[str, tuple[str, ...]]]

QUESTIONS: Examples = [
    ("Who designed it?", ("Who designed the lighthouse?", LIGHTHOUSE)),
    ("When was it lit?", ("When was the lighthouse first lit?", LIGHTHOUSE)),
    ("Not in the text", ("How tall is the lighthouse?", LIGHTHOUSE)),
    ("How long do they live?", ("How long do red blood cells live?", BLOOD_CELLS)),
]
PASSAGES: Examples = [
    ("Yes", ("can visitors climb the tower today", LIGHTHOUSE)),
    ("No", ("do red blood cells have a nucleus", BLOOD_CELLS)),
]
PAIRS: Examples = [
    ("Same meaning", ("A man is playing a guitar on the stage.", "Somebody plays an instrument in front of people.")),
    ("Similar", ("The company sold 3,000 cars in May.", "In May the company sold fewer than 4,000 cars.")),
    ("Different", ("A dog runs along the beach.", "The parliament will vote on Thursday.")),
]
QUESTION_PAIRS: Examples = [
    ("Same meaning", ("How do I learn to cook?", "What is the best way to learn cooking?")),
    ("Different", ("How do I learn to cook?", "How long does rice take to cook?")),
]
REVIEW_SENTENCES: Examples = [
    ("Positive", ("a warm , funny and quietly moving film",)),
    ("Negative", ("two hours of nothing , and then a sequel is promised",)),
    ("Mixed", ("the actors do what they can with a script that does not know what it wants",)),
]
ACCEPTABILITY: Examples = [
    ("Acceptable", ("The book that she gave me was on the table.",)),
    ("Unacceptable", ("The book what gave she me was the table on.",)),
]
ENTITIES: Examples = [
    ("People and places", ("Grace Hopper was born in New York City and studied at Yale.",)),
    ("A tweet", ("@anna just saw Arctic Monkeys at the O2 in London , what a night !",)),
    ("Companies", ("Nokia sold its phones to Microsoft , which bought LinkedIn two years later.",)),
]
OTHER: Examples = [("A sentence", ("The delivery came two weeks late, and nobody answered the telephone.",))]
BY_TASK = {
    "squad2": QUESTIONS,
    "squad2-answerable": QUESTIONS,
    "boolq": PASSAGES,
    "qqp": QUESTION_PAIRS,
    "sst2": REVIEW_SENTENCES,
    "rotten-tomatoes": REVIEW_SENTENCES,
    "cola": ACCEPTABILITY,
}


def examples_for(task: Task, file: str = "") -> Examples:
    """Return examples (title, texts) with the inputs of the task: the first rows of a file, or built-in texts."""
    if file and (rows := _rows_of_file(task, file)):
        return rows
    if task.name in BY_TASK:
        return BY_TASK[task.name]
    if "context" in task.text_names:
        return QUESTIONS
    if task.example_kind == "tokens":
        return ENTITIES
    return PAIRS if len(task.text_names) == 2 else OTHER


def _rows_of_file(task: Task, file: str) -> Examples:
    """Return the first rows of a file; none if it has no columns for this task."""
    try:
        with open_input(file, task) as opened:
            items = list(islice((row.item for row in opened.rows if row.item), SHOWN_ROWS))
    except BertVisionError as error:
        logger.warning(f"The page shows built-in examples for {task.name}: {error}")
        return []
    rows = [_texts_of(task, item) for item in items]
    return [(_title(texts[0]), texts) for texts in rows]


def _texts_of(task: Task, item: Any) -> tuple[str, ...]:
    if isinstance(item, str):
        return (item,)
    if isinstance(item, dict):
        return tuple(item[name] for name in task.text_names)
    return tuple(item) if len(task.text_names) == len(item) else (" ".join(item),)


def _title(text: str) -> str:
    return text if len(text) <= TITLE_CHARACTERS else f"{text[:TITLE_CHARACTERS].rsplit(' ', 1)[0]} ..."


def comparison_texts(num_texts: int) -> list[tuple[str, ...]]:
    """Return the texts of all examples with this number of texts, to compare models on when no data are at hand."""
    lists = [QUESTIONS, PASSAGES, PAIRS, QUESTION_PAIRS, REVIEW_SENTENCES, ACCEPTABILITY, ENTITIES, OTHER]
    rows = [texts for examples in lists for _, texts in examples if len(texts) == num_texts]
    if num_texts == 1:
        rows += [(text,) for passage in (LIGHTHOUSE, BLOOD_CELLS) for text in (passage, *passage.split(". "))]
    return rows
