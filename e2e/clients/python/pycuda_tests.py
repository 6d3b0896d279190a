"""Runs pycuda's own tests of its driver interface, and says what came of each."""

import contextlib
import io

import pytest


class Outcomes:
    def __init__(self):
        self.lines = set()

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.lines.add(f"{report.location[2].split('.')[-1]} passed")

    def pytest_exception_interact(self, node, call):
        self.lines.add(f"{node.name} failed: {call.excinfo.typename}")


outcomes = Outcomes()
with contextlib.redirect_stdout(io.StringIO()):
    pytest.main(
        ["-p", "no:cacheprovider", "/usr/share/doc/python-pycuda-doc/examples/test_driver.py"],
        plugins=[outcomes],
    )
print("\n".join(sorted(outcomes.lines)))
