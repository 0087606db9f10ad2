"""Section 5.3: images under the prior of an infinitely wide ConvNet."""

import argparse
import csv

import gpflow
import numpy as np
import pytest

from gpflow_gpnet.experiments import images
from gpflow_gpnet.experiments.__main__ import main


@pytest.fixture
def tiny_images(tmp_path):
    """Noise of three classes, one brighter than the other, in the files of MNIST and CIFAR-10."""
    rng = np.random.default_rng(0)
    for name, shape in (("mnist", (8, 8)), ("cifar10", (10, 10, 3))):
        arrays = {}
        for part, num in (("train", 30), ("test", 12)):
            labels = np.arange(num) % 3
            noise = rng.integers(0, 60, (num, *shape))
            bright = 90 * labels.reshape(-1, *[1] * len(shape))
            arrays |= {f"x_{part}": (noise + bright).astype(np.uint8), f"y_{part}": labels}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    return tmp_path


SMALL = "--width .02 --features 8 --batch-size 6 --measurement-points 4 --inducing 4".split()


def image_run(folder, out, *arguments):
    main(["images", "--data", str(folder), "--out", str(out), *SMALL, *arguments])
    return images.read(out / "results.csv")


@pytest.mark.slow
def test_images_by_all_methods(tiny_images, capsys):
    out = tiny_images / "out"
    rows = image_run(tiny_images, out, "--steps", "2")
    assert [row["method"] for row in rows] == list(images.CHOICES)
    for row in rows:
        assert 0.0 <= float(row["error"]) <= 1.0 and float(row["seconds"]) > 0.0
        if row["method"] == "exact regression":
            assert float(row["error"]) == 0.0, "classes differ in brightness alone"
        else:
            assert 0.0 < float(row["nlpd"]) < 10.0 and 0.0 <= float(row["auroc"]) <= 1.0
    text = capsys.readouterr().out
    assert "GPNet, CNN-GP (Shi et al. 2019), published" in text and "1.12 %" in text
    assert (out / "curves.png").stat().st_size > 5_000
    before = (out / "results.csv").read_text()
    image_run(tiny_images, out, "--steps", "2")
    assert (out / "results.csv").read_text() == before, "nothing is done again"


def test_images_go_on_from_a_checkpoint(tiny_images):
    """Colour images; four steps in two runs are about the same as four in one (sampled logits)."""
    arguments = "--dataset", "cifar10", "--preset", "paper", "--methods", "MAP", "GPNet"
    rows = []
    for name, runs in (("whole", (4,)), ("parts", (2, 4))):
        for steps in runs:
            (tiny_images / name / "results.csv").unlink(missing_ok=True)
            result = image_run(tiny_images, tiny_images / name, *arguments, "--steps", str(steps))
        rows.append(result[-1])
        assert [row["method"] for row in result] == ["MAP", "GPNet"]
    assert float(rows[0]["nlpd"]) == pytest.approx(float(rows[1]["nlpd"]), rel=0.01)
    with (tiny_images / "parts" / "GPNet" / "curve.csv").open() as file:
        assert [float(row["step"]) for row in csv.DictReader(file)] == [1, 2, 3, 4]


def test_a_folder_is_of_one_data_set_and_one_setting(tiny_images, capsys):
    out, arguments = tiny_images / "out", ("--methods", "MAP", "--steps", "2")
    before = image_run(tiny_images, out, *arguments)
    capsys.readouterr()
    assert image_run(tiny_images, out, *arguments[:3], "4") == before
    assert "after 2 steps: delete that line" in capsys.readouterr().out
    for option, name, values in (
        (("--seed", "1"), "seed", "0, not 1"),
        (("--dataset", "cifar10"), "dataset", "mnist, not cifar10"),
        (("--held-out", "3"), "held_out", "0, not 3"),
    ):
        with pytest.raises(ValueError, match=f"holds a run with {name} {values}: give another"):
            image_run(tiny_images, out, *arguments, *option)
    (out / "results.csv").unlink()
    rows = image_run(tiny_images, out, *arguments[:3], "1")
    assert rows[0]["steps"] == "2", "what the checkpoint has had"
    for option in ("--train-rows", "--test-rows"):
        with pytest.raises(SystemExit):
            image_run(tiny_images, tiny_images / "new", option, "0")
        assert f"{option}: must be at least 1, got 0" in capsys.readouterr().err
    with pytest.raises(ValueError, match="--held-out must be less than 30 images, got -5"):
        image_run(tiny_images, tiny_images / "new", "--held-out", "-5")


