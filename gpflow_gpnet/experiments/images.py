"""Section 5.3 of the paper: MNIST or CIFAR-10 under the prior of an infinitely wide ConvNet.

The prior is a residual ConvNet's of six blocks, its hyperparameters fixed; GPNet's network is a
ConvNet of the same structure with a tangent-kernel head for each class. Beside it the same ConvNet
by maximum a posteriori, GPNet with that ConvNet's mean and nothing but its covariance trained,
exact regression on a subset with the same prior, and GPflow's SVGP. Writes results.csv, a curve for
each method, and a table with the published error rates. Run again, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import AnyNDArray, InputData, MeanAndVariance, RegressionData
from gpflow.keras import tf_keras
from gpflow.models import GPModel
from gpflow.models.training_mixins import ExternalDataTrainingLossMixin
from tabulate import tabulate
from tqdm.auto import tqdm

import gpflow_gpnet as gpn

from .. import classification
from ..image_datasets import ImageDataset, load_images
from .protocol import positive, positive_number

SUMMARY = "image classification with an infinite ConvNet's prior (section 5.3, table 2)"

PUBLISHED = {
    "mnist": {
        "SVGP, RBF-ARD (Krauth et al. 2016)": 0.0155,
        "Conv GP (van der Wilk et al. 2017)": 0.0122,
        "SVGP, CNN-GP (Garriga-Alonso et al. 2018)": 0.024,
        "GPNet, CNN-GP (Shi et al. 2019)": 0.0112,
        "NN-GP, exact regression (Lee et al. 2018)": 0.0121,
        "CNN-GP, exact regression (Garriga-Alonso et al. 2018)": 0.0096,
        "ResNet-GP, exact regression (Garriga-Alonso et al. 2018)": 0.0084,
        "CNN-GP, exact regression (Novak et al. 2019)": 0.0088,
    },
    "cifar10": {
        "Conv GP (van der Wilk et al. 2017)": 0.354,
        "GPNet, CNN-GP (Shi et al. 2019)": 0.2463,
        "NN-GP, exact regression (Lee et al. 2018)": 0.4434,
        "CNN-GP, exact regression (Novak et al. 2019)": 0.3286,
    },
}
"""Test error rates of the paper's table 2; the first half with classification likelihoods."""

COLUMNS = ("method", "steps", "seconds", *classification.METRICS, "auroc")

_CURVE = ("step", "seconds", "loss", "validation_nlpd")

_SETTINGS = "settings.json"
"""In a method's folder: what it was run with."""

_NOISES = np.geomspace(1e-4, 1.0, 13)


@dataclass(frozen=True)
class Settings:
    """What a run does."""

    width: float = 0.25
    features: int = 512
    steps: int = 10_000
    batch_size: int = 64
    measurement_points: int = 64
    learning_rate: float = 1e-3
    decay: bool = True
    """Whether the learning rate falls to 0 over the steps."""

    prior_variance: float = 1.0
    """Multiplies the prior's covariance."""

    beta0: float = 0.01
    xi: float = 0.1
    inducing: int = 500
    subset: int = 5000
    seed: int = 0

    @property
    def optimizer(self) -> gpn.FunctionalMirrorDescent:
        rate: Any = self.learning_rate
        if self.decay:
            rate = gpn.LinearDecay(rate, self.steps)
        return gpn.FunctionalMirrorDescent(gpn.InverseSqrt(self.beta0, self.xi), rate)

    @property
    def adam(self) -> Any:
        """With the same learning rates."""
        rate: Any = self.learning_rate
        if self.decay:
            rate = tf_keras.optimizers.schedules.PolynomialDecay(rate, self.steps, 0.0)
        return tf_keras.optimizers.Adam(rate)


PRESETS = {
    "small": Settings(),
    "paper": Settings(width=1.0, learning_rate=3e-4, decay=False),
}
"""For a machine of a few cores, and as published, which wants a GPU."""


@dataclass(frozen=True)
class Problem:
    """Standardised images as rows [N, D] in float32, and the fixed prior."""

    chosen: dict[str, Any]
    """The data set's name, and how many of its images."""
    images: ImageDataset
    train: tuple[tf.Tensor, tf.Tensor]
    test: tuple[AnyNDArray, AnyNDArray]
    others: AnyNDArray | None
    """Images of another data set, to be uncertain about."""

    kernel: gpn.kernels.ResNetKernel

    @property
    def num_classes(self) -> int:
        return self.images.num_classes


