"""What a command finds out about a job while it runs and when it has ended: from the ledger, Redis
and the shared quota."""
