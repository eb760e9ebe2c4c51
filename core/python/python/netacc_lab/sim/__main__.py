"""`python -m netacc_lab.sim`: what `netacc sim` starts."""

import sys

from netacc_lab.sim.cli import main

sys.exit(main())
