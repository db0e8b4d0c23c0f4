"""LoRA adapters: PEFT folders that are listed under a name and held in memory, least recently used first to go.

Here live the list, the memory and what a folder is read for: its rank and a digest of its files. Listing and memory are
two things, as in the engine: taking an adapter off the list leaves its blocks in the cache.
"""

import json
from collections import OrderedDict
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import xxhash

from warmup_tasks.engines.double.wire import ApiError


@dataclass(frozen=True, slots=True)
class Adapter:
    """One listed adapter. ``number`` is new with every load that is not in place."""

    name: str
    path: str
    number: int

    @property
    def key(self) -> tuple[str, str]:
        """What a block's key knows of the adapter: not its content."""
        return (self.name, self.path)


class AdapterStore:
    """The adapters of one replica, of one life: a restart makes a new store."""

    def __init__(self, base_model: str, max_lora_rank: int, max_cpu_loras: int) -> None:
        self._base_model = base_model
        self._max_rank = max_lora_rank
        self._max_resident = max_cpu_loras
        self._listed: dict[str, Adapter] = {}
        self._resident: OrderedDict[int, bytes] = OrderedDict()
        self._loads = 0

    def listing(self) -> list[Adapter]:
        """Return the listed adapters, oldest first."""
        return list(self._listed.values())

    def get(self, name: str) -> Adapter | None:
        """Return the adapter listed under this name."""
        return self._listed.get(name)

    def load(self, name: str, path: str, *, in_place: bool = False) -> Adapter:
        """List an adapter and read its weights. Raises ``ApiError`` as the engine words it."""
        if not name or not path:
            raise _refused("Both 'lora_name' and 'lora_path' must be provided.")
        if name == self._base_model:
            raise _refused(f"The lora adapter '{name}' conflicts with a served base model.")
        listed = self._listed.get(name)
        if listed is not None and not in_place:
            raise _refused(
                f"The lora adapter '{name}' has already been loaded. "
                "If you want to load the adapter in place, set 'load_inplace' to True."
            )
        weights = self._read(name, path)
        if listed is None:
            self._loads += 1
        adapter = Adapter(name, path, listed.number if listed else self._loads)
        self._listed[name] = adapter
        self._keep(adapter, weights)
        return adapter

    def unload(self, name: str) -> None:
        """Take an adapter off the list. Raises ``ApiError`` when it is not on it."""
        if not name:
            raise _refused("'lora_name' needs to be provided to unload a LoRA adapter.")
        if self._listed.pop(name, None) is None:
            raise ApiError(HTTPStatus.NOT_FOUND, f"The lora adapter '{name}' cannot be found.", kind="NotFoundError")

    def weights(self, adapter: Adapter) -> tuple[bytes, bool]:
        """Return the weights' digest, and whether they had to be read from disk because memory had let them go."""
        weights = self._resident.get(adapter.number)
        if weights is not None:
            self._resident.move_to_end(adapter.number)
            return weights, False
        weights = self._read(adapter.name, adapter.path)
        self._keep(adapter, weights)
        return weights, True

    def _keep(self, adapter: Adapter, weights: bytes) -> None:
        self._resident[adapter.number] = weights
        self._resident.move_to_end(adapter.number)
        while len(self._resident) > self._max_resident:
            self._resident.popitem(last=False)

    def _read(self, name: str, path: str) -> bytes:
        folder = Path(path)
        try:
            settings = json.loads((folder / "adapter_config.json").read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            message = f"Loading lora {name} failed: No adapter found for {path}"
            raise ApiError(HTTPStatus.NOT_FOUND, message, kind="NotFoundError") from error
        except (OSError, ValueError) as error:
            raise _failed(f"adapter_config.json cannot be read: {type(error).__name__}") from error
        rank = max([int(settings.get("r", 8)), *map(int, settings.get("rank_pattern", {}).values())])
        if rank > self._max_rank:
            raise _failed(f"LoRA rank {rank} is greater than max_lora_rank {self._max_rank}.")
        weights = sorted(p for p in folder.glob("adapter_model.*") if p.suffix in (".safetensors", ".bin", ".pt"))
        if not weights:
            raise _failed(f"{path} doesn't contain tensors")
        content = xxhash.xxh3_128()
        for part in (folder / "adapter_config.json", *weights):
            content.update(part.read_bytes())
        return content.digest()


def _refused(message: str) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, message, kind="InvalidUserInput")


def _failed(message: str) -> ApiError:
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, message, kind="InternalServerError")
