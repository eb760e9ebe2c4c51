"""Settings of Sphinx for this site. `ci/run.sh docs` builds it; every warning is an error."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

project = "netacc-lab"
extensions = ["myst_nb", "sphinx.ext.autodoc", "netacc_site"]
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"description": "Unmodified TCP programs over RDMA or shared memory"}
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
# The tutorial in Jupyter is executed at each build, and fails it; nothing is kept in between.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
# Seconds for a cell. The first one that plots takes long on a busy machine.
nb_execution_timeout = 300
# Interactive figures are in the page, with their script.
os.environ["PLOTLY_RENDERER"] = "notebook"
# Signatures name types of other packages, and this site has no index of those.
nitpick_ignore_regex = [("py:.*", ".*")]
