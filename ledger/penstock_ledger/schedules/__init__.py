"""Jobs that start themselves: schedules, what came of their times, and their runs compared."""