def make_problem(
    name: str, folder: Any, train_rows: int | None, test_rows: int | None, held_out: int = 0
) -> Problem:
    """The first rows of a data set; mean and spread are those of the training images' colours.

    :param held_out: so many of the last training images are the test images.
    """
    images = load_images(name, folder)
    if held_out:
        images = _without_test_images(images, held_out)
    levels = np.arange(256.0)
    counts = [np.bincount(colour.ravel(), minlength=256) for colour in _by_colour(images.X_train)]
    center = [np.average(levels, weights=times) for times in counts]
    spread = [
        np.sqrt(np.average((levels - mean) ** 2, weights=times))
        for mean, times in zip(center, counts, strict=True)
    ]

    def standardised(X: AnyNDArray) -> AnyNDArray:
        colours = [
            ((levels - mean) / sd).astype(np.float32)[colour]
            for colour, mean, sd in zip(_by_colour(X), center, spread, strict=True)
        ]
        return np.stack(colours, axis=-1).reshape(len(X), -1)

    kernel = gpn.kernels.ResNetKernel(images.image_shape)
    gpflow.set_trainable(kernel, False)
    others = _others(images, folder)
    return Problem(
        {"dataset": name, "train_rows": train_rows, "test_rows": test_rows, "held_out": held_out},
        images,
        (
            tf.constant(standardised(images.X_train[:train_rows])),
            tf.constant(images.Y_train[:train_rows].astype(np.float32)),
        ),
        (standardised(images.X_test[:test_rows]), images.Y_test[:test_rows]),
        None if others is None else standardised(others[:test_rows]),
        kernel,
    )


def _without_test_images(images: ImageDataset, held_out: int) -> ImageDataset:
    number = len(images.X_train) - held_out
    if held_out < 0 or number < 1:
        raise ValueError(
            f"--held-out must be less than {len(images.X_train)} images, got {held_out}."
        )
    X, Y = images.X_train, images.Y_train
    return replace(
        images, X_train=X[:number], Y_train=Y[:number], X_test=X[number:], Y_test=Y[number:]
    )


def _by_colour(X: AnyNDArray) -> list[AnyNDArray]:
    """[N, H, W, C] as C arrays [N, H, W] of 0 to 255."""
    return [X[..., colour] for colour in range(X.shape[-1])]


def _others(images: ImageDataset, folder: Any) -> AnyNDArray | None:
    """Test images of the other data set in this one's shape, where its file is there."""
    try:
        others = load_images("cifar10" if images.name == "mnist" else "mnist", folder).X_test
    except FileNotFoundError:
        return None
    height, width, colours = images.image_shape
    grey = others.mean(axis=3, keepdims=True) if colours == 1 else others[..., :1]
    resized = tf.image.resize_with_crop_or_pad(grey.astype(np.uint8), height, width).numpy()
    return np.tile(resized, [1, 1, 1, colours])


# ------------------------------------------------------------------ methods


