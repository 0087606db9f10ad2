"""What must work where the package was installed and the repository is not: `make check-dist`."""

import sys
from importlib import metadata, resources

import gpflow
import numpy as np

import gpflow_gpnet as gpn

where = str(resources.files(gpn))
assert where.startswith(sys.prefix), f"{where} is not the installed package"
assert metadata.version("gpflow_gpnet") == gpn.__version__
assert (resources.files(gpn) / "py.typed").is_file()

dataset = gpn.datasets.load("snelson")
kernel = gpflow.kernels.SquaredExponential()
network = gpn.RFE(kernel, input_dim=1, num_features=5)
model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(0.1), network, num_data=len(dataset.X))
gpn.fit(model, (dataset.X, dataset.Y), num_steps=2, progress=False)
assert np.isfinite(model.predict_y(dataset.X)[0]).all()
print(f"gpflow_gpnet {gpn.__version__} in {where} works")
