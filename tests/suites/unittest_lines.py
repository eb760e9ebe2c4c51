"""Runs one module of unittest tests and writes one JSON line a test. Executed as a script by the interpreter
that is under test, natively or accelerated, so it needs nothing but the standard library.

    python3 unittest_lines.py MODULE OUTPUT [--only FILE] [--done FILE] [--limit SECONDS]

A line `{"started": NAME}` goes out before a test, `{"test": NAME, "outcome": ...}` after it: whoever reads
the file knows which test was running when the process died or hung. Tests named in the file of `--done` are
left out, those not named in the file of `--only` too.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib
import json
import os
import sys
import tempfile
import traceback
import unittest
from pathlib import Path
from types import TracebackType
from typing import Any

#: Resources that tests of the standard library may use. Without "network" test_socketserver does not load.
RESOURCES = ["cpu", "network", "walltime"]


#: The type of `sys.exc_info()`.
ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


class Lines(unittest.TestResult):
    """Writes each outcome at once."""

    def __init__(self, output: Path, limit: float) -> None:
        super().__init__()
        self.output = output.open("a", encoding="utf-8")
        self.limit = limit
        self.failed_subtest = ""
        self.outcome: tuple[str, str] = ("", "")

    def write(self, **line: str) -> None:
        self.output.write(json.dumps(line) + "\n")
        self.output.flush()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.outcome = ("", "")
        self.failed_subtest = ""
        self.write(started=test.id())
        faulthandler.dump_traceback_later(self.limit, exit=True)

    def stopTest(self, test: unittest.TestCase) -> None:
        faulthandler.cancel_dump_traceback_later()
        outcome, detail = self.outcome
        if self.failed_subtest:
            outcome, detail = "failed", self.failed_subtest
        if outcome:
            self.write(test=test.id(), outcome=outcome, detail=detail)
        super().stopTest(test)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.outcome = ("passed", "")

    def addError(self, test: unittest.TestCase, err: ExcInfo) -> None:
        self.bad(test, err)

    def addFailure(self, test: unittest.TestCase, err: ExcInfo) -> None:
        self.bad(test, err)

    def bad(self, test: unittest.TestCase, err: ExcInfo) -> None:
        detail = "".join(traceback.format_exception(*err))
        if isinstance(test, unittest.TestCase):
            self.outcome = ("failed", detail)
        else:
            # A class or module that could not be set up: its tests do not run at all.
            self.write(test=str(test), outcome="failed", detail=detail)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        if isinstance(test, unittest.TestCase):
            self.outcome = ("skipped", reason)
        else:
            self.write(test=str(test), outcome="skipped", detail=reason)

    def addExpectedFailure(self, test: unittest.TestCase, err: ExcInfo) -> None:
        self.outcome = ("passed", "expected failure")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.outcome = ("failed", "unexpected success")

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: ExcInfo | None) -> None:
        if err is not None:
            self.failed_subtest += "".join(traceback.format_exception(*err))


def flatten(suite: unittest.TestSuite | unittest.TestCase) -> list[unittest.TestCase]:
    if isinstance(suite, unittest.TestSuite):
        return [test for part in suite for test in flatten(part)]
    return [suite]


def names(path: Path | None) -> set[str] | None:
    return None if path is None else set(path.read_text(encoding="utf-8").split("\n"))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", type=Path)
    parser.add_argument("--done", type=Path)
    parser.add_argument("--limit", type=float, default=120.0)
    options = parser.parse_args()
    output = options.output.absolute()
    only, done = names(options.only), names(options.done) or set()

    faulthandler.enable()
    support: Any = importlib.import_module("test.support")

    support.use_resources = RESOURCES
    support.verbose = 0
    result = Lines(output, options.limit)
    with tempfile.TemporaryDirectory() as folder:
        # Tests make files where they are, and some look for them there.
        os.chdir(folder)
        loaded = unittest.defaultTestLoader.loadTestsFromName(options.module)
        tests = [t for t in flatten(loaded) if t.id() not in done and (only is None or t.id() in only)]
        for test in tests:
            if type(test).__name__ == "_FailedTest":
                result.write(test=test.id(), outcome="failed", detail="cannot be imported")
        suite = unittest.TestSuite(tests)
        suite.run(result)
        gc.collect()
        os.chdir("/")
    result.write(finished=options.module)
    return 0


if __name__ == "__main__":
    sys.path[0] = ""
    raise SystemExit(main())
