"""A configuration as JSON, host by host: whoever makes all of it at once lets nobody else run."""

from mrcd.config import Config
from mrcd.giveway import by_and_by


def config_text(config: Config) -> str:
    """What `Config.model_validate` takes, as text; with the defaults."""
    head = config.model_dump_json(exclude={"hosts", "paths"})
    hosts = ",".join(host.model_dump_json() for host in by_and_by(config.hosts))
    paths = ",".join(path.model_dump_json() for path in by_and_by(config.paths))
    return f'{head[:-1]},"hosts":[{hosts}],"paths":[{paths}]}}'
