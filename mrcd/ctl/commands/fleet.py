# SPDX-License-Identifier: BSD-2-Clause
"""Defines the group `mrcctl fleet`: commands about all hosts of the cluster."""

import click

from mrcd.ctl.base import Commands, common
from mrcd.ctl.commands import fleet_check, fleet_control, fleet_links


@click.group(cls=Commands, short_help="Show and control all hosts of the cluster.")
@common
def fleet() -> None:
    """Show and control all hosts of the cluster.

    By etcd ([fleet] in the cluster file), and by Prometheus (check, links).
    """


for _command in (*fleet_control.COMMANDS, fleet_check.check, fleet_links.links):
    fleet.add_command(_command)
