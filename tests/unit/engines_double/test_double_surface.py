"""Each statement about the engine's behaviour, asked of the double over HTTP."""

import itertools
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import orjson
import pytest

from warmup_tasks.engines.double.process import start_double

BLOCK = 16
_fresh = itertools.count(1)


def prompt(count: int) -> list[int]:
    """Return token ids that no earlier prompt shares."""
    start = next(_fresh) * 100_000
    return list(range(start, start + count))


def complete(client: httpx.Client, content: object, **fields: object) -> dict:
    body = {"prompt": content, "max_tokens": 1, "temperature": 0} | fields
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached(response: dict) -> int:
    return response["usage"]["prompt_tokens_details"]["cached_tokens"]


def metric(client: httpx.Client, name: str) -> float:
    page = client.get("/metrics").text
    (value,) = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", page, flags=re.MULTILINE)
    return float(value)


def error(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["message"]


# cache


@pytest.mark.parametrize(("length", "expected"), [(15, 0), (16, 0), (17, 16), (32, 16), (33, 32), (2001, 2000)])
def test_same_prompt_twice_hits_whole_blocks_but_never_the_last_token(
    client: httpx.Client, length: int, expected: int
) -> None:
    ids = prompt(length)
    assert cached(complete(client, ids)) == 0
    assert cached(complete(client, ids)) == expected


def test_salts_separate(client: httpx.Client) -> None:
    ids = prompt(40)
    salts = [None, "one", "two"]
    assert [cached(complete(client, ids, cache_salt=salt)) for salt in salts] == [0, 0, 0]
    assert [cached(complete(client, ids, cache_salt=salt)) for salt in salts] == [32, 32, 32]


def test_answer_does_not_depend_on_salt_or_cache(client: httpx.Client) -> None:
    ids = prompt(40)
    texts = [
        complete(client, ids, cache_salt=salt, max_tokens=8)["choices"][0]["text"] for salt in (None, "one", "one")
    ]
    assert len(set(texts)) == 1


@pytest.mark.parametrize("salt", ["", "a@b", "a/b", "a\\b", "a\0b", "x" * 129])
def test_bad_salt_is_refused(client: httpx.Client, salt: str) -> None:
    status, message = error(client.post("/v1/completions", json={"prompt": "x", "cache_salt": salt}))
    assert status == 400
    assert "cache_salt" in message


def test_list_of_prompts_reports_cached_tokens_of_the_last_only(client: httpx.Client) -> None:
    warm, cold = prompt(33), prompt(33)
    complete(client, warm)
    assert cached(complete(client, [cold, warm])) == 32
    assert cached(complete(client, [warm, prompt(33)])) == 0


def test_full_cache_gives_up_the_oldest(client: httpx.Client) -> None:
    client.post("/reset_prefix_cache")
    prompts = [prompt(1000) for _ in range(12)]
    for ids in prompts:
        complete(client, ids)
    whole = [cached(complete(client, ids)) == 992 for ids in reversed(prompts)]
    assert whole[:9] == [True] * 9
    assert not any(whole[10:])


def test_prompts_that_run_together_compute_a_common_head_once(client: httpx.Client) -> None:
    head = prompt(960)
    tails = [prompt(20) for _ in range(8)]
    before = client.get("/double/state").json()["computed_prompt_tokens"]
    with ThreadPoolExecutor(8) as workers:
        list(workers.map(lambda tail: complete(client, head + tail), tails))
    computed = client.get("/double/state").json()["computed_prompt_tokens"] - before
    assert computed == len(head) + sum(map(len, tails))


def test_chat_and_its_token_ids_share_blocks(client: httpx.Client) -> None:
    chat = {
        "messages": [{"role": "system", "content": "shared " * 50}, {"role": "user", "content": "Hello"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    ids = client.post("/tokenize", json=chat).json()["tokens"]
    complete(client, ids)
    answer = client.post("/v1/chat/completions", json=chat | {"max_tokens": 1, "temperature": 0}).json()
    assert answer["usage"]["prompt_tokens"] == len(ids)
    assert cached(answer) == (len(ids) - 1) // BLOCK * BLOCK


def test_long_prompt_is_prefilled_in_chunks(client: httpx.Client) -> None:
    ids = prompt(5000)
    assert cached(complete(client, ids)) == 0
    assert cached(complete(client, ids)) == 4992
    assert client.get("/double/state").json()["blocks"]["held"] == 0


def test_counters_count_tokens(client: httpx.Client) -> None:
    names = ["prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "prompt_tokens_cached", "generation_tokens"]

    def read() -> list[float]:
        return [metric(client, f"vllm:{name}_total") for name in names]

    ids = prompt(100)
    before = read()
    complete(client, ids)
    complete(client, ids, max_tokens=3)
    assert [b - a for a, b in zip(before, read(), strict=True)] == [200, 96, 200, 96, 4]


def test_metrics_name_block_size_and_capacity(client: httpx.Client) -> None:
    page = client.get("/metrics").text
    (labels,) = re.findall(r"^vllm:cache_config_info\{(.*)\} 1.0$", page, flags=re.MULTILINE)
    assert 'block_size="16"' in labels
    assert 'num_gpu_blocks="600"' in labels
    for name in ("time_to_first_token_seconds", "request_prefill_time_seconds", "request_prefill_kv_computed_tokens"):
        assert f"vllm:{name}_bucket{{" in page
    for name in ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"):
        assert metric(client, f"vllm:{name}") == 0


# requests


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_max_tokens_zero_is_refused(client: httpx.Client, path: str) -> None:
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 0}
    assert error(client.post(path, json=body))[0] == 400


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"prompt": [1] * 9000}, 400),
        ({"prompt": ""}, 400),
        ({"prompt": []}, 400),
        ({"prompt": [-1]}, 400),
        ({}, 400),
        ({"prompt": "x", "model": "nobody"}, 404),
        ({"prompt": "x", "logprobs": 21}, 400),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, 400),
        ({"prompt": "x", "priority": 1}, 400),
    ],
)
def test_what_cannot_be_served_is_refused(client: httpx.Client, body: dict, status: int) -> None:
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == status


