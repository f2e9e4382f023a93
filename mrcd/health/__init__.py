"""What Python decides about EVs and peers (the programs decide all that has a deadline), and the event log."""
