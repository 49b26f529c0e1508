from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import Field

from penstock_producer.errors import SettingsError
from penstock_producer.settings import ProducerSettings, ProviderFacts


class Provider(ProviderFacts):
    rpm: int


class WorkerLike(ProducerSettings):
    concurrency: int = 4
    providers: Mapping[str, Provider] = Field(  # pyright: ignore[reportIncompatibleVariableOverride]  # it is frozen
        default_factory=dict
    )


@pytest.fixture(autouse=True)
def _clean_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PENSTOCK_CONFIG", "PENSTOCK_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)


def test_flags_win_over_environment_over_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags win over variables, variables over penstock.toml, and that over the defaults."""
    Path("penstock.toml").write_text(
        'redis_url = "redis://file"\ndatabase_url = "sqlite:///file.db"\n'
    )
    monkeypatch.setenv("PENSTOCK_REDIS_URL", "redis://variable")
    assert ProducerSettings.load().redis_url == "redis://variable"
    assert ProducerSettings.load().database_url == "sqlite:///file.db"
    assert (
        ProducerSettings.load(redis_url="redis://flag", database_url=None).redis_url
        == "redis://flag"
    )


def test_the_file_can_be_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PENSTOCK_CONFIG names the settings file, and a path to nothing is an error."""
    other = tmp_path / "other.toml"
    other.write_text('redis_url = "redis://other"\n')
    monkeypatch.setenv("PENSTOCK_CONFIG", str(other))
    assert ProducerSettings.load().redis_url == "redis://other"
    monkeypatch.setenv("PENSTOCK_CONFIG", str(tmp_path / "nothing.toml"))
    with pytest.raises(SettingsError, match="no such file"):
        ProducerSettings.load()


def test_a_bad_value_is_named_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the setting, the value seen and where to set it."""
    monkeypatch.setenv("PENSTOCK_MAX_LINE_BYTES", "lots")
    with pytest.raises(SettingsError, match=r"max_line_bytes = 'lots'.*PENSTOCK_MAX_LINE_BYTES"):
        ProducerSettings.load()


def test_passwords_are_not_shown() -> None:
    """A refused URL is shown without its password."""
    with pytest.raises(SettingsError) as caught:
        ProducerSettings.load(redis_url="http://user:hunter2@host/0")
    assert "hunter2" not in str(caught.value)
    assert "start it with redis://" in str(caught.value)


def test_broken_toml_is_named() -> None:
    """A syntax error in penstock.toml names the file."""
    Path("penstock.toml").write_text("redis_url = \n")
    with pytest.raises(SettingsError, match=r"penstock\.toml: not valid TOML"):
        ProducerSettings.load()


def test_a_misspelt_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name close to that of a setting is a typo, in the file as in the environment."""
    Path("penstock.toml").write_text('redis_ulr = "redis://file"\n')
    with pytest.raises(SettingsError, match="did you mean 'redis_url'"):
        ProducerSettings.load()
    Path("penstock.toml").unlink()
    monkeypatch.setenv("PENSTOCK_DATABASE_ULR", "sqlite:///x.db")
    with pytest.raises(SettingsError, match="did you mean 'database_url'"):
        ProducerSettings.load()


def test_other_roles_share_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subclass adds its fields, and the producer ignores what belongs to other roles."""
    Path("penstock.toml").write_text("concurrency = 9\n[providers.openai]\nrpm = 600\n")
    monkeypatch.setenv("PENSTOCK_PROVIDERS__LOCAL__RPM", "5")
    settings = WorkerLike.load()
    assert (
        settings.concurrency,
        settings.providers["openai"].rpm,
        settings.providers["local"].rpm,
    ) == (9, 600, 5)
    assert ProducerSettings.load().redis_url.startswith("redis://")


def test_settings_are_frozen() -> None:
    """Settings do not change once loaded."""
    with pytest.raises(Exception, match="frozen"):
        ProducerSettings.load().redis_url = "redis://x"
