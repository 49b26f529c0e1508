"""`penstock plan`: what a fleet needs for a job, by the model in penstock_producer/planning."""
