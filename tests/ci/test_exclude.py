"""A list that leaves tests out must have reasons, and must not outlive the tests that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exclude.rules import Exclusion, ListError, read_conditions, read_exclusions

pytest_plugins = ["pytester"]
CONFTEST = Path(__file__).parents[1] / "conftest.py"


def written(folder: Path, text: str) -> Path:
    path = folder / "shm.toml"
    path.write_text(text)
    return path


def test_an_entry_names_a_test_or_the_beginning_of_several(tmp_path: Path) -> None:
    path = written(tmp_path, '[[exclude]]\ntest = "t.py::a[shm]"\nreason = "because"\n')
    assert read_exclusions(path) == [Exclusion("t.py::a[shm]", "because")]
    assert Exclusion("t.py::a*", "").matches("t.py::a[shm]")
    assert not Exclusion("t.py::a", "").matches("t.py::a[shm]")


@pytest.mark.parametrize(
    "text",
    [
        '[[exclude]]\ntest = "t.py::a"\n',
        '[[exclude]]\ntest = "t.py::a"\nreason = " "\n',
        '[[exclude]]\nreason = "because"\n',
        '[[exclude]]\ntest = "t.py::a"\nreason = "because"\nuntil = "later"\n',
        '[[exclued]]\ntest = "t.py::a"\nreason = "because"\n',
    ],
)
def test_a_careless_entry_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ListError):
        read_exclusions(written(tmp_path, text))


def test_the_lists_of_the_repository_can_be_read() -> None:
    folder = CONFTEST.parent / "exclude"
    assert read_conditions(folder / "conditions.toml")
    for path in folder.glob("*.toml"):
        if path.name != "conditions.toml":
            read_exclusions(path)


def test_a_silent_skip_fails_and_a_listed_one_does_not(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_silent():
            pytest.skip("no reason that is listed")

        def test_listed(need_condition):
            need_condition("netns", False)
        """
    )
    result = pytester.runpytest("-p", "tests.conftest")
    result.assert_outcomes(failed=1, skipped=1)


def test_an_entry_that_matches_nothing_stops_the_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_some="def test_there(): pass")
    written(pytester.path, '[[exclude]]\ntest = "test_some.py::test_gone"\nreason = "because"\n')
    monkeypatch.setattr("tests.conftest.EXCLUDE", pytester.path)
    result = pytester.runpytest("-p", "tests.conftest")
    result.stderr.fnmatch_lines(["*no test is called 'test_some.py::test_gone'*"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
