# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl completion`: the scripts work in the shells themselves."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# In each shell: load the script, complete "mrcctl pat", print the result.
QUERY = {
    "bash": "source <(mrcctl completion bash); COMP_WORDS=(mrcctl pat); COMP_CWORD=1; _mrcctl_completion mrcctl\n"
    'echo "${COMPREPLY[@]}"; complete -p mrcctl',
    "zsh": "autoload -U compinit; compinit -D -u; source <(mrcctl completion zsh); print ${_comps[mrcctl]}",
    "fish": 'mrcctl completion fish | source; complete --do-complete "mrcctl pat"',
}
SAYS = {"bash": ["paths", "_mrcctl_completion"], "zsh": ["_mrcctl_completion"], "fish": ["paths"]}


@pytest.mark.parametrize("shell", QUERY)
def test_completion_works_in_each_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "MRCD_RUN_DIR": str(tmp_path)}
    done = subprocess.run([shell, "-c", QUERY[shell]], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    for word in SAYS[shell]:
        assert word in done.stdout
