"""What other projects take into their continuous integration. tests/lab/test_jobs.py runs it in a lab."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.lib.paths import REPO
from tests.ci.jobs import ACTION, EXAMPLE, TEMPLATE, load, run_gitlab

LAB = ACTION.parent / "lab.sh"


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("github-actions", ACTION),
        ("github-workflows", EXAMPLE / "github.yml"),
        ("gitlab-ci", TEMPLATE),
        ("gitlab-ci", EXAMPLE / "gitlab-ci.yml"),
    ],
)
def test_files_are_of_their_services_form(schema: str, file: Path) -> None:
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", str(file)]
    checked = subprocess.run(words, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_examples_set_only_inputs_that_exist() -> None:
    """Breaks if an input or a variable is renamed in one place only."""
    (job,) = load(EXAMPLE / "github.yml")["jobs"].values()
    (step,) = [step for step in job["steps"] if "/ci/action@" in step.get("uses", "")]
    assert set(step["with"]) <= set(load(ACTION)["inputs"])
    example = load(EXAMPLE / "gitlab-ci.yml")["verbs"]
    template = load(TEMPLATE)[example["extends"]]
    assert set(example["variables"]) <= set(template["variables"])
    assert set(example["parallel"]["matrix"][0]) <= set(template["variables"])
    described = re.findall(r"^# (NETACC_LAB_\w+)", LAB.read_text(), re.MULTILINE)
    assert set(template["variables"]) <= {*described, "NETACC_LAB_SOURCE", "NETACC_LAB_REF"}


def repository(folder: Path) -> Path:
    """A repository with the script, and as little else as it needs."""
    folder.mkdir()
    for name in re.search(r"SOURCES=\((.*)\)", LAB.read_text())[1].split():  # type: ignore[index]
        if (REPO / name).is_dir():
            (folder / name).mkdir(parents=True)
            (folder / name / "file").touch()
        else:
            (folder / name).touch()
    shutil.copy(LAB, folder / "ci/action")
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    return folder


def key(source: Path) -> str:
    """The part of the cache's key that stands for the sources."""
    words = [str(source / "ci/action/lab.sh"), "key"]
    result = subprocess.run(words, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()[0].rpartition("-")[2]


def test_the_template_runs_the_lab(tmp_path: Path) -> None:
    """With a program that only writes down how it is called, as if the cache had it."""
    source = repository(tmp_path / "source")
    project = tmp_path / "project"
    programs = project / ".netacc-lab/programs" / key(source)
    programs.mkdir(parents=True)
    calls = tmp_path / "calls"
    netacc = programs / "netacc"
    netacc.write_text(f'#!/bin/sh\necho "$* in $NETACC_LAB_CACHE" >>{calls}\n[ "$2" = setup ] || exit 7\n')
    netacc.chmod(0o755)
    variables = {
        **load(EXAMPLE / "gitlab-ci.yml")["verbs"]["variables"],
        "NETACC_LAB_SOURCE": f"file://{source}",
        "NETACC_LAB_RDMA": "siw",
        "NETACC_LAB_HOSTS": "2",
    }
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CI_PROJECT_DIR": str(project)}
    result = run_gitlab(variables, env, project)
    assert result.returncode == 7, result.stderr
    cache = project / ".netacc-lab/cache"
    assert calls.read_text().splitlines() == [
        f"lab setup --rdma siw in {cache}",
        f"lab run --rdma siw --hosts 2 --timeout 120 -- sh -c ./run-test.sh in {cache}",
    ]
    # GitLab keeps exactly what is worth it.
    assert load(TEMPLATE)[".netacc-lab"]["cache"]["paths"] == [
        str(path.relative_to(project)) for path in (programs.parent, cache)
    ]


def test_a_job_on_another_system_fails_at_once(tmp_path: Path) -> None:
    """Breaks if it built programs for minutes first, and then found no kernel."""
    other = tmp_path / "os-release"
    other.write_text('ID=ubuntu\nPRETTY_NAME="Ubuntu 24.04 LTS"\n')
    there = 'mount --bind "$0" "$(realpath /etc/os-release)" && exec "$1" key'
    words = ["unshare", "--mount", "sh", "-c", there, str(other), str(LAB)]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 1
    assert "Ubuntu 24.04 LTS: run the job in the image debian:12" in result.stderr
    assert result.stdout == ""
    (job,) = load(EXAMPLE / "github.yml")["jobs"].values()
    assert job["container"] == "debian:12"


def test_programs_are_built_again_when_their_sources_change(tmp_path: Path) -> None:
    source = repository(tmp_path / "source")

    before = key(source)
    (source / "README.md").touch()
    assert key(source) == before
    (source / "core/file").write_text("changed")
    assert key(source) != before
