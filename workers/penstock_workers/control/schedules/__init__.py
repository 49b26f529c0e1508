"""Jobs that start themselves: looked after by any control process, each planned time decided by
one."""
