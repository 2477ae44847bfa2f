"""Heads that are fitted to their optimum: ridge and logistic regression on the pooled hidden states of all layers.

A `LinearHead` names a solver. Its features are what its linear classifier reads. They are computed once, standardized,
and handed to the solver with several strengths of regularization; the validation rows choose the strength. The
scales are folded into the classifier, so that the fitted head is an ordinary module.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision import devices
from bertvision.heads import LinearHead
from bertvision.progress import bar
from bertvision.training import Checkpointer, FitOptions, Loss, TrainingConfig, TrainState, fit
from bertvision.training.optimizers import build_grad_scaler, build_optimizer
from bertvision.types import Batches, call_head

logger: logging.Logger = logging.getLogger(__name__)

MAX_BYTES = 2 << 30
"""The memory of the features of a head. Of larger data, as many rows as fit are used, in the order of training."""
STRENGTHS = {"ridge": (1.0, 0.3, 0.1, 0.03, 0.01, 0.003), "logistic": (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)}
"""The strengths of regularization that are tried, from strong to weak. For ridge, they are shares of the mean
eigenvalue; for logistic regression, factors of half the squared norm of the weights beside the mean loss."""
SCALES = tuple(2.0 ** (power / 2) for power in range(-2, 11))
"""Factors of the scores of ridge regression. Validation chooses the one that makes the best logits of them."""
ITERATIONS = 15  # of L-BFGS for each strength, which starts from the solution of the one before
TOLERANCE = 1e-3
"""Of two strengths or factors whose validation losses differ by less, the one with the smaller weights is taken."""
MIN_SCALE = 0.1
"""The smallest standard deviation that features are divided by, as a share of the median. Features that hardly vary
would get very large weights."""
MAX_WORSE = 1  # strengths in a row without a better validation loss, after which no weaker one is tried


@dataclass(frozen=True, kw_only=True)
class PooledRows:
    """What the classifier of a head reads, with the labels."""

    features: Tensor
    """float32 (N, F)"""
    labels: Tensor
    """(N,) classes or scores, or (N, C) indicators."""
    weights: Tensor | None = None
    """float32 (N,): the weight of each row in the loss. None: all are 1."""

    @property
    def relative_weights(self) -> Tensor:
        """The weights, scaled to a mean of 1. (N,)"""
        if self.weights is None:
            return torch.ones(len(self.features), device=self.features.device)
        return self.weights * (len(self.weights) / self.weights.sum())

    def rows(self, chosen: Tensor) -> "PooledRows":
        """Return some of the rows."""
        weights = None if self.weights is None else self.weights[chosen]
        return PooledRows(features=self.features[chosen], labels=self.labels[chosen], weights=weights)

    def loss(self, loss: Loss, logits: Tensor) -> Tensor:
        """Return the mean loss of logits of these rows."""
        weights = () if self.weights is None else (self.weights,)
        return loss(logits, self.labels, torch.ones(len(logits), 1, dtype=torch.bool, device=logits.device), *weights)


@dataclass(frozen=True, kw_only=True)
class LinearMap:
    """A linear map of features to logits, and the strength of regularization it was fitted with."""

    weight: Tensor
    """(F, C)"""
    bias: Tensor
    """(C,)"""
    strength: float = 0.0
    center: Tensor | None = None
    """What is subtracted from the features. (F,)"""

    def __call__(self, features: Tensor) -> Tensor:
        return torch.addmm(self.bias, features if self.center is None else features - self.center, self.weight)


@dataclass(kw_only=True)
class ConvexFit(TrainState):
    """The result of a fit to the optimum."""

    strength: float = 0.0
    """The strength of regularization that validation chose."""


Solver = Callable[[PooledRows, LinearMap, Loss, Sequence[float]], Iterator[LinearMap]]
"""Fits standardized features for several strengths, from strong to weak. The map that is given is the one that
regularization pulls towards: zero, or the weights of a trained head."""


def is_convex(model: nn.Module) -> bool:
    """Return whether a head is fitted to its optimum, and not by gradient descent."""
    return any(part.solver for part in _parts(model))


def fit_models(
    models: Mapping[str, nn.Module],
    batches: Batches,
    loss: Loss,
    configs: Mapping[str, TrainingConfig],
    options: FitOptions | None = None,
    checkpointer: Checkpointer | None = None,
    *,
    validation: Batches | None = None,
) -> dict[str, TrainState]:
    """Train models as `training.fit` does, but fit those that have a solver to their optimum.

    `validation` are the rows that choose the strength of regularization. Without them, it is chosen on a fifth of the
    training rows, and the head is fitted again to all.
    """
    options = options or FitOptions()
    states: dict[str, TrainState] = {}
    for name, model in models.items():
        if is_convex(model):
            states[name] = fit_convex(model, batches, loss, configs[name], validation)
            if options.validate and not states[name].failed:
                score = options.validate({name: model})
                states[name].validation_scores = [list(score[name])] if name in score else []
                states[name].stopped = states[name].stopped if name in score else "pruned"
    trained = {name: model for name, model in models.items() if name not in states}
    if trained:
        states |= fit(trained, batches, loss, configs, options, checkpointer)
    return {name: states[name] for name in models}


def fit_convex(
    model: nn.Module, batches: Batches, loss: Loss, config: TrainingConfig, validation: Batches | None = None
) -> ConvexFit:
    """Fit the classifier of a head to its optimum. The result does not depend on the order of the rows or a seed."""
    began = time.perf_counter()
    model.to(devices.device()).eval()
    parts = _parts(model)
    train = pool_rows(model, batches, "pool states")
    read = time.perf_counter() - began
    held_out = None if validation is None else pool_rows(model, validation, "pool validation")
    chosen = fit_linear(train, held_out, _current_map(parts), parts[0].solver, loss)
    state = ConvexFit(
        model=model,
        config=replace(config, learning_rate=0.0, epochs=1.0),
        optimizer=build_optimizer(model, 0.0, 0.0),
        scaler=build_grad_scaler(False),
        best_epoch=1,
        stopped="finished",
        strength=chosen.strength,
        shared_seconds=read,
    )
    if not (chosen.weight.isfinite().all() and chosen.bias.isfinite().all()):
        state.failed = f"the solver {parts[0].solver!r} found no finite weights"
    else:
        _write_map(parts, chosen)
        state.losses = [float(train.loss(loss, chosen(train.features)))]
    state.seconds = time.perf_counter() - began - read
    logger.debug(f"{parts[0].solver}: strength {chosen.strength:g} in {state.seconds:.1f} s.")
    return state


def fit_linear(train: PooledRows, held_out: PooledRows | None, start: LinearMap, solver: str, loss: Loss) -> LinearMap:
    """Return the linear map of features to logits with the strength that is best on the rows that are held out."""
    if held_out is None:
        return _refit(train, start, solver, loss)
    return _fit_path(train, held_out, start, solver, loss, STRENGTHS[solver])


def _refit(train: PooledRows, start: LinearMap, solver: str, loss: Loss) -> LinearMap:
    """Choose the strength on every fifth row, and fit with it to all rows."""
    order = torch.argsort(train.labels.reshape(len(train.labels), -1)[:, 0], stable=True)  # stratified
    chosen = order[2::5] if len(order) > 4 else order
    rest = torch.from_numpy(np.setdiff1d(np.arange(len(order)), chosen.cpu().numpy())) if len(order) > 4 else order
    best = _fit_path(train.rows(rest), train.rows(chosen), start, solver, loss, STRENGTHS[solver])
    return _fit_path(train, train.rows(chosen), start, solver, loss, [best.strength])


def _fit_path(
    train: PooledRows,
    held_out: PooledRows,
    start: LinearMap,
    solver: str,
    loss: Loss,
    strengths: Sequence[float],
) -> LinearMap:
    """Fit with several strengths, and return the map with the lowest loss on the rows that are held out."""
    mean, scale = _standardization(train)
    standardized = replace(train, features=(train.features - mean) / scale)
    pull = LinearMap(weight=start.weight * scale[:, None], bias=start.bias)
    solve = SOLVERS[solver if _is_classification(train.labels) else "ridge"]
    best, lowest, worse = start, float("inf"), 0
    for standard in solve(standardized, pull, loss, strengths):
        fitted = replace(standard, weight=standard.weight / scale[:, None], center=mean)
        if solve is SOLVERS["ridge"] and _is_classification(train.labels):
            fitted = _as_logits(fitted, held_out, loss)
        value = float(held_out.loss(loss, fitted(held_out.features)))
        better = value < lowest - TOLERANCE
        worse = 0 if better else worse + 1
        if better or best is start:
            best, lowest = fitted, value
        if worse >= MAX_WORSE:
            break
    return best


# Features


@torch.no_grad()
def pool_rows(model: nn.Module, batches: Batches, label: str) -> PooledRows:
    """Compute the features of all rows, or of as many as MAX_BYTES allows."""
    device, parts = devices.device(), _parts(model)
    rows: list[np.ndarray] = []
    features: list[Tensor] = []
    labels: list[Tensor] = []
    weights: list[Tensor] = []
    taken: list[Tensor] = []
    used = 0
    with ExitStack() as stack, bar(label, total=batches.rows) as advance:
        for part in parts:
            hook = part.classifier.register_forward_pre_hook(lambda module, inputs: taken.append(inputs[0]))
            stack.callback(hook.remove)
        for batch in batches.epoch(0):
            moved = batch.to(device)
            call_head(model, moved.inputs, moved.attention_mask, moved.text_ids)
            features.append(torch.cat(taken, dim=-1).float().to(_solver_device()))
            taken.clear()
            rows.append(batch.rows)
            labels.append(batch.labels)
            weights += [] if batch.weights is None else [batch.weights]
            advance(len(batch.rows))
            used += features[-1].nbytes
            if used > MAX_BYTES:
                logger.info(f"{label}: {sum(map(len, rows)):,} of {batches.rows:,} rows are used, which fit in memory.")
                break
    order = torch.from_numpy(np.argsort(np.concatenate(rows)))
    return PooledRows(
        features=torch.cat(features)[order.to(features[0].device)],
        labels=torch.cat(labels)[order].to(features[0].device),
        weights=torch.cat(weights)[order].to(features[0].device) if weights else None,
    )


def _standardization(train: PooledRows) -> tuple[Tensor, Tensor]:
    """Return the weighted mean of each feature, and what to divide it by: its standard deviation, if not tiny. (F,)"""
    weights = train.relative_weights[:, None] / len(train.features)
    mean = (train.features * weights).sum(dim=0)
    scale = ((train.features - mean).square() * weights).sum(dim=0).sqrt()
    varying = scale[scale > 1e-5 * (1 + mean.abs())]
    smallest = MIN_SCALE * float(varying.median()) if len(varying) else 1.0
    return mean, scale.clamp(min=smallest)


def _parts(model: nn.Module) -> list[LinearHead]:
    """Return the linear heads that a head is made of: one, or one for each encoding."""
    return [part for part in model.modules() if isinstance(part, LinearHead)]


def _current_map(parts: Sequence[LinearHead]) -> LinearMap:
    """Return the weights of the classifiers of the parts, whose logits are averaged. The bias is not part of it."""
    weight = torch.cat([part.classifier.weight.detach() for part in parts], dim=1).t() / len(parts)
    return LinearMap(
        weight=weight.to(_solver_device()).contiguous(), bias=torch.zeros(weight.shape[1]).to(_solver_device())
    )


@torch.no_grad()
def _write_map(parts: Sequence[LinearHead], fitted: LinearMap) -> None:
    sizes = [part.classifier.in_features for part in parts]
    for part, weight in zip(parts, fitted.weight.split(sizes), strict=True):
        part.classifier.weight.copy_(weight.t() * len(parts))
        part.classifier.bias.copy_(fitted.bias)
    if fitted.center is not None:
        for part, center in zip(parts, fitted.center.split(sizes), strict=True):
            part.center += center.to(part.center.device)


# Solvers


def solve_ridge(train: PooledRows, pull: LinearMap, loss: Loss, strengths: Sequence[float]) -> Iterator[LinearMap]:
    """Yield the ridge regressions of the labels, or of the indicators of the classes, for each strength.

    The normal equations have as many unknowns as there are rows or features, whichever are fewer.
    """
    targets = _targets(train.labels, len(pull.bias)) - pull(train.features)
    bias = (targets * train.relative_weights[:, None]).mean(dim=0)
    root = train.relative_weights.sqrt()[:, None]
    x, y = train.features * root, (targets - bias) * root
    dual = len(x) <= x.shape[1]
    gram = x @ x.t() if dual else x.t() @ x
    right = y if dual else x.t() @ y
    diagonal = gram.diagonal().clone()
    varying = diagonal[diagonal > 1e-6 * diagonal.max()]  # features that do not vary are 0
    mean = varying.mean() if len(varying) else 1.0
    for strength in strengths:
        gram.diagonal().copy_(diagonal + strength * mean)
        solution = torch.cholesky_solve(right, torch.linalg.cholesky(gram))
        weight = x.t() @ solution if dual else solution
        yield LinearMap(weight=pull.weight + weight, bias=pull.bias + bias, strength=strength)


def solve_logistic(train: PooledRows, pull: LinearMap, loss: Loss, strengths: Sequence[float]) -> Iterator[LinearMap]:
    """Yield the minima of the loss of the task plus half the squared norm of the weights, for each strength.

    If there are fewer rows than features, the weights are a combination of the rows, and the features are replaced by a
    square factor of their products.
    """
    x = train.features
    factor = None
    if len(x) < x.shape[1]:
        gram = x @ x.t()
        gram.diagonal().add_(1e-5 * gram.diagonal().mean().clamp(min=1e-6))
        factor = torch.linalg.cholesky(gram)
    inputs, offset = x if factor is None else factor, pull(x)
    weight, bias = torch.zeros_like(offset[:1].expand(inputs.shape[1], -1)), torch.zeros_like(offset[0])
    for strength in strengths:
        weight, bias = _minimize(replace(train, features=inputs), offset, (weight, bias), strength, loss)
        found = weight
        if factor is not None:  # the weights that give the same logits
            found = x.t() @ torch.linalg.solve_triangular(factor.t(), weight, upper=True)
        yield LinearMap(weight=pull.weight + found, bias=pull.bias + bias, strength=strength)


def _minimize(
    train: PooledRows, offset: Tensor, start: tuple[Tensor, Tensor], strength: float, loss: Loss
) -> tuple[Tensor, Tensor]:
    """Minimize the loss of `offset` plus a linear map, plus its penalty, by L-BFGS; return the weight and the bias.

    The variables are V = U W, where U'U = c X'X / N + s I approximates the matrix of second derivatives with the
    curvature c of logits at chance. Then few iterations are needed, and s |W|^2 is |V|^2 - c |X W|^2 / N.
    """
    x, outputs = train.features, offset.shape[1]
    curvature = max(1, outputs - 1) / outputs**2 / len(x)
    second = curvature * (x.t() @ x)
    second.diagonal().add_(strength)
    upper = torch.linalg.cholesky(second, upper=True)
    inputs = torch.linalg.solve_triangular(upper, x, upper=True, left=False)  # X inverse(U)
    variables = (upper @ start[0]).requires_grad_()
    bias = start[1].clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [variables, bias],
        max_iter=ITERATIONS,
        tolerance_grad=1e-4,
        tolerance_change=1e-6,
        line_search_fn="strong_wolfe",
    )

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        change = inputs @ variables
        penalty = (variables.square().sum() - curvature * change.square().sum()) / 2
        value = train.loss(loss, offset + change + bias) + penalty
        value.backward()
        return value

    optimizer.step(evaluate)  # pyright: ignore[reportArgumentType]
    weight = torch.linalg.solve_triangular(upper, variables.detach(), upper=True)
    return weight, bias.detach()


SOLVERS: dict[str, Solver] = {"ridge": solve_ridge, "logistic": solve_logistic}
"""The solvers by the name that a `LinearHead` gives."""


def _targets(labels: Tensor, outputs: int) -> Tensor:
    """Return what ridge regression fits: scores, or indicators of the classes. (N, C)"""
    if labels.ndim == 2:
        return 2 * labels.float() - 1  # several labels a row: zero is the threshold of each
    if labels.is_floating_point():
        return labels.float()[:, None]
    return functional.one_hot(labels, outputs).float()


def _is_classification(labels: Tensor) -> bool:
    """Return whether labels are classes or indicators, and not scores."""
    return not labels.is_floating_point() or labels.ndim == 2


def _as_logits(fitted: LinearMap, held_out: PooledRows, loss: Loss) -> LinearMap:
    """Scale the scores of a ridge regression, so that they are logits with the lowest loss."""
    scores = fitted(held_out.features)
    losses = {factor: float(held_out.loss(loss, factor * scores)) for factor in SCALES}
    scale = next(factor for factor, value in losses.items() if value <= min(losses.values()) + TOLERANCE)
    return replace(fitted, weight=fitted.weight * scale, bias=fitted.bias * scale)


def _solver_device() -> torch.device:
    """Return the device of the linear algebra: the CPU unless there is a CUDA GPU."""
    device = devices.device()
    return device if device.type == "cuda" else torch.device("cpu")
