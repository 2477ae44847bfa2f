"""The table of studies. To add a study, write its function in a module of this package and add one line here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bertvision.lab.studies import analysis, comparisons, head_epochs, transfer
from bertvision.lab.studies.context import StudyContext, StudyOptions
from bertvision.lab.studies.result import StudyTable
from bertvision.tasks import Task


@dataclass(frozen=True)
class Study:
    """A row of the table."""

    run: Callable[[StudyContext], StudyTable]
    summary: str
    paper: str = ""
    """The tables and figures of the paper that it reproduces."""
    tasks: Literal["all", "squad2", "pairs", "sentences"] = "all"
    """The tasks it applies to; "pairs" includes questions with a context."""


# fmt: off
STUDIES: dict[str, Study] = {
    "curve": Study(comparisons.curve, "BERT by epochs of fine-tuning, with heads", "Figures A.1, A.2"),
    "zoo": Study(comparisons.zoo, "all heads, BERT and the controls", "Tables 3.1, 3.2, 3.4, A.1-A.3; Figure A.3"),
    "head-epochs": Study(head_epochs.head_epochs, "a head's score after each training epoch", "Figures 3.4, A.4"),
    "ensemble": Study(comparisons.ensemble, "ensembles of BERT and heads", "Table 3.3"),
    "less-data": Study(comparisons.less_data, "a head trained on a share of the labels", "Figure 3.3; draft Table 3"),
    "cross-checkpoint": Study(comparisons.cross_checkpoint, "heads evaluated at later checkpoints", "draft Table 1"),
    "longer": Study(comparisons.longer, "heads after two or more epochs of fine-tuning", "Table 4.5"),
    "layer-weights": Study(analysis.layer_weights, "the layer weights of learned pooling"),
    "question-types": Study(analysis.question_types, "accuracy with and without an answer", "Figure 4.5", "squad2"),
    "second-answer": Study(analysis.second_answer, "accuracy of the second answer on errors", "", "squad2"),
    "context-length": Study(analysis.context_length, "score by length of the text", "", "pairs"),
    "transfer": Study(transfer.transfer, "a head of one task used for another", "", "sentences"),
}
# fmt: on


def studies_for(task: Task, options: StudyOptions) -> list[str]:
    """Return the names of the studies that apply to a task."""
    is_span = task.example_kind == "span"
    has_pairs = is_span or len(task.to_dict().get("texts", ())) > 1
    applies = {
        "all": True,
        "squad2": is_span,
        "pairs": has_pairs,
        "sentences": not task.per_token and bool(options.to),
    }
    return [name for name, study in STUDIES.items() if applies[study.tasks]]
