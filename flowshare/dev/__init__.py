"""Demonstrations and throw-away brokers: what helps to try flowshare out, and no worker needs."""
