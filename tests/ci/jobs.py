"""Jobs of other projects' continuous integration, run as GitHub and GitLab would run our steps."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from ruamel.yaml import YAML

from tests.apps.lib.paths import REPO

ACTION = REPO / "ci/action/action.yml"
TEMPLATE = REPO / "ci/gitlab/netacc-lab.yml"
EXAMPLE = REPO / "ci/examples/verbs"

Result = subprocess.CompletedProcess[str]


def load(path: Path) -> dict[str, Any]:
    """A YAML file, as plain Python."""
    text = YAML(typ="safe", pure=True).load(path)
    assert isinstance(text, dict)
    return text


@dataclass
class ActionRun:
    """A run of the composite action, step by step. What the steps write for GitHub is kept below `home`."""

    home: Path
    inputs: Mapping[str, str]
    #: Put in front of each command, to become another user.
    before: Sequence[str] = ()
    outputs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.action = load(ACTION)
        unknown = set(self.inputs) - set(self.action["inputs"])
        assert not unknown, unknown

    def steps(self) -> list[dict[str, Any]]:
        steps = self.action["runs"]["steps"]
        assert isinstance(steps, list)
        return steps

    def value(self, expression: str) -> str:
        """The text with its `${{ ... }}` replaced, as far as the action uses such."""

        def of(match: re.Match[str]) -> str:
            kind, _, name = match[1].partition(".")
            if kind == "inputs":
                return self.inputs.get(name, str(self.action["inputs"][name]["default"]))
            step, _, output = name.partition(".outputs.")
            assert (kind, step) == ("steps", "cache"), f"unknown: {match[0]}"
            return self.outputs[output]

        return re.sub(r"\$\{\{ ([^ ]+) \}\}", of, expression)

    def wanted(self, step: Mapping[str, Any]) -> bool:
        """The condition of a step: `inputs.NAME == 'VALUE'`, or the same with `!=`."""
        if "if" not in step:
            return True
        match = re.fullmatch(r"(inputs\.\w+) (==|!=) '(\w*)'", step["if"])
        assert match, f"unknown: {step['if']}"
        return (self.value(f"${{{{ {match[1]} }}}}") == match[3]) is (match[2] == "==")

    def run(self, step: Mapping[str, Any], folder: Path) -> Result:
        """Run a step with shell code in the folder of the job."""
        assert step["shell"] == "bash"
        files = {name: self.home / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_PATH")}
        env = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "GITHUB_ACTION_PATH": str(ACTION.parent),
            **{name: str(path) for name, path in files.items()},
            **{name: self.value(text) for name, text in step.get("env", {}).items()},
        }
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        words = [*self.before, "env", "-i", *(f"{name}={value}" for name, value in env.items()), *shell]
        result = subprocess.run(
            words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150
        )
        if step.get("id") == "cache":
            lines = files["GITHUB_OUTPUT"].read_text().splitlines()
            self.outputs = dict(line.split("=", 1) for line in lines)
        return result


def run_gitlab(variables: Mapping[str, str], env: Mapping[str, str], folder: Path) -> Result:
    """Run the script of the template's job, with a project's variables in place of the template's."""
    job = load(TEMPLATE)[".netacc-lab"]
    merged = {**job["variables"], **variables}
    expanded = {name: Template(str(value)).safe_substitute(env) for name, value in merged.items()}
    words = ["bash", "-eo", "pipefail", "-c", "\n".join(job["script"])]
    return subprocess.run(
        words,
        cwd=folder,
        env={**env, **expanded},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
