"""What may still be spent, in memory: accounts, reservations, and the permits that they issue."""
