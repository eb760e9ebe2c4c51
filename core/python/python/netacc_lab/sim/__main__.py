"""`python -m netacc_lab.sim`: started by `netacc sim`."""

import sys

from netacc_lab.sim.cli import main

sys.exit(main())
