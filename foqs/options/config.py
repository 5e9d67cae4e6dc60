"""The configuration of a host: read once from file, environment and command line, then frozen.

Always true: a `Config` is valid as a whole. Anything wrong ends as one
`ConfigError` of one line: source, key, problem and remedy. Later sources win:
defaults, file, environment, command line. A deprecated option sets its successor and
gives a warning; another old name is refused with the new one. Knows nothing of what the options do, and reads
no file that they name.
"""

from __future__ import annotations

import logging
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Self

from pydantic import ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from foqs.options.auth_options import AuthOptions, PrincipalOptions, check_authentication, check_listen_addresses
from foqs.options.cluster_options import (
    DATABASES_OPTION,
    ClusterOptions,
    DatabaseOptions,
    check_cluster_options,
    check_hosts_can_authenticate,
)
from foqs.options.console_url import check_console
from foqs.options.database_tls import check_database_tls
from foqs.options.options import (
    CatalogOptions,
    CoordinatorOptions,
    InvalidOption,
    LogOptions,
    NamespaceOptions,
    Options,
    ServerOptions,
    StoreOptions,
    check_ports_differ,
)
from foqs.options.renames import NARROWED, find_deprecated, present_name
from foqs.options.rpc_options import TIMEOUT_MS_MAX, CallOptions, RpcOptions
from foqs.options.shard_options import RowCacheOptions, ShardOptions
from foqs.options.sqs_options import SqsOptions

log = logging.getLogger(__name__)

ENVIRONMENT_PREFIX: Final = "FOQS_"
CLI_VARIABLES: Final = frozenset(
    f"FOQS_{name}"
    for name in ("CONFIG", "ADDRESS", "NAMESPACE", "CLIENT_REGION", "TOKEN_FILE", "CA_FILE", "CERT_FILE", "KEY_FILE")
) | {"FOQS_OUTBOX_DATABASE", "FOQS_OUTBOX_PREFIX", "FOQS_PURE"}
"""Variables of the command line, and the choice of plain Python. They are no options of a host."""

FILE_BYTES_MAX: Final = 1 << 20
FRAME_OVERHEAD_BYTES: Final = 4_096
"""The maximum length of a frame with one item, without its payload and metadata. Its trace context counts."""


class ConfigError(Exception):
    """The configuration cannot be used. The text is one line; the fields hold its parts."""

    def __init__(self, source: str, key: str, problem: str, remedy: str) -> None:
        super().__init__(": ".join(part for part in (source, key, f"{problem}; {remedy}") if part))
        self.source = source
        self.key = key
        self.problem = problem
        self.remedy = remedy


class Config(Options):
    """All options of a host."""

    server: ServerOptions = ServerOptions()
    auth: AuthOptions = AuthOptions()
    rpc: RpcOptions = RpcOptions()
    calls: CallOptions = CallOptions()
    sqs: SqsOptions = SqsOptions()
    store: StoreOptions = StoreOptions()
    cluster: ClusterOptions = ClusterOptions()
    databases: dict[str, DatabaseOptions] = DATABASES_OPTION
    shard: ShardOptions = ShardOptions()
    row_cache: RowCacheOptions = RowCacheOptions()
    namespace: NamespaceOptions = NamespaceOptions()
    coordinator: CoordinatorOptions = CoordinatorOptions()
    catalog: CatalogOptions = CatalogOptions()
    log: LogOptions = LogOptions()

    @model_validator(mode="after")
    def _check_sections(self) -> Self:
        server = self.server
        check_listen_addresses(server, self.auth)
        check_console(server, self.auth)
        check_authentication(server, self.auth)
        check_database_tls(self.store, "store")
        check_cluster_options(self.cluster, self.databases, server)
        check_hosts_can_authenticate(self.cluster, server, self.auth)
        check_ports_differ(server)
        namespace = self.namespace
        least = namespace.payload_bytes_max + namespace.metadata_bytes_max + FRAME_OVERHEAD_BYTES
        if self.rpc.frame_bytes_max < least:
            raise InvalidOption(
                f"it is less than the {least} bytes that an item can take", "raise it", "rpc.frame_bytes_max"
            )
        if namespace.key_window_ms <= TIMEOUT_MS_MAX:
            raise InvalidOption(
                "a call may last longer than its idempotency keys are remembered, so that a retry could enqueue twice",
                f"raise it above {TIMEOUT_MS_MAX}",
                "namespace.key_window_ms",
            )
        if self.calls.items_per_call_max > self.shard.queue_items_max:
            raise InvalidOption(
                "it is more than shard.queue_items_max",
                "lower it or raise that",
                "calls.items_per_call_max",
            )
        return self

    @property
    def data_dir(self) -> Path:
        """The folder of this host's files: the SQLite folder, else ./foqs-data."""
        url = self.store.parsed_url
        return Path(url.path) if url.kind == "sqlite" else Path("foqs-data")

    @property
    def coordinator_file(self) -> Path | None:
        """The file of the local coordinator's epochs; None when nothing outlives the process."""
        if self.coordinator.file:
            return Path(self.coordinator.file)
        return None if self.store.parsed_url.kind == "memory" else self.data_dir / "coordinator.json"

    @property
    def lock_files(self) -> Mapping[Path, Path]:
        """The lock files of a host alone, each with the path that it reserves. Two hosts on the same files would stop each other."""
        if self.cluster.zookeeper:
            return {}
        locks = {self.data_dir / "host.lock": self.data_dir} if self.store.parsed_url.kind == "sqlite" else {}
        file = self.coordinator_file
        if file is not None and file.parent not in locks.values():
            locks[file.with_name(f"{file.name}.lock")] = file
        return locks

    @property
    def catalog_file(self) -> Path | None:
        """The file of namespaces, grants and pauses; None when nothing outlives the process."""
        if self.catalog.file:
            return Path(self.catalog.file)
        beside = self.coordinator_file
        return None if beside is None else beside.with_name("catalog.json")

    def to_toml(self) -> str:
        """Return the configuration as a file, each option with its reason, unit, range and default."""
        return "\n".join(_render(self)) + "\n"


