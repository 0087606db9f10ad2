"""GPyTorch's SVGP for the same data, inducing points, batch and float type. Extra: ``gpytorch``."""

from __future__ import annotations

import numpy as np

__all__ = ["GPyTorchSVGP", "is_installed"]


def is_installed() -> bool:
    """Whether GPyTorch is there to compare with."""
    try:
        import gpytorch  # noqa: F401
    except ImportError:
        return False
    return True


class GPyTorchSVGP:
    """Whitened SVGP with a squared exponential kernel, ARD, all parameters by Adam."""

    def __init__(
        self,
        Z: np.ndarray,
        num_data: int,
        learning_rate: float = 0.01,
        *,
        lengthscales: np.ndarray | None = None,
        variance: float | None = None,
        noise: float = 0.1,
    ) -> None:
        """
        :param Z: inducing inputs [M, D], trained.
        :param num_data: N.
        :param lengthscales: the kernel's at the start, [D]; by default the library's, as the
            variance is; noise: the variance of the likelihood.
        """
        import gpytorch
        import torch

        self.torch, self.gpytorch = torch, gpytorch
        inputs = torch.tensor(Z)

        class Model(gpytorch.models.ApproximateGP):  # type: ignore[misc]
            def __init__(self) -> None:
                q = gpytorch.variational.CholeskyVariationalDistribution(len(inputs))
                super().__init__(
                    gpytorch.variational.VariationalStrategy(
                        self, inputs, q, learn_inducing_locations=True
                    )
                )
                self.mean_module = gpytorch.means.ZeroMean()
                self.covar_module = gpytorch.kernels.ScaleKernel(
                    gpytorch.kernels.RBFKernel(ard_num_dims=inputs.shape[1])
                )

            def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
                return gpytorch.distributions.MultivariateNormal(
                    self.mean_module(x), self.covar_module(x)
                )

        self.model = Model().to(inputs.dtype)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood().to(inputs.dtype)
        self.likelihood.noise = noise
        if lengthscales is not None:
            self.model.covar_module.base_kernel.lengthscale = torch.tensor(lengthscales)
        if variance is not None:
            self.model.covar_module.outputscale = variance
        self.objective = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, num_data)
        parameters = [*self.model.parameters(), *self.likelihood.parameters()]
        self.adam = torch.optim.Adam(parameters, lr=learning_rate)

    def step(self, X: np.ndarray, Y: np.ndarray) -> float:
        """One Adam step on a batch; the loss before it, nats per datum."""
        self.model.train()
        self.likelihood.train()
        self.adam.zero_grad()
        output = self.model(self.torch.from_numpy(X))
        loss = -self.objective(output, self.torch.from_numpy(Y[:, 0]))
        loss.backward()
        self.adam.step()
        return loss.item()

    def predict_y(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of new observations, [N, 1] each."""
        self.model.eval()
        self.likelihood.eval()
        with self.torch.no_grad(), self.gpytorch.settings.skip_posterior_variances(False):
            y = self.likelihood(self.model(self.torch.from_numpy(X)))
            return y.mean.numpy()[:, None], y.variance.numpy()[:, None]

    def predict_log_density(self, data: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Of each row, [N], in nats."""
        mean, variance = self.predict_y(data[0])
        return -0.5 * (np.log(2.0 * np.pi * variance) + (data[1] - mean) ** 2 / variance)[:, 0]
