import os
from pathlib import Path

import psycopg
import pytest

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.local import postgres_server as module
from warmup_tasks.local.postgres_server import PostgresServer


def plain(url: str) -> str:
    return url.replace("+psycopg", "")


@pytest.mark.parametrize("binaries", [None, module._bundled()[0]], ids=["found", "from pip"])
def test_serves_an_empty_database_and_leaves_nothing(binaries):
    with PostgresServer(binaries=binaries) as server:
        with psycopg.connect(plain(server.url)) as connection:
            assert connection.execute("SELECT 1 + 1").fetchone() == (2,)
        folder, pid = server._home, server._process.pid
        assert os.getpgid(pid) == pid
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_asks_for_the_password():
    with PostgresServer() as server, pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(plain(server.url).replace(server._password, "guess"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
def test_programs_in_a_closed_folder_are_run_from_a_copy(tmp_path):
    real = module.find_postgres()
    server = PostgresServer()
    server._folder = tmp_path
    tmp_path.chmod(0o700)
    inner = tmp_path / "inner" / "bin"
    inner.mkdir(parents=True)
    (inner / "postgres").write_bytes((real / "postgres").read_bytes())
    assert server._reachable(inner, "nobody") == tmp_path / "programs" / "bin"
    assert server._reachable(inner, None) == inner
    assert server._reachable(real, "nobody") == real


def test_says_what_to_install_where_there_is_none(monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    monkeypatch.setattr(module, "_bundled", list)
    monkeypatch.setattr(module, "SYSTEM_FOLDERS", "/nowhere/*/bin")
    with pytest.raises(ConfigurationError, match="install"):
        module.find_postgres()


def test_the_newest_of_several_is_found(tmp_path, monkeypatch):
    for number in ("9", "15", "18"):
        folder = tmp_path / number / "bin"
        folder.mkdir(parents=True)
        for name in ("postgres", "initdb"):
            (folder / name).touch()
    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    monkeypatch.setattr(module, "SYSTEM_FOLDERS", f"{tmp_path}/*/bin")
    assert module.find_postgres() == Path(tmp_path / "18" / "bin")
