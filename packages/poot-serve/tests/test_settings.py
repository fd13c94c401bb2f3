"""Where settings come from, which goes first, and that every one of them is known everywhere."""

from __future__ import annotations

import re

import pytest

from poot_core import SettingsError
from poot_serve._command import command
from poot_serve._settings_sources import all_settings, load_settings


def test_a_flag_goes_before_a_variable_before_the_file(tmp_path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text('port = 1\nmax-requests = 11\nrate_limit = 2\napi-key = ["a", "b"]\n')
    found = load_settings(
        {"port": "3", "max_requests": None, "api_key": ()},
        {"POOT_PORT": "2", "POOT_MAX_REQUESTS": "12", "POOT_WEB_PAGE": "false", "HOME": "/"},
        str(config),
    )
    assert (found.access.port, found.limits.max_requests, found.limits.rate_limit) == (3, 12, 2.0)
    assert found.access.api_key == ("a", "b")
    assert not found.access.web_page
    assert found.access.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot = 1", "no setting 'prot'; did you mean port"),
        ('port = "x"', "port in"),
        ("port = true", "whole number"),
        ("web_page = 1", "true or false"),
        ("api_key = 5", "list of texts"),
        ("port = ", "is no TOML"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, says) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(text)
    with pytest.raises(SettingsError, match=re.escape(says)):
        load_settings({}, {}, str(config))


def test_variables_are_lists_where_flags_repeat() -> None:
    found = load_settings({}, {"POOT_SERVED_MODEL_NAME": "a,b"}, None)
    assert found.access.served_model_name == ("a", "b")


def test_every_setting_is_an_option() -> None:
    names = {parameter.name for parameter in command().params}
    assert {info.name for info in all_settings()} | {"model", "config"} == names


def test_variables_of_other_layers_pass_and_unknown_ones_do_not() -> None:
    found = load_settings({}, {"POOT_KERNEL_CACHE": "0", "POOT_BACKEND": "oracle"}, None)
    assert found.engine.backend == "oracle"
    with pytest.raises(SettingsError, match=r"POOT_MAX_REQUEST is no variable.*POOT_MAX_REQUESTS"):
        load_settings({}, {"POOT_MAX_REQUEST": "1"}, None)
