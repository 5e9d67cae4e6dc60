"""An HTTP proxy that cuts replies: the request was served, and the client never learns it.

Always true: every n-th request is forwarded, its reply is read completely, and then the
client's connection is closed without a byte of it. The attempts of one call are cut
twice at most, so that an SDK that tries five times cannot fail by chance; the cut then
falls on the next request.
"""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self

_CUTS_PER_CALL_MAX: Final = 2


class CuttingProxy:
    """Listens in front of `127.0.0.1:to`; a context manager.

    Args:
        every: each request of this number, counted over all connections, gets no reply.
    """

    def __init__(self, to: int, every: int) -> None:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                far = http.client.HTTPConnection("127.0.0.1", to, timeout=60)
                try:
                    far.request("POST", self.path, body, dict(self.headers.items()))
                    reply = far.getresponse()
                    data = reply.read()
                except OSError:
                    self.close_connection = True
                    return
                finally:
                    far.close()
                if proxy.is_to_be_cut(self.headers.get("amz-sdk-invocation-id", "")):
                    self.close_connection = True
                    return
                self.send_response_only(reply.status)
                for name, value in reply.getheaders():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *values: Any) -> None:
                """Write nothing."""

        self.cut_count = 0
        self._every = every
        self._request_count = 0
        self._cuts_by_call: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def is_to_be_cut(self, invocation_id: str) -> bool:
        with self._lock:
            self._request_count += 1
            is_due = self._request_count // self._every > self.cut_count
            if not is_due or self._cuts_by_call[invocation_id] >= _CUTS_PER_CALL_MAX:
                return False
            self.cut_count += 1
            self._cuts_by_call[invocation_id] += 1
            return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
