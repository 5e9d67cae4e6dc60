"""The time of each state, from the kernel's record of switches and system calls."""

from __future__ import annotations

import pytest

from perf.idle import parse, time_by_state

_RECORD = """
 perf 1
    0/0     [000]   1.000000000:       sched:sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=foqs next_pid=10 next_prio=120
    0/0     [001]   1.000000000:       sched:sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=mariadbd next_pid=21 next_prio=120
   20/21    [001]   2.000000000:    raw_syscalls:sys_enter: NR 75 (9, 0, 0, 0, 0, 0)
   20/21    [001]   3.000000000:       sched:sched_switch: prev_comm=mariadbd prev_pid=21 prev_prio=120 prev_state=D ==> next_comm=swapper/1 next_pid=0 next_prio=120
   10/10    [000]   5.000000000:       sched:sched_switch: prev_comm=foqs prev_pid=10 prev_prio=120 prev_state=R+ ==> next_comm=other next_pid=30 next_prio=120
   30/30    [000]   6.000000000:       sched:sched_switch: prev_comm=other prev_pid=30 prev_prio=120 prev_state=S ==> next_comm=foqs next_pid=10 next_prio=120
"""


def test_idle_time_is_divided_by_what_each_process_did() -> None:
    spent_s = time_by_state(list(parse(_RECORD.splitlines())), {10: "host", 20: "database"}, cores=2)
    assert {state: seconds for state, seconds in spent_s.items() if seconds} == {
        (False, (("database", "runs"), ("host", "runs"))): pytest.approx(2.0),
        (True, (("database", "fdatasync"), ("host", "runs"))): pytest.approx(2.0),
        (True, (("database", "fdatasync"), ("host", "ready"))): pytest.approx(1.0),
    }
