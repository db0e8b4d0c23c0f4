"""Each fault does what its name says, and nothing when it is off."""

import contextlib
from collections import Counter

import httpx
import pytest

from warmup_tasks.engines.double.config import DoubleConfig, command, parse_config
from warmup_tasks.engines.double.faults import Chance, FaultBoard, Faults
from warmup_tasks.engines.double.process import start_double
from warmup_tasks.errors import RetryLaterError

TEXT = "a prompt that is long enough for a block or two, since shorter ones cannot hit " * 2


def set_faults(client: httpx.Client, **faults: object) -> None:
    assert client.post("/double/faults", json=faults).status_code == 200


def complete(client: httpx.Client, **fields: object) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": TEXT, "max_tokens": 4, "temperature": 0} | fields)


def usage_of(answer: httpx.Response) -> dict:
    return answer.json()["usage"]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("null", {"prompt_tokens_details": None}),
        ("null_cached_tokens", {"prompt_tokens_details": {"cached_tokens": None}}),
        ("absent", {}),
    ],
)
def test_usage_details(client: httpx.Client, state: str, expected: dict) -> None:
    set_faults(client, usage_details=state)
    usage = usage_of(complete(client))
    assert {k: v for k, v in usage.items() if k == "prompt_tokens_details"} == expected


def test_no_usage_at_all(client: httpx.Client) -> None:
    set_faults(client, usage_details="no_usage")
    assert usage_of(complete(client)) is None


def test_ignored_salts_hit(client: httpx.Client) -> None:
    set_faults(client, ignore_salt=True)
    complete(client, cache_salt="one")
    assert usage_of(complete(client, cache_salt="two"))["prompt_tokens_details"]["cached_tokens"] > 0


def test_forgetting_to_evict_keeps_everything(client: httpx.Client) -> None:
    set_faults(client, forget_to_evict=True)
    prompts = [list(range(start, start + 1000)) for start in range(10**6, 10**6 + 15_000, 1000)]
    for prompt in prompts:
        complete(client, prompt=prompt)
    assert all(usage_of(complete(client, prompt=p))["prompt_tokens_details"]["cached_tokens"] == 992 for p in prompts)
    client.post("/double/restart")


def test_wrong_answers_on_hits_only(client: httpx.Client) -> None:
    cold = complete(client, cache_salt="cold-1").json()["choices"][0]["text"]
    set_faults(client, wrong_answers="on_hit")
    assert complete(client, cache_salt="cold-2").json()["choices"][0]["text"] == cold
    assert complete(client, cache_salt="cold-2").json()["choices"][0]["text"] != cold


def test_drift_differs_from_call_to_call(client: httpx.Client) -> None:
    set_faults(client, logprob_drift=0.01)
    first, second = (complete(client, logprobs=1).json()["choices"][0]["logprobs"]["token_logprobs"] for _ in range(2))
    assert first != second


@pytest.mark.parametrize(("fault", "status"), [("refuse", 429), ("fail", 500)])
def test_error_with_a_limit(client: httpx.Client, fault: str, status: int) -> None:
    set_faults(client, **{fault: {"share": 1.0, "limit": 2}})
    assert [complete(client).status_code for _ in range(3)] == [status, status, 200]


def test_hanging_request_leaves_nothing_behind(client: httpx.Client) -> None:
    set_faults(client, hang={"share": 1.0, "limit": 1})
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json={"prompt": TEXT}, timeout=0.2)
    assert complete(client).status_code == 200
    assert client.get("/double/state").json()["blocks"]["held"] == 0


def test_stream_that_breaks_with_an_error(client: httpx.Client) -> None:
    set_faults(client, break_stream={"share": 1.0, "limit": 1})
    with client.stream("POST", "/v1/completions", json={"prompt": TEXT, "stream": True}) as answer:
        assert answer.status_code == 200
        assert '"code":500' in answer.read().decode()


def test_stream_that_breaks_off(client: httpx.Client) -> None:
    set_faults(client, break_stream={"share": 1.0, "limit": 1}, break_stream_by="disconnect")
    with (
        client.stream("POST", "/v1/completions", json={"prompt": TEXT, "stream": True}) as answer,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        answer.read()


def test_paths_answer_with_another_status(client: httpx.Client) -> None:
    set_faults(client, endpoint_status={"/tokenize": 422})
    assert client.post("/tokenize", json={"prompt": "x"}).status_code == 422


def test_missing_metric_is_missing(client: httpx.Client) -> None:
    set_faults(client, missing_metrics=["vllm:prefix_cache_hits"])
    page = client.get("/metrics").text
    assert "prefix_cache_hits" not in page.replace("external_prefix_cache_hits", "")
    assert "vllm:prefix_cache_queries_total" in page


def test_runtime_adapters_off(client: httpx.Client) -> None:
    set_faults(client, runtime_adapters_off=True)
    answer = client.post("/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": "/a"})
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


def test_unknown_fault_is_refused(client: httpx.Client) -> None:
    assert client.post("/double/faults", json={"no_such_fault": True}).status_code == 422


def test_chance_strikes_its_share_by_seed() -> None:
    def struck(seed: int) -> list[bool]:
        board = FaultBoard(Faults(fail=Chance(share=0.3)), seed)
        return [board.strikes("fail") for _ in range(2000)]

    assert struck(1) == struck(1) != struck(2)
    assert 500 < Counter(struck(1))[True] < 700


def test_command_line_carries_the_whole_configuration() -> None:
    config = DoubleConfig(
        model="m", api_key="0123", adapters={"a": "/p q"}, time_scale=0.5, faults=Faults(fail=Chance(share=0.1))
    )
    assert parse_config(command(config)[3:]) == config


def test_configuration_file_and_flags(tmp_path: pytest.TempPathFactory) -> None:
    path = tmp_path / "double.yaml"
    path.write_text("block_size: 32\nmodel: from-file\n")
    config = parse_config(["--config", str(path), "--model", "from-flag"])
    assert (config.block_size, config.model) == (32, "from-flag")


def test_cache_smaller_than_the_context_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_config(["--num-gpu-blocks", "10"])
    assert "raise num_gpu_blocks" in capsys.readouterr().err


def test_double_that_cannot_start_says_why() -> None:
    with pytest.raises(RetryLaterError, match="No adapter found"):
        start_double(adapters={"a": "/nowhere"}, deadline_s=10)


def test_stop_ends_the_process() -> None:
    double = start_double()
    double.stop()
    double.stop()
    with contextlib.closing(httpx.Client()) as client, pytest.raises(httpx.ConnectError):
        client.get(f"{double.url}/health")


def test_cold_tokens_take_their_time_and_cached_ones_do_not() -> None:
    latency = {"overhead_ms": 0, "per_token_ms": 1.0, "per_sequence_ms": 0, "per_million_pairs_ms": 0}
    with start_double(latency=latency) as double, httpx.Client(base_url=double.url, timeout=10) as client:
        prompt = list(range(400))
        cold = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1})
        warm = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1})
    assert cold.elapsed.total_seconds() >= 0.399
    assert warm.elapsed < cold.elapsed
