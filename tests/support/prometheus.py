"""A real Prometheus for tests: it scrapes given hosts every second.

Always true: it listens on loopback, keeps its data in a temporary folder, and is ended
by its process id. Knows nothing of the metrics.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any, Final

from foqs.dev.server_process import ServerProcess, find_program, free_port

_CONFIG: Final = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: foqs
    static_configs:
      - targets: {targets}
"""


class Prometheus(ServerProcess):
    """One server.

    Args:
        http_ports: the HTTP ports of the hosts to scrape.
    """

    name = "prometheus"

    def __init__(self, http_ports: Sequence[int]) -> None:
        super().__init__()
        self.port = free_port()
        self._http_ports = http_ports

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def set_up(self) -> None:
        config = self.folder / "prometheus.yml"
        config.write_text(_CONFIG.format(targets=json.dumps([f"127.0.0.1:{port}" for port in self._http_ports])))
        command = [
            find_program("prometheus", "prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        self.launch(command, self._is_ready)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of an expression now: its series, or none. Raises ValueError with the text of a refusal."""
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{self.address}/api/v1/query?{query}", timeout=10) as reply:
                found = json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(f"{expression}: {error.read().decode()}") from None
        return list(found["result"])

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/-/ready", timeout=2) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False
