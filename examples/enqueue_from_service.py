"""Push documents from another service.

It needs `pip install penstock` and the database that the workers use.

PENSTOCK_DATABASE_URL=postgresql://user@host/penstock python examples/enqueue_from_service.py
"""

from __future__ import annotations

from penstock_producer import JobSpec, Producer

TICKETS = {
    "ticket-1": "The invoice of March was charged twice.",
    "ticket-2": "How do I export my data before I close the account?",
    "ticket-3": "The app crashes when I open the calendar.",
}


def main() -> None:
    spec = JobSpec(
        model="gpt-4o-mini", prompt="Which team handles this? {text}", params={"max_tokens": 32}
    )
    with Producer() as producer:
        # with a job_key=… of yours, a retry of this service finds the same job
        job = producer.open_job(spec)
        for ticket, text in TICKETS.items():
            job.enqueue(ticket, {"text": text})
        # flushes: from here on every document ends as a result or a dead letter
        accepted = job.close()
    print(
        f"{job.job_id}: {accepted} documents accepted; follow it with `penstock status "
        f"{job.job_id} --watch`"
    )


if __name__ == "__main__":
    main()
