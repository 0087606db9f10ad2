"""The posterior on the Snelson data as it is trained, as an animated GIF."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import gpflow_gpnet as gpn

from .. import plotting
from . import snelson

SECONDS_PER_FRAME = 0.2
LAST_FRAMES = 10
"""How often the last frame is shown, so that one can look at it."""


def frames(num_steps: int) -> list[int]:
    """Steps to draw: close together at first, when much happens."""
    steps = np.unique(np.geomspace(1, num_steps, 40).astype(int))
    return [0, *(int(step) for step in steps)]


def animate(problem: snelson.Problem, path: Path, num_steps: int, seed: int = 0) -> None:
    """Train GPNet by the published gradient steps, M = 20, and draw it after some of them.

    :param path: of the GIF.
    """
    import matplotlib.pyplot as plt
    from matplotlib.animation import PillowWriter

    model, optimizer, _ = snelson.gradient_gpnet(
        problem, 20, snelson.Budget(num_steps, num_steps, gpn.LinearDecay(0.01, num_steps))
    )
    wanted = set(frames(num_steps))
    figure, ax = plt.subplots(figsize=(6, 3), dpi=80)
    writer = PillowWriter(fps=round(1 / SECONDS_PER_FRAME))

    def draw(step: int) -> None:
        if step not in wanted:
            return
        ax.clear()
        plotting.posterior(model, problem.grid(1.0), problem.data, reference=problem.exact, ax=ax)
        ax.set(xlabel="x", ylabel="f(x)", ylim=(-3.5, 3.5), title=f"GPNet, step {step}")
        ax.legend(loc="lower left", fontsize=8)
        writer.grab_frame()

    with writer.saving(figure, str(path), dpi=80):
        figure.set_layout_engine("constrained")
        model.initialise(problem.data[0])
        draw(0)
        gpn.fit(
            model,
            problem.data,
            optimizer=optimizer,
            num_steps=num_steps,
            batch_size=snelson.BATCH_SIZE,
            callbacks=[draw],
            seed=seed,
            log_every=100,
        )
        for _ in range(LAST_FRAMES):
            writer.grab_frame()
    plt.close(figure)
