"""Rows per second and peak memory of streaming files of rows, at any number of rows.

    python benchmarks/stream.py --rows 10000000 --formats npz parquet csv

Writes the files into a temporary folder first (8 (D + 1) bytes a row), then measures in a process
of its own for each format: the pass that counts and finds the moments, and one shuffled epoch.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import describe_machine

from gpflow_gpnet.datasets import stream
from gpflow_gpnet.shards import ShardBatches

_INPUTS = 8
_SHARD = 500_000


def _write(folder: Path, kind: str, rows: int) -> float:
    """Files of at most 500,000 rows; their size in GB."""
    for index, start in enumerate(range(0, rows, _SHARD)):
        rng = np.random.default_rng(index)
        X = rng.normal(size=(min(_SHARD, rows - start), _INPUTS))
        Y = np.sin(X[:, :1]) + 0.1 * rng.normal(size=(len(X), 1))
        path = folder / f"part-{index:05d}.{kind}"
        if kind == "npz":
            np.savez(path, X=X, Y=Y)
            continue
        import pyarrow as pa
        from pyarrow import csv, parquet

        columns = {f"x{column}": X[:, column] for column in range(_INPUTS)}
        table = pa.table({**columns, "y": Y[:, 0]})
        (csv.write_csv if kind == "csv" else parquet.write_table)(table, path)
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e9


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _measure(folder: Path, kind: str, batch_size: int, buffer_rows: int) -> None:
    before, start = _peak_mb(), time.perf_counter()
    targets = None if kind == "npz" else "y"
    data = stream(folder / f"*.{kind}", targets=targets, buffer_rows=buffer_rows)
    one_pass, after_pass = time.perf_counter() - start, _peak_mb()
    start = time.perf_counter()
    batches = ShardBatches(data, batch_size, seed=0)
    rows = sum(len(batches(step)[0]) for step in range(batches.batches_per_epoch))
    epoch = time.perf_counter() - start
    assert rows == data.num_data
    print(
        f"{kind:8s} {rows:11,d} rows   pass {rows / one_pass:11,.0f} rows/s   epoch "
        f"{rows / epoch:11,.0f} rows/s   peak memory: start {before:5.0f} MB, pass "
        f"{after_pass:5.0f} MB, epoch {_peak_mb():5.0f} MB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--formats", nargs="+", default=["npz", "parquet", "csv"])
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--buffer-rows", type=int, default=100_000)
    arguments = parser.parse_args()
    print(describe_machine())
    for kind in arguments.formats:
        for rows in arguments.rows:
            with tempfile.TemporaryDirectory() as folder:
                size = _write(Path(folder), kind, rows)
                print(f"{kind}: {size:.2f} GB", flush=True)
                process = multiprocessing.get_context("spawn").Process(
                    target=_measure,
                    args=(Path(folder), kind, arguments.batch_size, arguments.buffer_rows),
                )
                process.start()
                process.join()
                if process.exitcode:
                    raise SystemExit(f"{kind} with {rows} rows failed.")


if __name__ == "__main__":
    main()
