"""The commit log of a store: its entries, how far it was collected, and what is kept by tags and leases."""
