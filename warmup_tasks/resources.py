"""Where the package's data files lie: ``sql/``, ``include/`` and ``dags/``, in a checkout or in the wheel."""

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _data_path(folder: str) -> Path:
    wheel = _PACKAGE / "_data" / folder
    return wheel if wheel.is_dir() else _PACKAGE.parent / folder


def include_path(name: str) -> Path:
    """Return the path of a file under ``include/``."""
    return _data_path("include") / name


def dags_path() -> Path:
    """Return the folder of the DAG files."""
    return _data_path("dags")


@cache
def sql(name: str) -> str:
    """Return the text of one SQL statement by its name under ``sql/``, without the ending: ``sql("demand/heat")``."""
    return (_data_path("sql") / f"{name}.sql").read_text(encoding="utf-8")
