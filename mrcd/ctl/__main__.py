"""`python -m mrcd.ctl` is mrcctl."""

from mrcd.ctl.main import main

main()
