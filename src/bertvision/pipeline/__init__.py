"""The pipeline of experiments: text -> tokens -> hidden states -> logits -> answers -> scores."""

from bertvision.pipeline.data import ExperimentData, dev_examples, find_task, load_data
from bertvision.pipeline.evaluation import bert_run, ensemble, rescore
from bertvision.pipeline.finetuning import Checkpoint, CheckpointSet, finetune, open_checkpoint
from bertvision.pipeline.head_training import evaluate_at, train_heads
from bertvision.pipeline.multitask import finetune_multitask, run_multitask
from bertvision.pipeline.runner import ExperimentResult, choose_best, experiment_of, run

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
