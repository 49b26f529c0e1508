"""How messages come and go: claim, lease, acknowledgement; Redis and RabbitMQ."""