class PosteriorMode(GPModel, ExternalDataTrainingLossMixin):
    """The mean of a ConvNTK by maximum a posteriori, the prior that of its weights: no variance."""

    def __init__(
        self, network: gpn.ConvNTK, kernel: Any, likelihood: Any, num_data: int, **kwargs: Any
    ) -> None:
        super().__init__(kernel, likelihood, **kwargs)
        self.network = network
        self.num_data = num_data
        gpflow.set_trainable(network.heads.variances, False)

    def maximum_log_likelihood_objective(self, data: RegressionData) -> tf.Tensor:
        """Log density of the data in nats, summed over ``num_data``."""
        X, Y = data
        logits, _ = self.predict_f(X)
        labels = tf.cast(Y[:, 0], tf.int32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return -self.num_data * tf.reduce_mean(losses)

    @inherit_check_shapes
    def predict_f(
        self, Xnew: InputData, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        mean, variance = self.network(Xnew)
        return mean, tf.zeros_like(variance)


def prior(problem: Problem, settings: Settings) -> gpflow.kernels.Kernel:
    """Of each class."""
    scale = gpflow.kernels.Constant(np.float32(settings.prior_variance))
    gpflow.set_trainable(scale, False)
    return scale * problem.kernel


def conv_ntk(problem: Problem, settings: Settings) -> gpn.ConvNTK:
    """The inference network."""
    return gpn.ConvNTK(
        problem.images.image_shape,
        problem.num_classes,
        width=settings.width,
        features=settings.features,
        kernel=prior(problem, settings),
        seed=settings.seed,
    )


def gpnet(problem: Problem, settings: Settings, network: gpn.ConvNTK | None = None) -> gpn.GPNet:
    """Measurement points are other training images, drawn anew at each step."""
    return gpn.GPNet(
        prior(problem, settings),
        gpflow.likelihoods.Softmax(problem.num_classes),
        conv_ntk(problem, settings) if network is None else network,
        num_latent_gps=problem.num_classes,
        num_data=len(problem.train[0]),
        measurement=gpn.measurement.Empirical(problem.train[0]),
        num_measurement_points=settings.measurement_points,
    )


def posterior_mode(problem: Problem, settings: Settings) -> PosteriorMode:
    """Starts as GPNet does."""
    network = conv_ntk(problem, settings)
    network.initialise(problem.train[0].numpy())
    return PosteriorMode(
        network,
        problem.kernel,
        gpflow.likelihoods.Softmax(problem.num_classes),
        len(problem.train[0]),
        num_latent_gps=problem.num_classes,
    )


def svgp_ard(problem: Problem, settings: Settings) -> gpflow.models.SVGP:
    """A lengthscale for each pixel, the size of images at first; inducing images from the data."""
    X = problem.train[0]
    lengthscales = np.full(X.shape[1], np.sqrt(X.shape[1]), np.float32)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=lengthscales)
    return _svgp(problem, kernel, X[: settings.inducing].numpy())


def svgp_convolutional(problem: Problem, settings: Settings) -> gpflow.models.SVGP:
    """van der Wilk et al. (2017): 5 x 5 patches, and inducing patches from the data."""
    height, width, colours = problem.images.image_shape
    kernel = gpflow.kernels.Convolutional(
        gpflow.kernels.SquaredExponential(lengthscales=np.float32(5.0)),
        [height, width],
        [5, 5],
        colour_channels=colours,
    )
    patches = kernel.get_patches(problem.train[0][:100]).numpy()
    patches = np.unique(patches.reshape(-1, patches.shape[-1]), axis=0)
    chosen = np.random.default_rng(settings.seed).permutation(len(patches))[: settings.inducing]
    return _svgp(problem, kernel, gpflow.inducing_variables.InducingPatches(patches[chosen]))


def _svgp(problem: Problem, kernel: Any, inducing: Any) -> gpflow.models.SVGP:
    return gpflow.models.SVGP(
        kernel,
        gpflow.likelihoods.Softmax(problem.num_classes),
        inducing,
        num_latent_gps=problem.num_classes,
        num_data=len(problem.train[0]),
    )


METHODS: dict[str, Callable[[Problem, Settings], Any]] = {
    "MAP": posterior_mode,
    "GPNet": gpnet,
    "SVGP, RBF-ARD": svgp_ard,
    "SVGP, Convolutional": svgp_convolutional,
}


CHOICES = ("MAP", "GPNet", "GPNet, mean fixed", "exact regression", *list(METHODS)[2:])
"""Of methods; the middle two are not models that one function makes and ``fit`` trains."""


# ------------------------------------------------------------------ training and scores


def train(
    problem: Problem, method: str, settings: Settings, out: Path
) -> tuple[Any, dict[str, float]]:
    """A trained model, its steps and seconds; goes on from what is in the folder.

    :raises ValueError: as :func:`check_settings`.
    """
    check_settings(problem, settings, method, out)
    folder, checkpoints, asked = _folder(out, method), "checkpoints", settings
    if method == "GPNet, mean fixed":
        mode, done = train(problem, "MAP", settings, out)
        checkpoints += f"-mean-of-{done['steps']:.0f}"  # they hold that mean too
        settings = replace(settings, steps=max(1, settings.steps // 5))
        model: Any = with_variance(problem, settings, mode.network)
    else:
        model = METHODS[method](problem, settings)
    _keep_settings(problem, asked, method, out)
    history = gpn.fit(
        model,
        problem.train,
        optimizer=settings.optimizer if isinstance(model, gpn.GPNet) else settings.adam,
        num_steps=settings.steps,
        batch_size=settings.batch_size,
        validation_data=tuple(values[:1000] for values in problem.test),
        checkpoint_dir=str(folder / checkpoints),
        checkpoint_every=500,
        log_every=20,
        seed=settings.seed,
    )
    # A resumed run's history holds what was before.
    (folder / "curve.csv").unlink(missing_ok=True)
    _append(folder / "curve.csv", _CURVE, zip(*(history[name] for name in _CURVE), strict=True))
    steps, seconds = (history[name][-1] for name in ("step", "seconds"))
    return model, {"steps": int(steps), "seconds": float(seconds)}


def _folder(out: Path, method: str) -> Path:
    return out / method.replace(", ", "-").replace(" ", "-")


def check_settings(problem: Problem, settings: Settings, method: str, out: Path) -> None:
    """More steps go on from those before; all else is another run.

    :raises ValueError: if the method's folder holds a run of other images or settings.
    """
    path = _folder(out, method) / _SETTINGS
    if not path.exists():
        return
    before = json.loads(path.read_text())
    for name, value in _recorded(problem, settings).items():
        if before.get(name) != value:
            raise ValueError(
                f"{path.parent} holds a run with {name} {before.get(name)}, not {value}: give "
                "another --out, or delete that folder and the method's row of results.csv."
            )


def _keep_settings(problem: Problem, settings: Settings, method: str, out: Path) -> None:
    path = _folder(out, method) / _SETTINGS
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_recorded(problem, settings), indent=1) + "\n")


def _recorded(problem: Problem, settings: Settings) -> dict[str, Any]:
    return problem.chosen | {k: v for k, v in asdict(settings).items() if k != "steps"}


def with_variance(problem: Problem, settings: Settings, network: gpn.ConvNTK) -> gpn.GPNet:
    """A trained network of which only the variances are still to be trained."""
    network.scale_variances(problem.train[0][:256].numpy())
    gpflow.set_trainable(network, False)
    gpflow.set_trainable(network.heads.variances, True)
    return gpnet(problem, settings, network)


def model_scores(problem: Problem, model: Any) -> dict[str, float]:
    """On the test images, and AUROC of the entropy of others' class probabilities."""
    inside = classification.class_probabilities(model, problem.test[0])
    values = classification.probability_scores(inside, problem.test[1])
    if problem.others is not None:
        outside = classification.class_probabilities(model, problem.others)
        values["auroc"] = classification.auroc(
            classification.entropy(inside), classification.entropy(outside)
        )
    return values


def exact_regression(problem: Problem, settings: Settings) -> dict[str, float]:
    """Error of exact GP regression on the first images, labels as -0.1 and 0.9.

    The ratio of noise to signal is that of the largest marginal likelihood.
    """
    X, labels = (np.asarray(values[: settings.subset]) for values in problem.train)
    targets = np.eye(problem.num_classes)[labels[:, 0].astype(int)] - 1.0 / problem.num_classes
    eigenvalues, vectors = np.linalg.eigh(problem.kernel(X).numpy().astype(np.float64))
    scale = eigenvalues.mean()
    squares = np.square(vectors.T @ targets)
    evidence = []
    for noise in _NOISES:
        spectrum = np.maximum(eigenvalues, 0.0) / scale + noise
        signal = np.mean(squares / spectrum[:, None])
        evidence.append(-np.sum(np.log(spectrum)) - len(X) * np.log(signal))
    spectrum = np.maximum(eigenvalues, 0.0) + scale * _NOISES[int(np.argmax(evidence))]
    weights = vectors @ ((vectors.T @ targets) / spectrum[:, None])
    wrong = 0
    X_test, Y_test = problem.test
    for start in tqdm(range(0, len(X_test), 500), disable=None, unit="batch"):
        rows = slice(start, start + 500)
        predicted = problem.kernel(X_test[rows], X).numpy() @ weights
        wrong += int(np.sum(predicted.argmax(axis=1) != Y_test[rows, 0]))
    return {"error": wrong / len(X_test)}


# ------------------------------------------------------------------ command line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the experiment."""
    parser.add_argument("--dataset", choices=list(PUBLISHED), default="mnist")
    parser.add_argument("--data", metavar="FOLDER", help="of mnist.npz, cifar10_jpeg.npz")
    parser.add_argument("--out", type=Path, help="output folder; default: results/images-DATASET")
    parser.add_argument("--preset", choices=list(PRESETS), default="small")
    parser.add_argument("--methods", nargs="*", choices=CHOICES, default=CHOICES)
    for name, kind, text in (
        ("width", positive_number, "multiplies the ConvNet's filters"),
        ("features", positive, "of the ConvNet's dense layer"),
        ("steps", positive, "of training"),
        ("batch-size", positive, "B"),
        ("measurement-points", positive, "M"),
        ("learning-rate", positive_number, "of Adam, at first"),
        ("prior-variance", positive_number, "multiplies the prior's covariance"),
        ("inducing", positive, "inducing images or patches of SVGP"),
        ("subset", positive, "training images of exact regression"),
        ("seed", int, "of everything"),
    ):
        parser.add_argument(f"--{name}", type=kind, help=f"{text}; default: the preset's")
    parser.add_argument("--train-rows", type=positive, help="only the first training images")
    parser.add_argument("--test-rows", type=positive, help="only the first test images")
    parser.add_argument(
        "--held-out",
        type=int,
        default=0,
        metavar="IMAGES",
        help="take so many of the last training images for test images, to choose settings by",
    )


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train what has not been trained, in float32; write results.csv and print the table."""
    settings = PRESETS[options.preset]
    for name in (field.name for field in fields(Settings)):
        value = getattr(options, name, None)
        if value is not None:
            settings = replace(settings, **{name: value})
    out = options.out or Path("results") / f"images-{options.dataset}"
    out.mkdir(parents=True, exist_ok=True)
    results = out / "results.csv"
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=1e-4)):
        problem = make_problem(
            options.dataset,
            options.data,
            options.train_rows,
            options.test_rows,
            options.held_out,
        )
        known = {row["method"]: row for row in read(results)}
        for method in options.methods:
            check_settings(problem, settings, method, out)
        for method in options.methods:
            if method in known:
                steps = f" after {number} steps" if (number := known[method]["steps"]) else ""
                print(f"{method} is in {results}{steps}: delete that line to have it go on.")
                continue
            started = time.perf_counter()
            if method == "exact regression":
                row = exact_regression(problem, settings)
                row["seconds"] = time.perf_counter() - started
                _keep_settings(problem, settings, method, out)
            else:
                model, row = train(problem, method, settings, out)
                row |= model_scores(problem, model)
            _append(results, COLUMNS, [[method, *(row.get(name, "") for name in COLUMNS[1:])]])
            print(
                f"{method}: test error {100 * row['error']:.2f} %, {row['seconds']:.0f} s",
                flush=True,
            )
    rows = read(results)
    print(table(options.dataset, rows))
    _draw_curves(out)
    print(f"Written to {out}.")
    return rows


def read(path: Path) -> list[dict[str, Any]]:
    """Rows that are there.

    :raises ValueError: for a file that is not one of results.
    """
    if not path.exists() or not path.stat().st_size:
        return []
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    for number, values in enumerate((header, *rows), start=1):
        if len(values) != len(COLUMNS) or (number == 1 and tuple(header) != COLUMNS):
            raise ValueError(
                f"{path}, line {number} is not a whole line of results, got {values}: delete it."
            )
    return [dict(zip(COLUMNS, values, strict=True)) for values in rows]


def _append(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    new = not path.exists() or not path.stat().st_size
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(columns)
        writer.writerows(rows)


def table(dataset: str, rows: list[dict[str, Any]]) -> str:
    """What was run, and the paper's table 2, marked as published."""
    cells = []
    for row in rows:
        values = [row[name] for name in classification.METRICS[1:]] + [row["auroc"]]
        error, seconds = f"{100 * float(row['error']):.2f} %", f"{float(row['seconds']):.0f}"
        scores = [f"{float(value):.4f}" if value else "–" for value in values]
        cells.append([row["method"], error, *scores, row["steps"] or "–", seconds])
    for name, value in PUBLISHED[dataset].items():
        cells.append([f"{name}, published", f"{100 * value:.2f} %", *["–"] * 6])
    headers = ["method", "test error", "NLPD", "Brier", "ECE", "AUROC", "steps", "seconds"]
    return str(tabulate(cells, headers, tablefmt="github", disable_numparse=True))


def _draw_curves(out: Path) -> None:
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(7, 4))
    for path in sorted(out.glob("*/curve.csv")):
        values = np.genfromtxt(path, delimiter=",", names=True)
        scored = np.isfinite(np.atleast_1d(values["validation_nlpd"]))
        steps, nlpd = (np.atleast_1d(values[k])[scored] for k in ("step", "validation_nlpd"))
        ax.plot(steps, nlpd, label=path.parent.name)
    ax.set_xlabel("step")
    ax.set_ylabel("negative log probability, 1,000 test images [nats]")
    ax.set_yscale("log")
    ax.legend()
    figure.tight_layout()
    figure.savefig(out / "curves.png", dpi=150)
    plt.close(figure)
