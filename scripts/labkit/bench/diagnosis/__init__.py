# SPDX-License-Identifier: BSD-2-Clause
"""Part `diagnosis`: makes each kind of fault, and checks that the hosts name its cause and target.

cases       the faults, and what the hosts must say
judge       pure: compares what the hosts say with what they must say
part        runs the cases, one after the other
"""
