"""Servers that speak each model protocol's real wire format and say what they are told to, for tests without a model.

They imitate the formats of requests and replies, not models: sampling, streaming, token ids and refusals are absent.
"""
