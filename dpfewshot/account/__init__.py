"""What may still be spent: accounts in memory and in ledgers, their reservations and permits."""
