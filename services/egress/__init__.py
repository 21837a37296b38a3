"""The egress process: the papers' client proxy, from the output's logs to the topics that clients read.

Touches Kafka.
"""