def test_broken_json_and_other_media_types_are_refused(client: httpx.Client) -> None:
    json_type = {"content-type": "application/json"}
    assert client.post("/v1/completions", content=b"{", headers=json_type).status_code == 400
    assert client.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"}).status_code == 400


def test_unknown_path_and_method(client: httpx.Client) -> None:
    assert (client.get("/nowhere").status_code, client.get("/nowhere").json()) == (404, {"detail": "Not Found"})
    assert client.get("/v1/completions").status_code == 405


def test_completion_logprobs(client: httpx.Client) -> None:
    logprobs = complete(client, "some prompt", max_tokens=3, logprobs=2)["choices"][0]["logprobs"]
    assert logprobs.keys() == {"text_offset", "token_logprobs", "tokens", "top_logprobs"}
    assert [len(top) for top in logprobs["top_logprobs"]] == [2, 2, 2]
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert top[token] == value == max(top.values())
    lengths = [len(token) for token in logprobs["tokens"]]
    assert logprobs["text_offset"] == [0, lengths[0], lengths[0] + lengths[1]]


def test_chat_logprobs(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "logprobs": True, "top_logprobs": 3}
    answer = client.post("/v1/chat/completions", json=body | {"temperature": 0}).json()
    choice = answer["choices"][0]
    content = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == choice["message"]["content"]
    assert all(entry["bytes"] == list(entry["token"].encode()) for entry in content)
    assert [len(entry["top_logprobs"]) for entry in content] == [3, 3]


def stream(client: httpx.Client, path: str, body: dict) -> tuple[list[dict], bool]:
    with client.stream("POST", path, json=body | {"stream": True}) as answer:
        assert answer.status_code == 200
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    return [orjson.loads(line) for line in lines if line != "[DONE]"], lines[-1] == "[DONE]"


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/v1/completions", {"prompt": "stream this"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ],
)
def test_stream_tells_the_same_as_the_whole(client: httpx.Client, path: str, content: dict) -> None:
    body = content | {"max_tokens": 6, "temperature": 0}
    whole = client.post(path, json=body).json()
    pieces, is_done = stream(client, path, body | {"stream_options": {"include_usage": True}})
    *pieces, last = pieces
    assert is_done
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert "cached_tokens" in last["usage"]["prompt_tokens_details"]
    choices = [piece["choices"][0] for piece in pieces]
    told = "".join(choice["text"] if "text" in choice else choice["delta"]["content"] for choice in choices)
    first = whole["choices"][0]
    assert told == (first["text"] if "text" in first else first["message"]["content"])
    assert choices[-1]["finish_reason"] == first["finish_reason"]


