"""What an operator calls: value and reducing state, by batch or on a current key."""
