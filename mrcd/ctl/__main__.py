# SPDX-License-Identifier: BSD-2-Clause
"""`python -m mrcd.ctl` is mrcctl."""

from mrcd.ctl.entry import main

main()