def test_stop_string_ends_the_answer(client: httpx.Client) -> None:
    text = complete(client, "stop test", max_tokens=5, ignore_eos=True)["choices"][0]["text"]
    second_word = text.split()[1]
    stopped = complete(client, "stop test", max_tokens=5, ignore_eos=True, stop=second_word)["choices"][0]
    assert stopped["text"] == text[: text.index(second_word)]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", second_word)


def test_temperature_draws_by_seed(client: httpx.Client) -> None:
    texts = [
        complete(client, "warm", max_tokens=12, temperature=1.0, seed=seed, ignore_eos=True)["choices"][0]["text"]
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_tokenize_and_detokenize(client: httpx.Client) -> None:
    told = client.post("/tokenize", json={"prompt": "Hello there", "return_token_strs": True}).json()
    assert (told["count"], told["max_model_len"]) == (len(told["tokens"]), 8192)
    assert "".join(told["token_strs"]) == "Hello there"
    assert client.post("/detokenize", json={"tokens": told["tokens"]}).json() == {"prompt": "Hello there"}


def test_embeddings_are_stable_unit_vectors(client: httpx.Client) -> None:
    body = {"input": ["reset my password", "reset the password", "quantum chromodynamics"]}
    one, two = (client.post("/v1/embeddings", json=body).json() for _ in range(2))
    assert one["data"] == two["data"]
    a, b, c = (item["embedding"] for item in one["data"])
    assert sum(x * x for x in a) == pytest.approx(1.0, abs=1e-5)
    similar, other = (sum(x * y for x, y in zip(a, v, strict=True)) for v in (b, c))
    assert similar > other


# adapters


def load(client: httpx.Client, name: str, path: str, **fields: object) -> httpx.Response:
    return client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path} | fields)


def unload(client: httpx.Client, name: str) -> httpx.Response:
    return client.post("/v1/unload_lora_adapter", json={"lora_name": name})


def test_loading_and_unloading(client: httpx.Client, write_adapter: Callable[..., str]) -> None:
    path = write_adapter("a")
    assert load(client, "a", path).status_code == 200
    status, message = error(load(client, "a", path))
    assert status == 400
    assert "has already been loaded" in message
    assert load(client, "a", path, load_inplace=True).status_code == 200
    card = next(card for card in client.get("/v1/models").json()["data"] if card["id"] == "a")
    assert (card["root"], card["parent"]) == (path, "double-base")
    assert unload(client, "a").status_code == 200
    assert error(unload(client, "a"))[0] == 404


def test_adapters_that_cannot_be_loaded(client: httpx.Client, write_adapter: Callable[..., str]) -> None:
    status, message = error(load(client, "b", "/nowhere/at/all"))
    assert status == 404
    assert "No adapter found" in message
    status, message = error(load(client, "b", write_adapter("b", rank=16)))
    assert status == 500
    assert "rank 16" in message
    assert error(load(client, "double-base", write_adapter("c")))[0] == 400
    assert "b" not in {card["id"] for card in client.get("/v1/models").json()["data"]}


def test_adapter_has_its_own_blocks_and_answers(client: httpx.Client, write_adapter: Callable[..., str]) -> None:
    ids = prompt(40)
    load(client, "own", write_adapter("own"))
    base = complete(client, ids, max_tokens=8)
    adapted = complete(client, ids, max_tokens=8, model="own")
    assert cached(adapted) == 0
    assert adapted["model"] == "own"
    assert adapted["choices"][0]["text"] != base["choices"][0]["text"]
    unload(client, "own")


@pytest.mark.parametrize("in_place", [True, False])
def test_weights_overwritten_at_the_same_path_give_stale_hits_and_a_wrong_answer(
    client: httpx.Client, write_adapter: Callable[..., str], in_place: bool
) -> None:
    ids = prompt(40)

    def answer(name: str) -> tuple[int, str]:
        told = complete(client, ids, max_tokens=12, model=name, ignore_eos=True)
        return cached(told), told["choices"][0]["text"]

    path = write_adapter("v1", b"first")
    load(client, "stale", path)
    _, old = answer("stale")
    write_adapter("v1", b"second")
    if not in_place:
        unload(client, "stale")
    assert load(client, "stale", path, load_inplace=in_place).status_code == 200
    hit, wrong = answer("stale")
    load(client, "right", write_adapter("v2", b"second"))
    right = answer("right")[1]
    assert hit == 32
    assert len({old, wrong, right}) == 3
    client.post("/reset_prefix_cache")
    assert answer("stale") == (0, right)
    for name in ("stale", "right"):
        unload(client, name)


