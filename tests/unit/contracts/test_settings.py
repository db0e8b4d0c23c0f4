"""Configuration files: what is taken, what is refused, and that the refusal says what to change."""

from copy import deepcopy

import pytest
import yaml

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.fleet_file import FleetFile, load_fleet
from warmup_tasks.identity import SaltMode, check_salt
from warmup_tasks.settings import ProfilesFile, RunRequest, Site, load_profiles, validate

FLEET = {
    "models": [{"name": "m", "weights_revision": "r1"}],
    "replicas": [
        {"name": "large-0", "url": "http://one:8000", "profile": "large", "model": "m"},
        {"name": "small-0", "url": "http://two:8000/", "profile": "small", "model": "m"},
    ],
    "adapters": [{"name": "sql", "version": "7", "path": "/a/sql-7", "base_model": "m"}],
    "tenants": [
        {"name": "acme/eu", "salt_mode": "derived", "tenant_class": "gold"},
        {"name": "logs", "salt_mode": "as_logged"},
    ],
    "embedder": {"embedder": "feature-hashing", "revision": "1", "dimensions": 384},
}


def changed(path: str, value: object) -> dict:
    data = deepcopy(FLEET)
    *parents, last = path.split(".")
    place = data
    for part in parents:
        place = place[int(part)] if part.isdigit() else place[part]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return data


@pytest.fixture
def fleet() -> FleetFile:
    return validate(FLEET, FleetFile, "fleet")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("embedder", KeyError, "- embedder: Field required"),
        ("models", [], "- models: List should have at least 1"),
        ("replicas.0.model", "other", "replica large-0: model 'other' is not under models"),
        ("replicas.1.name", "large-0", "replica 'large-0' stands twice"),
        ("replicas.1.url", "http://one:8000/v1", "replica address 'http://one:8000' stands twice"),
        ("replicas.0.url", "one:8000", "- replicas.0.url: String should match"),
        ("replicas.0.name", "a b", "- replicas.0.name: String should match"),
        ("replicas.0.card", "A100", "- replicas.0.card: Extra inputs"),
        ("adapters.0.base_model", "x", "adapter sql: base_model 'x' is not under models"),
        ("adapters.0.name", "m", "adapter m: a model has that name too"),
        ("adapters.0.version", "", "- adapters.0.version: String should have at least 1"),
        ("tenants.1.name", "acme/eu", "tenant 'acme/eu' stands twice"),
        ("tenants.0.salt_mode", "random", "'none', 'as_logged' or 'derived'"),
        ("tenants.0.name", "", "- tenants.0.name: String should have at least 1"),
        ("embedder.dimensions", 0, "- embedder.dimensions: Input should be greater"),
        ("schema_version", 2, "- schema_version: Input should be 1"),
    ],
)
def test_fleet_files_are_refused_with_the_place(path, value, said):
    with pytest.raises(ConfigurationError) as refusal:
        validate(changed(path, value), FleetFile, "fleet.yaml")
    assert said in str(refusal.value)
    assert str(refusal.value).startswith("fleet.yaml refused:")


def test_a_refusal_does_not_echo_the_file():
    data = changed("replicas.1.name", "large-0")
    with pytest.raises(ConfigurationError) as refusal:
        validate(data, FleetFile, "fleet")
    assert "/a/sql-7" not in str(refusal.value)


def test_addresses_lose_what_clients_add(fleet):
    assert fleet.replica("small-0").url == "http://two:8000"


def test_unknown_names_are_answered_with_the_known_ones(fleet):
    with pytest.raises(ConfigurationError, match=r"no replica 'x' in the fleet; known: large-0, small-0"):
        fleet.replica("x")
    with pytest.raises(ConfigurationError, match=r"no model 'x' in the fleet; known: m"):
        fleet.model("x")
    with pytest.raises(ConfigurationError, match="add it with version and path"):
        fleet.identity("m", "legal")


def test_declared_identities(fleet):
    base, lora = fleet.identity("m"), fleet.identity("m", "sql")
    assert base.weights_revision.declared == "r1"
    assert (lora.adapter, lora.adapter_version.value) == ("sql", "7")
    assert base.digest() != lora.digest()


