# SPDX-License-Identifier: BSD-2-Clause
"""Part `alerts`: makes faults, and checks that Alertmanager gets the right alerts, and no others.

cases       the faults, and the alerts that they must fire
judge       pure: compares the alerts that have fired with those expected
part        runs the cases, one after the other
"""
