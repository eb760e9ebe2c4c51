//! netacc.conf, NACC_* environment and netacc_run flags as one typed Config.
