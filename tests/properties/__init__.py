"""Programs of socket operations, on every executor that there is."""
