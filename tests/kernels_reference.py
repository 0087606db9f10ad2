"""Covariances of infinite ConvNets by neural-tangents, for test_kernels.py to compare with.

Needs an environment of its own (Novak et al. 2020; the last release, 0.6.5, wants an older JAX):

    pip install "neural-tangents==0.6.5" "jax==0.4.25" "jaxlib==0.4.25" "numpy<2" "scipy<1.13" \\
        "tf2jax==0.3.6"
    python tests/kernels_reference.py      # writes kernels_reference.npz beside this file
"""

from pathlib import Path

import numpy as np

IMAGES = (6, 7, 2)
WEIGHTS, BIASES = 1.7, 0.3


def inputs():
    """Two sets of images, flat; the last image of the first is the first one's double."""
    rng = np.random.default_rng(0)
    X, X2 = rng.normal(size=(4, 84)), rng.normal(size=(3, 84))
    X[3] = 2.0 * X[0]
    return X, X2


def networks():
    from neural_tangents import stax

    def convolution(size=3, stride=1, padding="SAME", biases=BIASES):
        return stax.Conv(
            1,
            (size, size),
            (stride, stride),
            padding,
            W_std=np.sqrt(WEIGHTS),
            b_std=np.sqrt(biases) if biases else None,
        )

    def dense(biases=BIASES):
        b_std = np.sqrt(biases) if biases else None
        return stax.serial(stax.Flatten(), stax.Dense(1, W_std=np.sqrt(WEIGHTS), b_std=b_std))

    def block(stride):
        main = stax.serial(stax.Relu(), convolution(3, stride), stax.Relu(), convolution())
        past = stax.Identity() if stride == 1 else convolution(1, stride)
        return stax.serial(stax.FanOut(2), stax.parallel(main, past), stax.FanInSum())

    relu, erf = stax.Relu(), stax.Erf()
    unbiased = convolution(biases=0.0)
    residual = [block(stride) for stride in (1, 1, 2, 1, 2, 1)]
    valid = convolution(3, 1, "VALID"), erf, convolution(3, 2, "VALID"), erf
    return {
        "relu": stax.serial(*[convolution(), relu] * 3, dense()),
        "relu, no biases": stax.serial(unbiased, relu, unbiased, relu, dense(0.0)),
        "relu, even filters": stax.serial(convolution(4), relu, convolution(4, 3), relu, dense()),
        "erf, same": stax.serial(convolution(3, 2), erf, convolution(), erf, dense()),
        "erf, valid": stax.serial(*valid, dense()),
        "residual": stax.serial(convolution(), *residual, relu, dense()),
    }


def main():
    import jax

    jax.config.update("jax_enable_x64", True)
    X, X2 = (values.reshape(-1, *IMAGES) for values in inputs())
    tables = {}
    for name, (_, _, kernel) in networks().items():
        tables[name] = np.asarray(kernel(X, X2, get="nngp"))
        tables[f"{name}, symmetric"] = np.asarray(kernel(X, None, get="nngp"))
    np.savez(Path(__file__).with_suffix(".npz"), **tables)


if __name__ == "__main__":
    main()
