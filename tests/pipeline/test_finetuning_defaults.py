"""How the defaults of fine-tuning follow the kind of task, and fine-tuning that begins at a fitted head."""

import pytest
import torch

from bertvision import pipeline
from bertvision.encoders import TwoHeadModel, load_encoder_info
from bertvision.errors import BertVisionError
from bertvision.pipeline.evaluation import preferred
from bertvision.pipeline.experiment import make
from bertvision.pipeline.finetuning import load, one_task_training
from bertvision.tasks import TASKS


def resolved(task, tiny, **settings):
    return pipeline.resolve(make(task=task, encoder=str(tiny), **settings), TASKS[task], load_encoder_info(str(tiny)))


@pytest.mark.parametrize(
    ("task", "settings", "fractions", "schedule", "times"),
    [
        ("sst2", {}, [1.0], "linear", 2.0),
        ("sst2", {"fractions": [0.3]}, [0.3], "linear", 2.0),
        ("sst2", {"fractions": [0.3, 1.0]}, [0.3, 1.0], "constant", 1.0),
        ("sst2", {"finetune": {"schedule": "constant"}}, [1.0], "constant", 1.0),
        ("mrpc", {}, [0.3, 1.0], "constant", 1.0),
        ("mrpc", {"fractions": [0.3], "finetune": {"schedule": "linear"}}, [0.3], "linear", 1.0),
        ("squad2", {}, [0.3, 1.0], "constant", 1.0),
    ],
)
def test_length_schedule_and_rate_follow_the_task(task, settings, fractions, schedule, times, tiny):
    config = resolved(task, tiny, **settings)
    usual = load_encoder_info(str(tiny)).learning_rate or TASKS[task].learning_rate
    assert config.experiment.fractions == fractions
    assert config.finetuning.schedule == schedule
    assert config.finetuning.learning_rate == pytest.approx(times * usual)
    given = resolved(task, tiny, finetune={"learning_rate": 7e-5})
    assert given.finetuning.learning_rate == 7e-5


def test_an_unknown_schedule_is_refused():
    with pytest.raises(BertVisionError, match="constant"):
        make(task="sst2", finetune={"schedule": "constnat"})


def test_fine_tuning_begins_at_a_fitted_head(tiny, reviews, tmp_path):
    data = pipeline.prepare(make(train_file=str(reviews), encoder=str(tiny), fractions=[0.5]))
    assert str(data.config.auxiliary_head) == "logistic:layers=last"
    model = one_task_training(data, load(data)).model
    assert isinstance(model, TwoHeadModel) and model.lr_scale == 1.0
    states = load(data).encoder.eval()
    batch = next(iter(data.ordered(data.train).epoch(0)))
    with torch.no_grad():
        logits = model.auxiliary_head(states(batch.inputs, batch.attention_mask), batch.attention_mask)
    correct = (logits.argmax(dim=1) == batch.labels).float().mean()
    assert correct > 0.8  # before any step of fine-tuning
    random = data.change(auxiliary_head="adapter:token_pooling=max")
    checkpoints = pipeline.finetune(data, tmp_path)
    fitted = pipeline.open_checkpoint(data, checkpoints, 0.5)
    assert fitted.auxiliary_head is not None and random.experiment.auxiliary_head != data.experiment.auxiliary_head
    again = pipeline.open_checkpoint(data, pipeline.finetune(data, tmp_path / "again"), 0.5)
    assert again.encoder_hash == fitted.encoder_hash


def test_the_loss_decides_between_scores_that_are_close():
    assert preferred([(80.0, -0.6), (79.0, -0.4)], rows=100) == 1  # a standard error is 4 points
    assert preferred([(80.0, -0.6), (79.0, -0.4)], rows=10_000) == 0  # and here 0.4
    assert preferred([(80.0, -0.6), (70.0, -0.4)], rows=100) == 0
    assert preferred([(80.0, 0.0), (79.0, 0.0)], rows=100) == 0  # no losses on validation
    assert preferred([(50.0, -0.5), (50.0, -0.5)], rows=100) == 0
    assert preferred([(100.0, -0.1), (99.0, -0.05)], rows=100) == 0  # no error at the end of the range
