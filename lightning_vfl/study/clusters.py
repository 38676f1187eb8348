"""The workers of joblib's backends dask and ray, on this machine unless the user names others."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def workers(backend: str, jobs: int, options: Mapping[str, Any]) -> Iterator[None]:
    """Have the backend's workers ready.

    Without a ``scheduler_host``, dask gets a client of its own with ``jobs`` processes of one thread, unless this
    process has a client already. Ray joins the cluster of the environment variable RAY_ADDRESS, or starts one here.
    Both are ended afterwards if they were started here. Loky, and dask with a ``scheduler_host``, need nothing.
    """
    if backend == "dask" and "scheduler_host" not in options:
        with _dask(jobs):
            yield
    elif backend == "ray":
        with _ray(jobs):
            yield
    else:
        yield


def is_death(error: BaseException) -> bool:
    """Whether this error of a backend says that a worker has died, and not that a run has failed."""
    kinds: tuple[type[BaseException], ...] = (BrokenProcessPool,)
    if "ray" in sys.modules:
        exceptions = import_module("ray.exceptions")
        kinds += (exceptions.RayActorError, exceptions.WorkerCrashedError)
    if "distributed" in sys.modules:
        kinds += (import_module("distributed").KilledWorker,)
    return isinstance(error, kinds)


@contextmanager
def _dask(jobs: int) -> Iterator[None]:
    distributed = import_module("distributed")
    try:
        distributed.get_client()
    except ValueError:  # there is none
        settings = {"n_workers": jobs, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
        with distributed.Client(**settings, silence_logs=logging.ERROR):
            yield
        return
    yield


@contextmanager
def _ray(jobs: int) -> Iterator[None]:
    logging.getLogger("ray").setLevel(logging.ERROR)  # its pool warns of an argument that joblib gives it
    ray = import_module("ray")
    import_module("ray.util.joblib").register_ray()
    if ray.is_initialized():
        yield
        return
    here = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": jobs, "include_dashboard": False}
    ray.init(logging_level=logging.ERROR, log_to_driver=False, **here)
    try:
        yield
    finally:
        ray.shutdown()
