"""The kit for two machines with RDMA devices: what README.md beside this says."""
