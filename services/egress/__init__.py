"""The egress of one site: the client proxy of DPC. It merges the output's partitions and gives clients one corrected
stream, in the topics that docs/topics.md names."""
