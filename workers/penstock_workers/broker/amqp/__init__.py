"""RabbitMQ as the broker: messages go from Redis' lists through quorum queues to the workers.

Redis alone says which worker holds which message. A shovel, beside each control loop, moves
messages from a lane's list to its quorum queue; a worker takes what RabbitMQ delivers by one
script, which makes it a leased message like any other. So leases, give-back, parking, reconciling
and counting are those of Redis, and what RabbitMQ loses or delivers twice does no harm.
"""
