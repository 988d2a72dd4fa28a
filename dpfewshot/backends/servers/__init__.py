"""Backends for servers: dialects, transport, retries, and the checks at connection."""
