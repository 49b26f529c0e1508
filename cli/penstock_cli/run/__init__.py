"""One-machine mode, `penstock run`: the state folder, the fleet of worker processes, and the job
from source to files."""
