"""The egress process: the papers' client proxy, which copies the output's logs to the topics that clients read.

Touches Kafka.
"""
