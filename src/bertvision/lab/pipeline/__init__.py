"""The pipeline of experiments: text -> tokens -> hidden states -> logits -> answers -> scores."""

from bertvision.lab.pipeline.data import ExperimentData, dev_examples, find_task, load_data
from bertvision.lab.pipeline.evaluation import bert_run, ensemble, rescore
from bertvision.lab.pipeline.finetuning import Checkpoint, CheckpointSet, finetune, open_checkpoint
from bertvision.lab.pipeline.head_training import evaluate_at, train_heads
from bertvision.lab.pipeline.multitask import finetune_multitask, run_multitask
from bertvision.lab.pipeline.runner import ExperimentResult, choose_best, experiment_of, run

__all__ = [
    "Checkpoint",
    "CheckpointSet",
    "ExperimentData",
    "ExperimentResult",
    "bert_run",
    "choose_best",
    "dev_examples",
    "ensemble",
    "evaluate_at",
    "experiment_of",
    "find_task",
    "finetune",
    "finetune_multitask",
    "load_data",
    "open_checkpoint",
    "rescore",
    "run",
    "run_multitask",
    "train_heads",
]