def test_a_run_that_fails_at_its_settings_leaves_none(tiny_images):
    arguments = "--methods", "MAP", "--steps", "1"
    with pytest.raises(ValueError, match="non-negative"):
        image_run(tiny_images, tiny_images / "out", *arguments, "--seed", "-1")
    assert len(image_run(tiny_images, tiny_images / "out", *arguments)) == 1


def test_a_fixed_mean_is_that_of_the_steps_asked_for(tiny_images):
    """Not the one which an earlier checkpoint of the variances holds."""
    settings = images.Settings(width=0.02, features=8, batch_size=6, learning_rate=0.05)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=1e-4)):
        problem = images.make_problem("mnist", tiny_images, None, None)
        X = problem.test[0]
        for steps in (2, 6):
            some = images.replace(settings, steps=steps)
            model, row = images.train(problem, "GPNet, mean fixed", some, tiny_images)
            mode, _ = images.train(problem, "MAP", some, tiny_images)
            assert row["steps"] == 1
            np.testing.assert_allclose(model.predict_f(X)[0], mode.predict_f(X)[0], atol=1e-5)


@pytest.mark.parametrize(
    ("text", "line"),
    [("what,ever\n", 1), (",".join(images.COLUMNS) + "\nMAP,3,2.7", 2)],
    ids=["other columns", "cut off"],
)
def test_damaged_results_are_named_before_training(tiny_images, text, line):
    path = tiny_images / "results.csv"
    path.write_text("")
    assert images.read(path) == []
    path.write_text(text)
    with pytest.raises(ValueError, match=f"results.csv, line {line} is not a whole line"):
        image_run(tiny_images, tiny_images, "--methods", "MAP", "--steps", "1")
    assert path.read_text() == text


def test_images_presets():
    paper = images.PRESETS["paper"]
    assert (paper.width, paper.learning_rate, paper.decay) == (1.0, 3e-4, False)
    assert float(paper.optimizer.step_size(0)) == pytest.approx(0.01)
    assert float(paper.optimizer.learning_rate(9_999)) == pytest.approx(3e-4)
    assert float(images.PRESETS["small"].optimizer.learning_rate(10_000)) == 0.0


def test_held_out_images_are_the_last_to_train_on(tiny_images):
    whole = images.make_problem("mnist", tiny_images, None, None)
    held = images.make_problem("mnist", tiny_images, None, None, held_out=10)
    assert len(held.train[0]) == 20 and len(held.test[0]) == 10
    np.testing.assert_array_equal(held.test[1], whole.train[1][20:])
    np.testing.assert_array_equal(held.train[1], whole.train[1][:20])
    with pytest.raises(ValueError, match="--held-out must be less than 30 images, got 30"):
        images.make_problem("mnist", tiny_images, None, None, held_out=30)


def test_models_have_the_same_prior_of_weights_and_the_setting_of_the_functions(tiny_images):
    settings = images.Settings(width=0.02, features=8, prior_variance=3.0)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=1e-4)):
        problem = images.make_problem("mnist", tiny_images, None, None)
        model, mode = images.gpnet(problem, settings), images.posterior_mode(problem, settings)
        X = problem.train[0][:5]
        np.testing.assert_allclose(model.kernel(X), 3.0 * problem.kernel(X), rtol=1e-5)
        assert not model.kernel.trainable_parameters
        model.inference_network.initialise(problem.train[0].numpy())
        densities = [m.log_prior_density().numpy() for m in (model, mode)]
        assert densities[0] == pytest.approx(densities[1], rel=1e-4)


@pytest.mark.parametrize(
    "option", ["subset", "inducing", "steps", "batch-size", "learning-rate", "prior-variance"]
)
def test_sizes_must_be_positive(option, capsys):
    parser = argparse.ArgumentParser()
    images.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([f"--{option}", "0"])
    assert f"argument --{option}: must be" in capsys.readouterr().err
