"""Reads settings: a flag goes before a ``POOT_`` variable, that before the file, then a default."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from poot_core import Settings as LowerSettings
from poot_core import SettingsError
from poot_serve._settings import AccessSettings, EngineSettings, Limits, LogSettings, Settings

__all__ = ["SettingInfo", "all_settings", "load_settings", "own_variables"]

_GROUPS = {
    "engine": EngineSettings,
    "limits": Limits,
    "access": AccessSettings,
    "log": LogSettings,
}

_OTHER_VARIABLES = frozenset({"POOT_CONFIG", "POOT_MODEL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingInfo:
    """One setting as a source has to know it.

    Attributes:
        name: Of its field.
        group: Of its record.
        kind: ``str``, ``int``, ``float`` or ``bool``.
        is_list: Whether it may be given several times.
        default: Its value where nobody gives one.
        text: What it is for.
        low: Least number, or None.
        high: Largest number, or None.
        choices: Words that are allowed; empty allows any.
    """

    name: str
    group: str
    kind: type
    is_list: bool
    default: Any
    text: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return "POOT_" + self.name.upper()

    def read(self, value: Any, source: str) -> Any:
        """Return a value as its field takes it.

        Args:
            value: Text of the environment, or a value of a TOML file or a flag.
            source: Named in errors.

        Raises:
            SettingsError: If it has the wrong type or leaves its range.
        """
        if self.is_list:
            items = value.split(",") if isinstance(value, str) else value
            if not isinstance(items, list | tuple):
                raise SettingsError(f"{source} is {value!r}; it must be a list of texts")
            return tuple(self._read_one(item, source) for item in items if item != "")
        return self._read_one(value, source)

    def _read_one(self, value: Any, source: str) -> Any:
        found = _convert(value, self.kind)
        if found is None:
            raise SettingsError(f"{source} is {value!r}; it must be {_NOUNS[self.kind]}")
        if self.choices and found not in self.choices:
            raise SettingsError(
                f"{source} is {value!r}; it must be one of {', '.join(self.choices)}"
            )
        if (self.low is not None and found < self.low) or (
            self.high is not None and found > self.high
        ):
            bounds = f"at least {self.low:g}" if self.low is not None else ""
            bounds += f" and at most {self.high:g}" if self.high is not None else ""
            raise SettingsError(f"{source} is {value!r}; it must be {bounds}")
        return found


_NOUNS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _convert(value: Any, kind: type) -> Any:
    """Return a value as ``kind``, or None where it is none."""
    if isinstance(value, str) and kind is not str:
        if kind is bool:
            return _TRUTH.get(value.lower())
        try:
            return kind(value)
        except ValueError:
            return None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value if type(value) is kind else None


def all_settings() -> Iterator[SettingInfo]:
    """Yield every setting."""
    for group, record in _GROUPS.items():
        hints = get_type_hints(record)
        for each in fields(record):
            kind, is_list = _kind(hints[each.name])
            yield SettingInfo(
                name=each.name,
                group=group,
                kind=kind,
                is_list=is_list,
                default=each.default,
                text=each.metadata["help"],
                low=each.metadata["low"],
                high=each.metadata["high"],
                choices=each.metadata["choices"],
            )


def load_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str], config: str | None
) -> Settings:
    """Return the settings.

    Args:
        flags: Those of the command line by field name; None where one was not given.
        environment: Of the process.
        config: Path of a TOML file, or None.

    Raises:
        SettingsError: If a source names a setting that does not exist, or a value is wrong.
    """
    known = {info.name: info for info in all_settings()}
    table = _read_file(config, known) if config else {}
    _check_environment(environment, known)
    values: dict[str, dict[str, Any]] = {group: {} for group in _GROUPS}
    for info in known.values():
        flag = flags.get(info.name)
        if flag is not None and flag != ():
            found = info.read(flag, info.flag)
        elif info.variable in environment:
            found = info.read(environment[info.variable], info.variable)
        elif info.name in table:
            found = info.read(table[info.name], f"{info.name} in {config}")
        else:
            continue
        values[info.group][info.name] = found
    return Settings(
        engine=EngineSettings(**values["engine"]),
        limits=Limits(**values["limits"]),
        access=AccessSettings(**values["access"]),
        log=LogSettings(**values["log"]),
    )


def _read_file(path: str, known: Mapping[str, SettingInfo]) -> dict[str, Any]:
    try:
        table = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is no TOML: {error}") from error
    found = {name.replace("-", "_"): value for name, value in table.items()}
    for name in found:
        if name not in known:
            raise SettingsError(f"{path}: there is no setting {name!r}{_near(name, known)}")
    return found


def _check_environment(environment: Mapping[str, str], known: Mapping[str, SettingInfo]) -> None:
    own = {info.variable for info in known.values()} | _OTHER_VARIABLES
    others = {name: value for name, value in environment.items() if name not in own}
    try:
        LowerSettings.from_environment(others)
    except SettingsError as error:
        near = _near(getattr(error, "name", ""), own)
        raise SettingsError(f"{error.message}{near}") from error


def own_variables() -> frozenset[str]:
    """Return the variables that no layer below the server knows."""
    return _OTHER_VARIABLES | {info.variable for info in all_settings()}


def _near(name: str, known: Any) -> str:
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def _kind(hint: Any) -> tuple[type, bool]:
    """Return the plain type of a field, and whether it is a tuple of them."""
    if get_origin(hint) is tuple:
        return get_args(hint)[0], True
    if get_origin(hint) in {UnionType, Union}:
        (plain,) = (each for each in get_args(hint) if each is not type(None))
        return plain, False
    return hint, False
