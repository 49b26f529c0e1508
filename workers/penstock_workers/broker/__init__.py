"""Messages come and go by claim, lease and acknowledgement; Redis and RabbitMQ."""
