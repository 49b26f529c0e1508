"""One-machine mode, `penstock run`: the fleet on this machine, and the job from source to files."""
