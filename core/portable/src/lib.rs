//! `libnetacc-preload.so` as packages have it: the library of `netacc-preload`, linked to run with an old glibc.
//!
//! It needs `libpthread.so.0` and `libdl.so.2`, which newer systems have merged into the C library. Each start of a program
//! therefore makes about eighteen system calls more than with the library that `make build` leaves.

// Its functions are exported from here.
use netacc_preload as _;