def test_logs_without_a_model_mean_the_only_one(fleet):
    assert [fleet.served_model(name) for name in (None, "", "default", "m", "gpt-x")] == ["m", "m", "m", "m", None]
    two = changed("models", [{"name": "m"}, {"name": "n"}])
    both = validate(two, FleetFile, "fleet")
    assert [both.served_model(name) for name in (None, "default", "n")] == [None, None, "n"]


def test_live_salts_are_what_traffic_sends(fleet):
    identity = fleet.identity("m").digest()
    derived = fleet.live_salt("acme/eu", "whatever", identity)
    check_salt(derived)
    assert derived == fleet.live_salt("acme/eu", None, identity)
    assert fleet.live_salt("logs", "s1", identity) == "s1"
    assert fleet.live_salt("logs", None, identity) is None
    assert fleet.live_salt("unknown", "s1", identity) is None
    assert fleet.tenant("unknown").salt_mode is SaltMode.NONE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("profiles: [", "not YAML"),
        ("", "Input should be a valid dictionary"),
        ("profiles: []", "at least 1"),
        (
            "profiles: [{name: A b, queue: q, bandwidth_gb_per_s: 1, latency_ns: 1, compute_tflops: 0}]",
            "profiles.0.name",
        ),
        (
            "profiles: [{name: a, queue: '', bandwidth_gb_per_s: 1, latency_ns: 1, compute_tflops: 0}]",
            "profiles.0.queue",
        ),
        (
            "profiles: [{name: a, queue: q, bandwidth_gb_per_s: 0, latency_ns: 1, compute_tflops: 0}]",
            "bandwidth_gb_per_s",
        ),
    ],
)
def test_profiles_files_are_refused_with_file_and_field(tmp_path, text, said):
    path = tmp_path / "profiles.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as refusal:
        load_profiles(path)
    assert str(path) in str(refusal.value)
    assert said in str(refusal.value)


def test_profile_names_are_unique():
    profile = {"name": "a", "queue": "q", "bandwidth_gb_per_s": 1, "latency_ns": 1, "compute_tflops": 0}
    with pytest.raises(ConfigurationError, match="unique"):
        validate({"profiles": [profile, profile]}, ProfilesFile, "profiles")


def test_files_that_are_none(tmp_path):
    with pytest.raises(ConfigurationError, match="no such file"):
        load_fleet(tmp_path / "absent.yaml")
    with pytest.raises(ConfigurationError, match="cannot be read as text"):
        load_fleet(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="cannot be read as text"):
        load_fleet(binary)


def test_yaml_cannot_build_objects(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text("models: !!python/object/apply:os.getcwd []")
    with pytest.raises(ConfigurationError, match="not YAML"):
        load_fleet(path)


def test_a_fleet_file_survives_its_own_yaml(tmp_path, fleet):
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(fleet.model_dump(mode="json")))
    assert load_fleet(path) == fleet


def test_the_profiles_that_the_package_brings(monkeypatch):
    monkeypatch.delenv("WARMUP_PROFILES", raising=False)
    assert {profile.name for profile in load_profiles()} == {"large", "small"}


def test_a_site_names_every_missing_variable():
    with pytest.raises(ConfigurationError, match="set WARMUP_REDIS_URL, WARMUP_FLEET"):
        Site.from_environment({"WARMUP_LAKE": "/lake"})
    site = Site.from_environment({"WARMUP_LAKE": "/lake", "WARMUP_REDIS_URL": "redis://x", "WARMUP_FLEET": "f.yaml"})
    assert site.profiles_path.endswith("profiles.yaml")


def test_what_an_operator_types_is_refused_by_name():
    for values, name in (({"as_of": "gestern"}, "as_of"), ({"seed": -1}, "seed"), ({"modles": []}, "modles")):
        with pytest.raises(ConfigurationError, match=f"- {name}: "):
            validate(values, RunRequest, "params")
    assert validate({}, RunRequest, "params").as_of is None


def test_a_password_in_a_log_address_is_refused_and_not_repeated():
    with pytest.raises(ConfigurationError, match="PGPASSWORD") as refused:
        validate({"log": "postgresql://u:s3cret@h/db"}, RunRequest, "options")
    assert "s3cret" not in str(refused.value)
    assert validate({"log": "postgresql://u@h/db"}, RunRequest, "options").log == "postgresql://u@h/db"
