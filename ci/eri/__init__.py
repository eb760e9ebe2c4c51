"""The kit for two machines with RDMA devices: see README.md in this folder."""
