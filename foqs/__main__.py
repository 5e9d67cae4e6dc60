"""The program `foqs`: the command line, or one sentence if only the client is installed."""

from __future__ import annotations

import sys
from importlib import import_module

from foqs.runtime.standard_streams import open_closed_streams


def main() -> None:
    """Run the command line."""
    open_closed_streams()
    try:
        cli = import_module("foqs.cli")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in ("foqs", "foqs_client", "foqs_contract", "shardmgr"):
            raise
        sys.exit(f"Only the Python client is installed here ({error.name} is missing); run: pip install 'foqs[server]'")
    cli.main()


if __name__ == "__main__":
    main()
