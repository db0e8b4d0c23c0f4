"""A profile's tasks go to its queue or pod template, and a queue without a worker is named before anything is sent."""

import pytest

from warmup_tasks.airflow import routing
from warmup_tasks.airflow.routing import check_worker, route
from warmup_tasks.errors import ConfigurationError, GiveUpError
from warmup_tasks.settings import HardwareProfile, load_profiles

LARGE = HardwareProfile(name="large", queue="gpu.large", bandwidth_gb_per_s=2039, latency_ns=120, compute_tflops=312)


def test_a_queue_without_a_worker_is_named_with_what_to_do():
    with pytest.raises(
        ConfigurationError, match=r"'large'.*no worker serves its queue 'gpu\.large'.*default.*--queues"
    ):
        check_worker("large", "gpu.large", ask=lambda _: {"default"}, deadline_s=0.01)
    assert issubclass(ConfigurationError, GiveUpError), "no second try, no waiting"


def test_a_worker_that_answers_late_is_there():
    answers = iter([set(), {"default"}, {"default", "gpu.large"}])
    assert check_worker("large", "gpu.large", ask=lambda _: next(answers))["is_served"]


@pytest.mark.parametrize(
    ("executor", "is_asked"),
    [
        ("CeleryExecutor", True),
        ("LocalExecutor", False),
        ("KubernetesExecutor,CeleryExecutor", False),
        ("team:CeleryExecutor", True),
        ("airflow.providers.celery.executors.celery_executor.CeleryExecutor", True),
    ],
)
def test_only_celery_can_lack_a_worker(monkeypatch, executor, is_asked):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    monkeypatch.setattr(routing, "_celery_queues", lambda _: {"gpu.large"})
    assert (check_worker("large", "gpu.large")["how"] == "a worker answered") is is_asked


def test_a_broker_that_is_away_counts_as_nobody(monkeypatch):
    from airflow.providers.celery.executors.celery_executor_utils import app

    monkeypatch.setattr(app.conf, "broker_url", "redis://127.0.0.1:1/0")
    assert routing._celery_queues(0.2) == set()


def test_a_pod_template_lies_beside_the_profiles_file(tmp_path):
    path = tmp_path / "profiles.yaml"
    numbers = "bandwidth_gb_per_s: 300, latency_ns: 120, compute_tflops: 121"
    path.write_text(
        f"profiles:\n  - {{name: l4, queue: gpu.l4, {numbers}, pod_template: pods/l4.yaml}}\n"
        f"  - {{name: l40, queue: gpu.l40, {numbers}}}\n"
    )
    here, nowhere = load_profiles(path)
    template = str(tmp_path / "pods" / "l4.yaml")
    assert route(here) == {"queue": "gpu.l4", "executor_config": {"pod_template_file": template}}
    assert route(nowhere) == {"queue": "gpu.l40"}


@pytest.mark.parametrize("profile", ["large", "small"])
def test_the_shipped_pod_templates_make_pods_beside_the_replicas(profile):
    from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator

    (hardware,) = [known for known in load_profiles() if known.name == profile]
    pod = PodGenerator.deserialize_model_file(route(hardware)["executor_config"]["pod_template_file"])
    made = PodGenerator.construct_pod(
        dag_id="nightly_warmup",
        task_id=f"{profile}.twins",
        pod_id="p",
        try_number=1,
        kube_image="",
        date=None,
        args=["python", "-m", "airflow.sdk.execution_time.execute_workload"],
        pod_override_object=None,
        base_worker_pod=pod,
        namespace="ml",
        scheduler_job_id="1",
        run_id="r",
    )
    (container,) = made.spec.containers
    assert (container.name, container.image) == ("base", "warmup-tasks")
    assert made.spec.node_selector == {"warmup-profile": profile}
    assert made.metadata.labels["warmup-profile"] == profile
    assert container.args[-1].endswith("execute_workload")
