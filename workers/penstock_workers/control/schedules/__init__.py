"""Jobs that start themselves at planned times.

Any control process looks after them; each planned time is decided by one."""
