"""The benchmark suite: what this machine can read, and what of it decoding reaches."""