# ---------------------------------------------------------------- reading


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
    on_deprecated: Callable[[str], None] = log.warning,
) -> Config:
    """Read the configuration from its three sources over the defaults.

    `overrides` come from the command line, by dotted key: {"server.port": 7411}.
    `on_deprecated` gets a line for each deprecated option that is set.

    Raises:
        ConfigError: a source holds something that cannot be used.
    """
    raw: dict[str, Any] = _read_file(file) if file is not None else {}
    replace_deprecated(raw, str(file), on_deprecated)
    origin: dict[str, str] = {}
    for key, value, variable in _from_environment(environment or {}, on_deprecated):
        _set_value(raw, key, value, variable)
        origin[".".join(key)] = variable
    for dotted, value in (overrides or {}).items():
        key = tuple(dotted.split("."))
        entry = find_deprecated(key)
        if entry is not None and entry.new is None:
            on_deprecated(f"command line: {entry.warning}")
            continue
        renamed = present_name(key)
        if renamed is not None:
            raise ConfigError("command line", dotted, "this option was renamed", f"write {renamed}")
        _set_value(raw, key, value, "command line")
        origin[dotted] = "command line"
    _move_into_ranges(raw, str(file) if file else "", origin, on_deprecated)
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise _to_config_error(details[0], str(file) if file else "", origin) from None
    return config