def test_adapter_that_left_memory_is_read_again(write_adapter: Callable[..., str]) -> None:
    paths = {name: write_adapter(name, name.encode()) for name in ("a", "b")}
    with (
        start_double(time_scale=0, max_cpu_loras=1, max_loras=1, adapters=paths) as double,
        httpx.Client(base_url=double.url, timeout=10) as client,
    ):
        texts = [complete(client, "same prompt", model=m, max_tokens=8)["choices"][0]["text"] for m in "aba"]
        assert texts[0] == texts[2] != texts[1]


# epochs


def test_reset_fails_while_a_request_runs() -> None:
    settings = {"developer_mode": True, "latency": {"overhead_ms": 20.0}}
    with start_double(**settings) as double, httpx.Client(base_url=double.url, timeout=20) as client:
        body = {"prompt": prompt(40), "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as running:
            lines = running.iter_lines()
            next(lines)
            refused = client.post("/reset_prefix_cache")
            assert (refused.status_code, refused.json()) == (200, {"success": False})
        body = {"prompt": prompt(40), "max_tokens": 3}
        assert client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 3
        while client.get("/double/state").json()["running"]:
            threading.Event().wait(0.01)
        assert client.post("/reset_prefix_cache").json() == {"success": True}


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (["/reset_prefix_cache"], 0),
        (["/sleep?level=1", "/wake_up"], 0),
        (["/sleep?level=2", "/wake_up"], 0),
        (["/sleep?level=0", "/wake_up"], 32),
        (["/pause", "/resume"], 0),
        (["/pause?mode=keep", "/resume"], 32),
        (["/double/restart"], 0),
    ],
)
def test_what_ends_the_cache(client: httpx.Client, calls: list[str], expected: int) -> None:
    ids = prompt(40)
    complete(client, ids)
    for call in calls:
        assert client.post(call).status_code == 200
    assert cached(complete(client, ids)) == expected


def test_sleeping_is_told(client: httpx.Client) -> None:
    for call, expected in [("/sleep", True), ("/wake_up", False), ("/pause", True), ("/resume", False)]:
        client.post(call)
        assert client.get("/is_sleeping").json() == {"is_sleeping": expected}


def test_restart_in_place_begins_a_new_life(client: httpx.Client, write_adapter: Callable[..., str]) -> None:
    complete(client, prompt(40))
    load(client, "gone", write_adapter("gone"))
    start = metric(client, "process_start_time_seconds")
    client.post("/double/restart")
    assert metric(client, "process_start_time_seconds") > start
    assert metric(client, "vllm:prompt_tokens_total") == 0
    assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["double-base"]


def test_new_weights_leave_stale_hits(client: httpx.Client) -> None:
    ids = prompt(40)
    before = complete(client, ids, max_tokens=8)["choices"][0]["text"]
    client.post("/double/weights", json={"revision": "r2"})
    stale = complete(client, ids, max_tokens=8)
    right = complete(client, ids, max_tokens=8, cache_salt="other")["choices"][0]["text"]
    client.post("/double/weights", json={"revision": "r1"})
    assert cached(stale) == 32
    assert len({before, stale["choices"][0]["text"], right}) == 3


# access


def test_key_protects_v1_only() -> None:
    with start_double(api_key="secret", time_scale=0) as double, httpx.Client(base_url=double.url) as client:
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models").json() == {"error": "Unauthorized"}
        assert client.get("/v1/models", headers={"authorization": "Bearer secret"}).status_code == 200
        assert client.get("/metrics").status_code == 200
        assert client.post("/tokenize", json={"prompt": "x"}).status_code == 200


def test_developer_endpoints_are_absent_by_default() -> None:
    with start_double(runtime_adapters=False, embedding_dimensions=0) as double:
        for path in ("/reset_prefix_cache", "/sleep", "/pause", "/v1/load_lora_adapter", "/v1/embeddings"):
            answer = httpx.post(f"{double.url}{path}", json={"lora_name": "a", "lora_path": "/a", "input": "x"})
            assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"}), path
        assert httpx.get(f"{double.url}/server_info").status_code == 404
