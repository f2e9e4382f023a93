"""A configuration as JSON in parts is the same as in one."""

import json

import pytest

from mrcd import config
from mrcd.configtext import config_text
from tests.cluster_files import host

PATH = '[[paths]]\nsource = "h0"\npeer = "h1"\nplane = 1\nsegments = ["5f00:0:1::"]\nlabel = "a, \\"b\\""\n'


@pytest.mark.parametrize("paths", ["", PATH])
def test_the_parts_make_the_whole(paths: str) -> None:
    c = config.parse(f"[cluster]\nplanes = 2\nt1s = 2\n{host(0)}{host(1)}{paths}")
    assert json.loads(config_text(c)) == c.model_dump(mode="json")
    assert config.Config.model_validate(json.loads(config_text(c))) == c
