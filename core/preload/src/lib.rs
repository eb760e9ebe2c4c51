//! libnetacc-preload.so: socket calls of unmodified programs over a link.
