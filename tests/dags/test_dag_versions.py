"""A DAG that is parsed again is the same version: nothing of it depends on the clock, on chance or on the process."""

import json
import os
import subprocess
import sys

from tests.dags.nights import DAGS, REPOSITORY

HASHES = """
import json, sys
import airflow.settings
from airflow.dag_processing.dagbag import DagBag
from airflow.models.serialized_dag import SerializedDagModel
from airflow.serialization.serialized_objects import LazyDeserializedDAG
bag = DagBag(dag_folder=sys.argv[1])
assert bag.import_errors == {}, bag.import_errors
hashes = {name: SerializedDagModel.hash(LazyDeserializedDAG.from_dag(dag).data) for name, dag in bag.dags.items()}
print(json.dumps(hashes))
"""


def test_every_dag_is_the_same_version_in_another_process() -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", HASHES, str(DAGS)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        for seed in ("1", "2")
    ]
    first, second = (json.loads(run.communicate(timeout=120)[0].splitlines()[-1]) for run in runs)
    assert first == second
    assert {"nightly_warmup", "model_release"} <= set(first)