def _read_file(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigError(
            str(file), "", "there is no such file", "write one with: foqs config default > foqs.toml"
        ) from None
    except OSError as error:
        problem = f"it cannot be read ({error.strerror})"
        raise ConfigError(str(file), "", problem, "name a file that this user may read") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(str(file), "", f"it is longer than {FILE_BYTES_MAX} bytes", "name a configuration file")
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError:
        raise ConfigError(str(file), "", "it is not UTF-8 text", "save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        problem = f"it is not TOML ({_one_line(str(error))})"
        raise ConfigError(str(file), "", problem, "correct that line; foqs config default shows the form") from None


def replace_deprecated(raw: dict[str, Any], source: str, on_deprecated: Callable[[str], None]) -> None:
    """Put the values of deprecated options under their new names, and drop those without one.

    Raises:
        ConfigError: an option is set under both names.
    """
    for section, options in list(raw.items()):
        for name in list(options) if isinstance(options, dict) else ():
            entry = find_deprecated((section, name))
            if entry is None:
                continue
            if entry.new is None:
                on_deprecated(f"{source}: {entry.warning}")
                del options[name]
                continue
            new_section, new_name = entry.new.split(".")
            target = raw.setdefault(new_section, {})
            if isinstance(target, dict) and new_name in target:
                raise ConfigError(source, entry.old, f"{entry.new} is set too", "remove the old name")
            on_deprecated(f"{source}: {entry.warning}")
            _set_value(raw, (new_section, new_name), entry.new_value(options.pop(name)), source)
            if not options:
                del raw[section]


def _move_into_ranges(
    raw: Mapping[str, Any], file: str, origin: Mapping[str, str], on_deprecated: Callable[[str], None]
) -> None:
    """Replace values that only the last version accepted by the nearest ones of now."""
    for narrowed in NARROWED:
        section, name = narrowed.option.split(".")
        options = raw.get(section)
        if not isinstance(options, dict) or name not in options:
            continue
        nearest = narrowed.nearest(options[name])
        if nearest is not None:
            on_deprecated(f"{origin.get(narrowed.option, file)}: {narrowed.warning(options[name])}")
            options[name] = nearest


def _from_environment(
    environment: Mapping[str, str], on_deprecated: Callable[[str], None]
) -> Iterator[tuple[tuple[str, ...], object, str]]:
    for variable, text in sorted(environment.items()):
        if not variable.upper().startswith(ENVIRONMENT_PREFIX) or variable.upper() in CLI_VARIABLES:
            continue
        key = tuple(variable[len(ENVIRONMENT_PREFIX) :].lower().split("__"))
        field = find_field(key)
        entry = None if field is not None else find_deprecated(key)
        if entry is not None and entry.new is None:
            on_deprecated(f"environment: {variable}: {entry.warning}")
            continue
        if entry is not None and entry.new is not None:
            successor = _as_variable(entry.new)
            if successor in {name.upper() for name in environment}:
                raise ConfigError("environment", variable, f"{successor} is set too", "unset the old name")
            on_deprecated(f"environment: {variable}: {entry.warning}, or set {successor}")
            key = tuple(entry.new.split("."))
            field = find_field(key)
            as_text = entry.convert is None and field is not None and field.annotation not in (int, bool)
            yield key, text if as_text else entry.new_value(_parse_value(text)), variable
            continue
        renamed = None if field is not None else present_name(key)
        if renamed is not None:
            name = _as_variable(renamed) if len(key) > 1 else f"{_as_variable(renamed)}__OPTION"
            raise ConfigError("environment", variable, "this option was renamed", f"set {name}")
        if field is None:
            raise ConfigError("environment", variable, "there is no such option", suggest_key(key, variable=True))
        yield key, (_parse_value(text) if field.annotation in (int, bool) else text), variable


def _parse_value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def find_field(key: tuple[str, ...]) -> FieldInfo | None:
    """Return the option that a key names; None if there is none."""
    if len(key) == 4 and key[:2] == ("auth", "principals") and key[2]:
        return PrincipalOptions.model_fields.get(key[3])
    if len(key) == 3 and key[0] == "databases" and key[1]:
        return DatabaseOptions.model_fields.get(key[2])
    section = Config.model_fields.get(key[0])
    model = section.annotation if section else None
    if len(key) == 2 and isinstance(model, type) and issubclass(model, Options):
        return model.model_fields.get(key[1])
    return None


def _as_variable(key: str) -> str:
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "__")


def _set_value(raw: dict[str, Any], key: tuple[str, ...], value: object, source: str) -> None:
    table = raw
    for part in key[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(source, ".".join(key), f"{part} is not a section in the file", f"write it as [{part}]")
    table[key[-1]] = value


# --------------------------------------------------------------- explaining


def _to_config_error(detail: ErrorDetails, file: str, origin: Mapping[str, str]) -> ConfigError:
    parts = tuple(str(part) for part in detail["loc"])
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, InvalidOption):
        key = ".".join((*parts, cause.key)) if cause.key else ".".join(parts)
        return ConfigError(origin.get(key, file), key, cause.problem, cause.remedy)
    key = ".".join(parts)
    source = origin.get(key, file)
    kind = detail["type"]
    if key.partition(".")[0] == "namespaces":
        remedy = "remove it, and create the namespace with: foqs namespace create NAME"
        return ConfigError(source, key, "namespaces are no longer configured here", remedy)
    renamed = present_name(parts) if kind == "extra_forbidden" else None
    if renamed is not None:
        remedy = f"write [{renamed}]" if len(parts) == 1 else f"write {renamed}"
        return ConfigError(source, key, f"this {_kind_of_key(parts)} was renamed", remedy)
    if kind == "extra_forbidden":
        return ConfigError(source, key, f"there is no such {_kind_of_key(parts)}", suggest_key(parts))
    if kind in ("model_type", "dict_type"):
        return ConfigError(source, key, "this is a section, not a value", f"write it as [{key}]")
    problem = f"{detail['msg'].removeprefix('Input ')}, not {_one_line(repr(detail['input']))[:80]}"
    field = find_field(parts)
    remedy = (
        f"the default is {_render_value(field.default)} ({_describe_range(field)})"
        if field
        else "see foqs config default"
    )
    return ConfigError(source, key, problem, remedy)


def suggest_key(key: Sequence[str], *, variable: bool = False) -> str:
    """Return the remedy for an unknown key: the known key that resembles it most."""
    known = {f"{section}.{name}" for section, names in _options_by_section().items() for name in names} | set(
        _options_by_section()
    )
    prefix = ""
    if tuple(key[:2]) == ("auth", "principals") and len(key) == 4:
        prefix, key = f"auth.principals.{key[2]}.", key[3:]
        known = set(PrincipalOptions.model_fields)
    elif key[0] == "databases" and len(key) == 3:
        prefix, key = f"databases.{key[1]}.", key[2:]
        known = set(DatabaseOptions.model_fields)
    wanted = ".".join(key)
    elsewhere = [name for name in sorted(known) if name.endswith(f".{key[-1]}")]
    found = get_close_matches(wanted, sorted(known), 1, 0.75) or elsewhere
    if not found:
        return (
            "unset it, or name one as FOQS_SECTION__OPTION" if variable else "see foqs config default for all of them"
        )
    name = prefix + found[0]
    return f"did you mean {_as_variable(name) if variable else name}?"


def _options_by_section() -> dict[str, list[str]]:
    """Return the names of the options of each section."""
    models = {section: field.annotation for section, field in Config.model_fields.items()}
    return {
        section: list(model.model_fields) if isinstance(model, type) and issubclass(model, Options) else []
        for section, model in models.items()
    }


def _kind_of_key(parts: tuple[str, ...]) -> str:
    return "section" if len(parts) == 1 else "option"


def _one_line(text: str) -> str:
    return " ".join(text.split())


# ---------------------------------------------------------------- rendering

_FILE_HEADER = """\
FOQS: every option of a host with its default. An option can be set in this file, by an environment variable
FOQS_SECTION__OPTION (FOQS_SERVER__PORT=7411), and, for some, by an option of the command line; the later of
these wins. Unknown keys are refused. Check a file with: foqs config check FILE"""


def _render(config: Config) -> Iterator[str]:
    yield from _render_comment(_FILE_HEADER)
    for name, field in Config.model_fields.items():
        section = getattr(config, name)
        if not isinstance(section, Options):
            yield from ("", *_render_comment(field.description or ""), f"[{name}]")
            for key, options in section.items():
                yield f"{_render_value(key)} = {_render_value(options)}"
            continue
        yield from ("", *_render_comment(type(section).__doc__ or ""))
        yield f"[{name}]"
        for key, field in type(section).model_fields.items():
            yield from _render_option(key, field, getattr(section, key))


def _render_option(key: str, field: FieldInfo, value: object) -> Iterator[str]:
    yield from _render_comment(field.description or "")
    yield from _render_comment(f"{_describe_range(field)}; default {_render_value(field.default)}")
    yield f"{key} = {_render_value(value)}"


def _describe_range(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    unit = str(extra["unit"]) if isinstance(extra, dict) else ""
    low = next((mark.ge for mark in field.metadata if hasattr(mark, "ge")), None)
    high = next((mark.le for mark in field.metadata if hasattr(mark, "le")), None)
    return f"{unit}, {low:_} to {high:_}" if low is not None and high is not None else unit


def _render_comment(text: str) -> Iterator[str]:
    for paragraph in textwrap.wrap(_one_line(text), 110):
        yield f"# {paragraph}"


def _render_value(value: object) -> str:
    if isinstance(value, Options):
        value = value.model_dump(exclude_defaults=True)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_render_value(name)} = {_render_value(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:_}" if value >= 10_000 else str(value)
    escaped = "".join(
        f"\\u{ord(char):04x}" if ord(char) < 32 or ord(char) == 127 else "\\" + char if char in '"\\' else char
        for char in str(value)
    )
    return f'"{escaped}"'
