"""What may still be spent: accounts in memory, reservations, and the permits that they give out."""
