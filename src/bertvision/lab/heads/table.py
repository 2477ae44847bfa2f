"""The table of the heads of the published study that are not part of the core, and of heads to compare with them."""

from functools import partial

from bertvision.heads.head import Head
from bertvision.heads.layer_pooling import MeanLayers, ScalarMix
from bertvision.heads.table import HeadEntry, adapter
from bertvision.lab.heads.cnn import cnn_1xn, cnn_nxn
from bertvision.lab.heads.inception import inception
from bertvision.lab.heads.layer_attention import LayerAttention
from bertvision.lab.heads.question_attention import question_attention
from bertvision.lab.heads.wide_adapters import PAPER_SIZE, PoolThenNetwork, adapter_and_mix, pooled_adapter
from bertvision.lab.heads.xception import xception, xception_small

# fmt: off
PAPER_HEADS: dict[str, HeadEntry] = {
    "attention": HeadEntry(lambda shape, **options: Head(shape, LayerAttention(shape.num_channels, shape.hidden_size), **options), "attention over the layers, separately for each token"),
    "attention-skip": HeadEntry(lambda shape, **options: Head(shape, LayerAttention(shape.num_channels, shape.hidden_size), skip=True, **options), "the same, concatenated with the last layer"),
    "question-attention": HeadEntry(lambda shape, size=64, keys=64, **options: question_attention(shape, size, keys, **options), "adapters, attention to the question, concatenated with the last layer"),
    "adapter-386": HeadEntry(lambda shape, size=PAPER_SIZE, **options: adapter(shape, size, **options), "a wide adapter shared by all layers", "adapter 386 shared"),
    "adapter-386-skip": HeadEntry(lambda shape, size=PAPER_SIZE, **options: adapter(shape, size, skip=True, **options), "the same, concatenated with the last layer", "adapter 386 shared + skip"),
    "adapter-386-independent": HeadEntry(lambda shape, size=PAPER_SIZE, **options: adapter(shape, size, shared=False, **options), "a separate wide adapter for each layer", "adapter 386 independent"),
    "adapter-386-independent-skip": HeadEntry(lambda shape, size=PAPER_SIZE, **options: adapter(shape, size, shared=False, skip=True, **options), "the same, concatenated with the last layer", "adapter 386 independent + skip"),
    "adapter-pooler": HeadEntry(lambda shape, size=0, token_pooling="flatten", **options: adapter(shape, size or (384 if shape.per_token else 128), token_pooling=token_pooling, **options), "adapter, tokens concatenated (fixed length)", "AdapterPooler"),
    "learned-adapter-386-skip": HeadEntry(lambda shape, size=PAPER_SIZE, **options: pooled_adapter(shape, ScalarMix(shape.num_channels), size, skip=True, **options), "learned weights, adapter, concatenated with the last layer", "LP -> adapter 386 + skip; adapter pooler Tenney"),
    "mean-adapter-386-skip": HeadEntry(lambda shape, size=PAPER_SIZE, **options: pooled_adapter(shape, MeanLayers(), size, skip=True, **options), "average, adapter, concatenated with the last layer", "adapter pooler average"),
    "adapter-386-skip-learned": HeadEntry(lambda shape, size=PAPER_SIZE, **options: adapter_and_mix(shape, size, **options), "adapters on every layer and on their learned mix, concatenated with the last layer", "adapter 386 shared + skip + LP (Tenney)"),
    "cnn-1xn": HeadEntry(lambda shape, **options: Head(shape, cnn_1xn(shape.num_channels), **options), "convolutions along the width, layers as channels", "1xN CNN"),
    "cnn-1xn-dropout": HeadEntry(lambda shape, **options: Head(shape, cnn_1xn(shape.num_channels, dropout=0.1), **options), "the same with dropout", "1xN CNN, dropout"),
    "cnn-1xn-dilated": HeadEntry(lambda shape, **options: Head(shape, cnn_1xn(shape.num_channels, dilated=True), **options), "the same, dilated", "1xN CNN, dilated"),
    "learned-cnn-1xn": HeadEntry(lambda shape, **options: Head(shape, PoolThenNetwork(ScalarMix(shape.num_channels), then=cnn_1xn(1)), **options), "learned weights, then convolutions", "LP -> 1xN CNN"),
    "mean-cnn-1xn": HeadEntry(lambda shape, **options: Head(shape, PoolThenNetwork(MeanLayers(), then=cnn_1xn(1)), **options), "average, then convolutions", "AP -> 1xN CNN"),
    "learned-adapter-386-cnn-1xn": HeadEntry(lambda shape, size=PAPER_SIZE, **options: pooled_adapter(shape, ScalarMix(shape.num_channels), size, cnn_1xn, **options), "learned weights, adapter, convolutions", "LP -> adapter 386 -> 1xN CNN"),
    "learned-adapter-386-cnn-nxn": HeadEntry(lambda shape, size=PAPER_SIZE, **options: pooled_adapter(shape, ScalarMix(shape.num_channels), size, cnn_nxn, **options), "learned weights, adapter, convolutions over neighbouring tokens", "LP -> adapter 386 -> NxN CNN"),
    "learned-adapter-386-inception": HeadEntry(lambda shape, size=PAPER_SIZE, **options: pooled_adapter(shape, ScalarMix(shape.num_channels), size, inception, **options), "learned weights, adapter, Inception with the token axis kept", "LP -> adapter 386 -> Inception"),
    "learned-adapter-386-xception": HeadEntry(lambda shape, size=PAPER_SIZE, **options: pooled_adapter(shape, ScalarMix(shape.num_channels), size, partial(xception, middle=1, last=(1428,)), **options), "learned weights, adapter, Xception with the token axis kept", "LP -> adapter 386 -> Xception"),
    "xception-small": HeadEntry(lambda shape, **options: Head(shape, xception_small(shape.num_channels), **options), "abbreviated Xception, layers as channels", "Xception abbreviated"),
    "xception-small-skip": HeadEntry(lambda shape, **options: Head(shape, xception_small(shape.num_channels), skip=True, **options), "the same, concatenated with the last layer", "Xception abbreviated, CLS residual"),
    "xception": HeadEntry(lambda shape, **options: Head(shape, xception(shape.num_channels), **options), "full Xception, layers as channels", "Xception full"),
}
# fmt: on
