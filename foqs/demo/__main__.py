"""`python -m foqs.demo`: its options and exit codes.

Always true: the exit code is 0 if every item was accounted for; 1 if one was not, or
if the run failed, with one sentence; 2 for wrong usage; 130 if it was interrupted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from foqs.runtime.standard_streams import open_closed_streams

INTERRUPTED = 130


def main() -> int:
    """Run the demo and return the exit code."""
    open_closed_streams()
    options = parse(sys.argv[1:])
    try:
        from foqs.demo.demo_host import DemoFailed
        from foqs.demo.display import Display
        from foqs.demo.story import DemoRun

        show = Display()
        try:
            return DemoRun(options, show).run()
        except DemoFailed as error:
            show.failure(str(error))
            return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the options; exit with 2 if they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m foqs.demo",
        description="Start a queue, drive real work through it, and prove that nothing was lost.",
        epilog="Exit codes: 0 every item is accounted for, 1 not, or the run failed, 2 wrong usage, 130 interrupted.",
    )
    parser.add_argument(
        "--dir", type=Path, help="the folder of files, one item for each (default: Python's standard library)"
    )
    parser.add_argument("--limit", type=_positive, metavar="N", help="only the first N files")
    parser.add_argument("--workers", type=_positive, metavar="N", help="worker processes (default: one per processor)")
    parser.add_argument("--serve", action="store_true", help="keep serving afterwards until Ctrl-C")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="the folder of the items (default: ./foqs-data with --serve, else a temporary folder)",
    )
    parser.add_argument(
        "--port", type=_port, help="the port for calls (default: 7411 with --serve, else any free port)"
    )
    parser.add_argument(
        "--http-port",
        type=_port,
        help="the port for HTTP (default: 7412 with --serve and no --port, else any free port)",
    )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65_535:
        raise argparse.ArgumentTypeError("must be 0 to 65535")
    return number


if __name__ == "__main__":
    sys.exit(main())
