"""The users' topics, read from Kafka: `KafkaLog` is the `Log` of a fleet's workers."""
