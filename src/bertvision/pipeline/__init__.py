"""The pipeline: text -> tokens -> hidden states -> logits -> answers -> scores.

    config      = resolve(experiment, task, encoder_info)       every default filled in
    data        = load_data(config)                             splits and tokens
    checkpoints = finetune(data, root)                          fine-tuned encoders
    outputs     = train_heads(data, checkpoint, heads)          logits of every head, and of BERT itself
    runs        = [evaluate(data, checkpoint, output) for output in outputs]

`prepare` is the first two steps, `checkpoint_runs` the last two, and `run` all of them.
"""

from bertvision.pipeline.config import PipelineConfig, resolve
from bertvision.pipeline.data import ExperimentData, dev_examples, find_task, load_data, load_splits, prepare
from bertvision.pipeline.evaluation import ensemble, evaluate, rescore
from bertvision.pipeline.finetuning import Checkpoint, CheckpointSet, finetune, open_checkpoint
from bertvision.pipeline.head_training import train_heads
from bertvision.pipeline.outputs import ModelOutput
from bertvision.pipeline.runner import (
    ExperimentResult,
    bert_run,
    checkpoint_runs,
    choose_best,
    evaluate_at,
    experiment_of,
    finetune_multitask,
    run,
    run_data,
    run_multitask,
)

__all__ = [
    "Checkpoint",
    "CheckpointSet",
    "ExperimentData",
    "ExperimentResult",
    "ModelOutput",
    "PipelineConfig",
    "bert_run",
    "checkpoint_runs",
    "choose_best",
    "dev_examples",
    "ensemble",
    "evaluate",
    "evaluate_at",
    "experiment_of",
    "find_task",
    "finetune",
    "finetune_multitask",
    "load_data",
    "load_splits",
    "open_checkpoint",
    "prepare",
    "rescore",
    "resolve",
    "run",
    "run_data",
    "run_multitask",
    "train_heads",
]
