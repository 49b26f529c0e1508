"""What all jobs have cost, by tenant and by lane."""
