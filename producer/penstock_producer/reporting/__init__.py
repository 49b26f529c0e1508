"""A job's account is put into figures and sentences that every door shares."""
