"""Records on disk: the one form in which measurements and simulations are kept.

A record is a folder with `record.json`, its histograms, its tables, and the tool's own result. `model` has
the schema of `record.json`, `folder` reads and writes folders, `converting` makes records of what the tools
print as JSON, and of results from before there were records. `netacc record` is the command.
"""

from netacc_lab.records.folder import Contents, RecordError, read, write
from netacc_lab.records.model import Header

__all__ = ["Contents", "Header", "RecordError", "read", "write"]
